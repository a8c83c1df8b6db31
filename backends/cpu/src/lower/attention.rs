//! What attention layers need beside products.

use entensor_components::{BackendError, DType, RopeMode};

use super::{
    AnglesKey, Builder, Work,
    nodes::{cost, whole_rows},
};
use crate::{
    kernels::{Grid, Kernel, Rope, RopeTable},
    place::Place,
};

impl Builder {
    pub(super) fn rope(
        &mut self,
        mode: RopeMode,
        n_dims: usize,
        base: f32,
        freq_scale: f32,
        operands: &[Place],
        out: Place,
    ) -> Result<(), BackendError> {
        if out.is_empty() {
            return Ok(());
        }
        let (x, positions, factors) = (operands[0], operands[1], operands.get(2).copied());
        let rotated = if n_dims == 0 { x.shape[0] } else { n_dims };
        let pairs = rotated / 2;
        let table = self.work(Work::Angles, DType::F32, [2 * pairs, x.shape[2], 1, 1])?;
        let key = AnglesKey { positions, factors, pairs, base, freq_scale };
        if self.angles.as_ref() != Some(&key) {
            let frequency =
                |pair: usize| f64::from(freq_scale) * f64::from(base).powf(-2.0 * pair as f64 / rotated as f64);
            let frequencies = (0..pairs).map(frequency).collect();
            let grid = Grid::rows(x.shape[2], 2 * pairs, pairs.saturating_mul(cost::SIN_COS));
            let kernel = Kernel::RopeTable(RopeTable { positions, factors, frequencies, table, grid });
            self.push(
                kernel,
                grid.chunks(),
                &operands[1..],
                Some(&table),
                (pairs * x.shape[2]).saturating_mul(cost::SIN_COS),
            );
            self.angles = Some(key);
        }
        let grid = whole_rows(&out, out.shape[0], cost::CONVERT);
        let kernel = Kernel::Rope(Rope { mode, x, table, out, grid });
        self.push(kernel, grid.chunks(), &[x, table], Some(&out), out.elements().saturating_mul(cost::CONVERT));
        Ok(())
    }
}
