//! Matrix products.

use entensor_components::{BackendError, DType};

use super::{Builder, Work, nodes::cost};
use crate::{
    kernels::{Activations, Grid, Kernel, MulMat, PanelProduct, PanelTiling, Quantize, Tiling, panel_activations},
    place::Place,
    simd::GROUP,
};

/// How products of few rows of activations want them.
pub(super) fn few_activations(weights: DType) -> Activations {
    if weights.is_block() { Activations::Groups } else { Activations::Plain }
}

impl Builder {
    pub(super) fn mul_mat(&mut self, weights: Place, x: Place, out: Place) -> Result<(), BackendError> {
        if out.is_empty() {
            return Ok(());
        }
        if x.shape[1] == 1 {
            return self.mat_vec(weights, x, out);
        }
        let group = [x.shape[2] / weights.shape[2], x.shape[3] / weights.shape[3]];
        let k = x.shape[0];
        let panels = panel_activations(self.level, weights.dtype, x.shape[1]);
        let x = match panels.unwrap_or(few_activations(weights.dtype)) {
            Activations::Plain => self.packed_activations(x)?,
            form @ (Activations::Groups | Activations::Bundles | Activations::Shifted) => self.quantized(x, form)?,
        };
        let weights = self.packed_weights(weights)?;
        let row_bytes = weights.row_units() * weights.unit_bytes();
        let cost = weights.rows().saturating_mul(row_bytes).max(out.elements().saturating_mul(k) / 2);
        let (kernel, chunks) = if let Some(form) = panels {
            let tiling = PanelTiling::new(k, &out);
            let product = PanelProduct { weights, x, form, out, k, group, tiling, routes: None };
            (Kernel::PanelProduct(product), tiling.chunks())
        } else {
            let tiling = Tiling::new(k, row_bytes, &out);
            (Kernel::MulMat(MulMat { weights, x, out, k, group, tiling, routes: None }), tiling.chunks())
        };
        // Elements of one product are written in no set order, and a packed result shares none.
        self.push(kernel, chunks, &[weights, x], Some(&out), cost);
        Ok(())
    }

    /// Weights whose rows are in one piece: themselves, if they are.
    pub(super) fn packed_weights(&mut self, weights: Place) -> Result<Place, BackendError> {
        if weights.is_row_packed() {
            return Ok(weights);
        }
        let packed = self.work(Work::Weights, DType::F32, weights.shape)?;
        self.copy_rows(weights, packed);
        Ok(packed)
    }

    /// Activations in 8-bit blocks; products in a row over the same activations share them.
    fn quantized(&mut self, x: Place, form: Activations) -> Result<Place, BackendError> {
        let [k, n, d2, d3] = x.shape;
        if k > isize::MAX as usize / 64 {
            return Err(BackendError::OutOfMemory { size_bytes: u64::MAX });
        }
        let groups = n.div_ceil(GROUP) * d2 * d3;
        let place = self.work(Work::Activations, DType::F32, [form.bytes(k) / 4, groups, 1, 1])?;
        if self.activations != Some((x, form)) {
            let grid = Grid::rows(groups, k, k.saturating_mul(GROUP * cost::CONVERT));
            let gate = self.gate.take_if(|(of, _)| *of == x).map(|(_, gate)| gate);
            let cost = x.elements().saturating_mul(if gate.is_some() { cost::EXP } else { cost::CONVERT });
            let reads = gate.as_ref().map_or([x; 2], |gate| [gate.x, gate.with]);
            self.activations = gate.is_none().then_some((x, form));
            let kernel = Kernel::Quantize(Quantize { x, gate, form, out: place, grid });
            self.push(kernel, grid.chunks(), &reads, Some(&place), cost);
        }
        Ok(place)
    }

    /// Activations as packed f32 rows: themselves, if they are.
    pub(super) fn packed_activations(&mut self, x: Place) -> Result<Place, BackendError> {
        if x.dtype == DType::F32 && x.is_row_packed() {
            return Ok(x);
        }
        let place = self.work(Work::Activations, DType::F32, x.shape)?;
        if self.activations != Some((x, Activations::Plain)) {
            self.copy_rows(x, place);
            self.activations = Some((x, Activations::Plain));
        }
        Ok(place)
    }
}
