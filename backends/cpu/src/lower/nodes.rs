//! Each op as kernels.

use entensor_components::{BackendError, DType, Op, RopeMode};

use super::{AnglesKey, Builder, Work};
use crate::{
    kernels::{
        Binary, BinaryOp, CHUNK_COST, CheckIds, CopyLinear, CopyRows, GetRows, Grid, Kernel, MulMat, Quantize, Repeat,
        RmsNorm, Rope, RopeTable, SetRows, SoftMax, SumRows, Tiling, Unary, UnaryOp,
    },
    place::Place,
    simd::{GROUP, group_bytes},
};

/// Costs of an element in the unit of [`Grid`]: bytes in and out, and arithmetic as so many bytes more.
mod cost {
    pub(super) const MOVE: usize = 8;
    pub(super) const CONVERT: usize = 16;
    pub(super) const EXP: usize = 32;
    pub(super) const NORM: usize = 16;
    pub(super) const SIN_COS: usize = 256;
}

/// A packed result whose elements may be cut into any pieces.
fn may_flatten(places: &[&Place]) -> bool {
    places.iter().all(|place| place.is_packed() && place.shape == places[0].shape)
}

/// The grid of a step that writes `out`: one chunk in linear order if elements of the result share bytes.
fn ordered(grid: Grid, out: &Place) -> Grid {
    if out.is_injective() { grid } else { grid.serial() }
}

fn pieces(out: &Place, cost: usize) -> Grid {
    ordered(Grid::pieces(out.rows(), out.shape[0], cost), out)
}

fn whole_rows(out: &Place, width: usize, cost: usize) -> Grid {
    ordered(Grid::rows(out.rows(), out.shape[0], cost.saturating_mul(width)), out)
}

impl Builder {
    /// Lowers a checked op. Operands share no bytes with the result, or are the result.
    pub(super) fn lower_op(&mut self, op: &Op, operands: &[Place], out: Place) -> Result<(), BackendError> {
        match op {
            // `support` refuses them.
            Op::None {} | Op::View { .. } | Op::Reshape { .. } | Op::Permute { .. } | Op::Transpose {} => {}
            Op::Add {} => self.binary(BinaryOp::Add, operands[0], operands[1], out, cost::MOVE),
            Op::Mul {} => self.binary(BinaryOp::Mul, operands[0], operands[1], out, cost::MOVE),
            Op::Scale { by } => self.unary(UnaryOp::Scale(*by), operands[0], out, cost::MOVE),
            Op::Relu {} => self.unary(UnaryOp::Relu, operands[0], out, cost::MOVE),
            Op::Silu {} => self.unary(UnaryOp::Silu, operands[0], out, cost::EXP),
            Op::Swiglu {} => match operands {
                [both] => {
                    self.binary(BinaryOp::Gate, both.half_rows(false), both.half_rows(true), out, cost::EXP);
                }
                _ => self.binary(BinaryOp::Gate, operands[0], operands[1], out, cost::EXP),
            },
            Op::RmsNorm { eps } => {
                let (x, grid) = (operands[0], whole_rows(&out, out.shape[0], cost::NORM));
                let kernel = Kernel::RmsNorm(RmsNorm { eps: *eps, x, out, grid });
                self.push(kernel, grid.chunks(), &[x], Some(&out), out.elements().saturating_mul(cost::NORM));
            }
            Op::SoftMax { scale } => {
                let grid = whole_rows(&out, out.shape[0], cost::EXP);
                let (x, mask) = (operands[0], operands.get(1).copied());
                let kernel = Kernel::SoftMax(SoftMax { scale: *scale, x, mask, out, grid });
                self.push(kernel, grid.chunks(), operands, Some(&out), out.elements().saturating_mul(cost::EXP));
            }
            Op::SumRows {} => {
                let (x, grid) = (operands[0], whole_rows(&out, operands[0].shape[0], cost::MOVE));
                let kernel = Kernel::SumRows(SumRows { x, out, grid });
                self.push(kernel, grid.chunks(), &[x], Some(&out), x.elements().saturating_mul(cost::MOVE));
            }
            Op::MulMat {} => return self.mul_mat(operands[0], operands[1], out),
            Op::GetRows {} => self.get_rows(operands[0], operands[1], out),
            Op::SetRows {} => self.set_rows(operands[1], operands[2], out),
            Op::Cpy {} | Op::Cont {} => self.copy(operands[0], out),
            Op::Rope { mode, n_dims, base, freq_scale } => {
                return self.rope(*mode, *n_dims as usize, *base, *freq_scale, operands, out);
            }
            Op::Repeat { .. } => {
                let (from, grid) = (operands[0], pieces(&out, cost::MOVE));
                let kernel = Kernel::Repeat(Repeat { from, to: out, grid });
                self.push(kernel, grid.chunks(), &[from], Some(&out), out.elements().saturating_mul(cost::MOVE));
            }
        }
        Ok(())
    }

    fn unary(&mut self, op: UnaryOp, x: Place, out: Place, cost: usize) {
        let (x, out) = if may_flatten(&[&x, &out]) { (x.flat(), out.flat()) } else { (x, out) };
        let grid = pieces(&out, cost);
        self.push(
            Kernel::Unary(Unary { op, x, out, grid }),
            grid.chunks(),
            &[x],
            Some(&out),
            out.elements().saturating_mul(cost),
        );
    }

    fn binary(&mut self, op: BinaryOp, a: Place, b: Place, out: Place, cost: usize) {
        let flat = may_flatten(&[&a, &b, &out]);
        let (a, b, out) = if flat { (a.flat(), b.flat(), out.flat()) } else { (a, b, out) };
        let grid = pieces(&out, cost);
        let kernel = Kernel::Binary(Binary { op, a, b, out, grid });
        self.push(kernel, grid.chunks(), &[a, b], Some(&out), out.elements().saturating_mul(cost));
    }

    fn copy(&mut self, from: Place, to: Place) {
        if from.shape == to.shape {
            return self.copy_rows(from, to);
        }
        let grid = pieces(&to, cost::MOVE);
        let kernel = Kernel::CopyLinear(CopyLinear { from, to, grid });
        self.push(kernel, grid.chunks(), &[from], Some(&to), to.elements().saturating_mul(cost::MOVE));
    }

    /// A copy between equal shapes, converting where dtypes differ.
    pub(super) fn copy_rows(&mut self, from: Place, to: Place) {
        let flat = may_flatten(&[&to, &from]);
        let (from, to) = if flat { (from.flat(), to.flat()) } else { (from, to) };
        let cost = if from.dtype == to.dtype { cost::MOVE } else { cost::CONVERT };
        let grid = pieces(&to, cost);
        let kernel = Kernel::CopyRows(CopyRows { from, to, grid });
        self.push(kernel, grid.chunks(), &[from], Some(&to), to.elements().saturating_mul(cost));
    }

    fn check_ids(&mut self, ids: Place, rows: usize) {
        let chunks = usize::from(!ids.is_empty());
        self.push(Kernel::CheckIds(CheckIds { ids, rows }), chunks, &[ids], None, ids.elements().saturating_mul(4));
    }

    fn get_rows(&mut self, table: Place, ids: Place, out: Place) {
        self.check_ids(ids, table.shape[1]);
        let grid = whole_rows(&out, out.shape[0], cost::CONVERT);
        let kernel = Kernel::GetRows(GetRows { table, ids, out, grid });
        self.push(kernel, grid.chunks(), &[table, ids], Some(&out), out.elements().saturating_mul(cost::CONVERT));
    }

    fn set_rows(&mut self, rows: Place, ids: Place, target: Place) {
        self.check_ids(ids, target.shape[1]);
        let cost = rows.elements().saturating_mul(cost::CONVERT);
        // Every chunk walks all ids, so there are few of them.
        let parallel = if target.is_injective() { (cost / CHUNK_COST).clamp(1, 8) } else { 1 };
        let chunks = if rows.is_empty() { 0 } else { parallel };
        let kernel = Kernel::SetRows(SetRows { target, rows, ids, chunks: parallel });
        self.push(kernel, chunks, &[rows, ids], Some(&target), cost);
    }

    fn rope(
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

    fn mul_mat(&mut self, weights: Place, x: Place, out: Place) -> Result<(), BackendError> {
        if out.is_empty() {
            return Ok(());
        }
        let group = [x.shape[2] / weights.shape[2], x.shape[3] / weights.shape[3]];
        let k = x.shape[0];
        let x = if weights.dtype.is_block() { self.quantized(x)? } else { self.packed_activations(x)? };
        let weights = if weights.is_row_packed() {
            weights
        } else {
            let packed = self.work(Work::Weights, DType::F32, weights.shape)?;
            self.copy_rows(weights, packed);
            packed
        };
        let row_bytes = weights.row_units() * weights.unit_bytes();
        let tiling = Tiling::new(k, row_bytes, &out);
        let cost = weights.rows().saturating_mul(row_bytes).max(out.elements().saturating_mul(k) / 2);
        let kernel = Kernel::MulMat(MulMat { weights, x, out, k, group, tiling });
        // Elements of one product are written in no set order, and a packed result shares none.
        self.push(kernel, tiling.chunks(), &[weights, x], Some(&out), cost);
        Ok(())
    }

    /// Activations in 8-bit blocks; products in a row over the same activations share them.
    fn quantized(&mut self, x: Place) -> Result<Place, BackendError> {
        let [k, n, d2, d3] = x.shape;
        if k > isize::MAX as usize / 64 {
            return Err(BackendError::OutOfMemory { size_bytes: u64::MAX });
        }
        let groups = n.div_ceil(GROUP) * d2 * d3;
        let place = self.work(Work::Activations, DType::F32, [group_bytes(k) / 4, groups, 1, 1])?;
        if self.activations != Some((x, true)) {
            let grid = Grid::rows(groups, k, k.saturating_mul(GROUP * cost::CONVERT));
            let kernel = Kernel::Quantize(Quantize { x, out: place, grid });
            self.push(kernel, grid.chunks(), &[x], Some(&place), x.elements().saturating_mul(cost::CONVERT));
            self.activations = Some((x, true));
        }
        Ok(place)
    }

    /// Activations as packed f32 rows: themselves, if they are.
    fn packed_activations(&mut self, x: Place) -> Result<Place, BackendError> {
        if x.dtype == DType::F32 && x.is_row_packed() {
            return Ok(x);
        }
        let place = self.work(Work::Activations, DType::F32, x.shape)?;
        if self.activations != Some((x, false)) {
            self.copy_rows(x, place);
            self.activations = Some((x, false));
        }
        Ok(place)
    }
}
