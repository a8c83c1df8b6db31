//! Matrix products with a single row of activations.

use entensor_components::{BackendError, DType};

use super::{Builder, Work, nodes::cost};
use crate::{
    kernels::{Grid, Kernel, MatVec, QuantizeVectors, RowCut},
    place::{Place, Region},
    simd::{Fetch, Pairing, vector_bytes},
};

/// Which rounded rows lie in work memory, by pairing: products in a row over the same activations share them.
#[derive(Default)]
pub(super) struct VectorsInWork([Option<Place>; 2]);

impl VectorsInWork {
    /// Bytes are written that something may have been made of.
    pub(super) fn forget(&mut self, write: &Region) {
        for of in &mut self.0 {
            if of.is_some_and(|of| of.region().overlaps(write)) {
                *of = None;
            }
        }
    }
}

impl Builder {
    /// `mul_mat` of one row of activations a plane.
    pub(super) fn mat_vec(&mut self, weights: Place, x: Place, out: Place) -> Result<(), BackendError> {
        let group = [x.shape[2] / weights.shape[2], x.shape[3] / weights.shape[3]];
        let k = x.shape[0];
        let x = if weights.dtype.is_block() {
            self.rounded_vectors(x, Pairing::of(weights.dtype.block_elements() as usize))?
        } else {
            self.packed_activations(x)?
        };
        let weights = self.packed_weights(weights)?;
        let row_bytes = weights.row_units() * weights.unit_bytes();
        let cut = RowCut::new(row_bytes, &out);
        let cost = weights.rows().saturating_mul(row_bytes).max(out.elements().saturating_mul(k) / 2);
        let kernel = Kernel::MatVec(MatVec { weights, x, out, k, group, cut, fetch: Fetch::Keep });
        // Elements of one product are written in no set order, and a packed result shares none.
        self.push(kernel, cut.chunks(), &[weights, x], Some(&out), cost);
        Ok(())
    }

    /// Activations in 8 bits, a row for each plane.
    fn rounded_vectors(&mut self, x: Place, pairing: Pairing) -> Result<Place, BackendError> {
        let [k, n, d2, d3] = x.shape;
        // Rows without elements count too: their products are zeros.
        let rows = n * d2 * d3;
        if k > isize::MAX as usize / 64 {
            return Err(BackendError::OutOfMemory { size_bytes: u64::MAX });
        }
        let region = Work::Vectors(pairing);
        let place = self.work(region, DType::F32, [vector_bytes(k) / 4, rows, 1, 1])?;
        if self.vectors.0[pairing as usize] != Some(x) {
            let grid = Grid::rows(rows, k, k.saturating_mul(cost::CONVERT));
            let kernel = Kernel::QuantizeVectors(QuantizeVectors { x, out: place, pairing, grid });
            self.push(kernel, grid.chunks(), &[x], Some(&place), x.elements().saturating_mul(cost::CONVERT));
            self.vectors.0[pairing as usize] = Some(x);
        }
        Ok(place)
    }
}
