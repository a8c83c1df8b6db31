//! Convolutions and pooling. Ops along one axis become ops along two, with a height of 1.

use entensor_components::{BackendError, DType, PoolOp};

use super::{
    Builder, Work,
    nodes::{cost, pieces},
};
use crate::{
    kernels::{Axis, Conv, Depthwise, Grid, Im2col, Kernel, LINES, NARROW, PackKernel, Pool, WIDE},
    place::Place,
};

/// How windows move: strides, paddings and dilations of axes 0 and 1.
#[derive(Clone, Copy)]
pub(super) struct Steps {
    stride: [u32; 2],
    padding: [u32; 2],
    dilation: [u32; 2],
}

impl Steps {
    pub(super) fn new(stride: [u32; 2], padding: [u32; 2], dilation: [u32; 2]) -> Self {
        Self { stride, padding, dilation }
    }

    /// Steps along axis 0 only.
    pub(super) fn along(stride: u32, padding: u32, dilation: u32) -> Self {
        Self::new([stride, 1], [padding, 0], [dilation, 1])
    }

    /// Both axes, for windows of so many taps over an input.
    fn axes(self, taps: [usize; 2], input: &Place, out: &Place) -> [Axis; 2] {
        std::array::from_fn(|axis| Axis {
            input: input.shape[axis],
            output: out.shape[axis],
            taps: taps[axis],
            stride: self.stride[axis].into(),
            padding: self.padding[axis].into(),
            dilation: self.dilation[axis].into(),
        })
    }
}

/// A place with its axes in another order; `None` is an axis of 1.
fn arranged(place: &Place, axes: [Option<usize>; 4]) -> Place {
    let mut arranged = *place;
    for (new, old) in axes.into_iter().enumerate() {
        arranged.shape[new] = old.map_or(1, |old| place.shape[old]);
        arranged.strides[new] = old.map_or(0, |old| place.strides[old]);
    }
    if arranged.shape[0] <= 1 {
        arranged.strides[0] = arranged.unit_bytes();
    }
    arranged
}

/// `[L,C,N]` as `[L,1,C,N]`.
fn with_height(place: &Place) -> Place {
    arranged(place, [Some(0), None, Some(1), Some(2)])
}

fn too_large<T>(value: Option<T>) -> Result<T, BackendError> {
    value.ok_or(BackendError::OutOfMemory { size_bytes: u64::MAX })
}

impl Builder {
    pub(super) fn im2col(&mut self, steps: Steps, is_2d: bool, operands: &[Place], out: Place) {
        let kernel = operands[0].shape;
        let (x, out, taps) = if is_2d {
            (operands[1], out, [kernel[0], kernel[1]])
        } else {
            (with_height(&operands[1]), arranged(&out, [Some(0), Some(1), None, Some(2)]), [kernel[0], 1])
        };
        if out.is_empty() {
            return;
        }
        let [patch, width, height, batch] = out.shape;
        // The axes of outputs stand one further on.
        let axes = steps.axes(taps, &x, &arranged(&out, [Some(1), Some(2), None, None]));
        let row_cost = patch.saturating_mul(LINES.min(width) * cost::CONVERT);
        let grid = Grid::rows(width.div_ceil(LINES) * height * batch, patch, row_cost);
        let kernel = Kernel::Im2col(Im2col { x, out, axes, grid });
        // The bytes of the kernel are not looked at.
        self.push(kernel, grid.chunks(), &[x], Some(&out), out.elements().saturating_mul(cost::CONVERT));
    }

    pub(super) fn conv_1d(&mut self, steps: Steps, operands: &[Place], out: Place) -> Result<(), BackendError> {
        let kernel = arranged(&operands[0], [Some(1), Some(0), None, Some(2)]);
        self.conv(false, steps, kernel, with_height(&operands[1]), with_height(&out))
    }

    pub(super) fn conv_2d(&mut self, steps: Steps, operands: &[Place], out: Place) -> Result<(), BackendError> {
        let kernel = arranged(&operands[0], [Some(2), Some(0), Some(1), Some(3)]);
        self.conv(false, steps, kernel, operands[1], out)
    }

    pub(super) fn conv_transpose_1d(
        &mut self,
        steps: Steps,
        operands: &[Place],
        out: Place,
    ) -> Result<(), BackendError> {
        let kernel = arranged(&operands[0], [Some(2), Some(0), None, Some(1)]);
        self.conv(true, steps, kernel, with_height(&operands[1]), with_height(&out))
    }

    pub(super) fn conv_transpose_2d(
        &mut self,
        stride: u32,
        operands: &[Place],
        out: Place,
    ) -> Result<(), BackendError> {
        let kernel = arranged(&operands[0], [Some(3), Some(0), Some(1), Some(2)]);
        self.conv(true, Steps::new([stride; 2], [0; 2], [1; 2]), kernel, operands[1], out)
    }

    /// Kernel `[IC,KW,KH,OC]`, x `[W,H,IC,N]`, out `[OW,OH,OC,N]`. Both operands are packed with channels side by side first:
    /// that costs a pass over each and makes one dense inner loop of every stride, dilation, padding, layout and dtype.
    fn conv(
        &mut self,
        transposed: bool,
        steps: Steps,
        kernel: Place,
        x: Place,
        out: Place,
    ) -> Result<(), BackendError> {
        if out.is_empty() {
            return Ok(());
        }
        let [channels, kernel_width, kernel_height, outputs] = kernel.shape;
        let lanes = if outputs <= NARROW { NARROW } else { WIDE };
        let groups = outputs.div_ceil(lanes);
        let rows = out.shape[1] * groups * out.shape[3];
        let nothing = x.is_empty() || kernel.is_empty();
        let terms = if nothing { 1 } else { channels * kernel_width * kernel_height };
        // A few multiply-adds cost as much as moving a byte.
        let element_cost = terms.saturating_mul(lanes / 2);
        let total_cost = element_cost.saturating_mul(rows).saturating_mul(out.shape[0]);
        let grid = Grid::pieces(rows, out.shape[0], element_cost);
        let mut conv = Conv { x, kernel, out, channels, lanes, axes: steps.axes([0, 0], &x, &out), transposed, grid };
        if nothing {
            // Windows without taps give zeros, and nothing is read.
            conv.axes = Steps::along(1, 0, 1).axes([0, 0], &x, &out);
            self.push(Kernel::Conv(conv), grid.chunks(), &[], Some(&out), total_cost);
            return Ok(());
        }

        let [width, height, _, batch] = x.shape;
        let by_element = self.work(Work::Activations, DType::F32, [channels, width, height, batch])?;
        let by_row = self.work(Work::Activations, DType::F32, [channels * width, height, batch, 1])?;
        self.copy_rows(arranged(&x, [Some(2), Some(0), Some(1), Some(3)]), by_element);
        // What products left there is gone.
        self.activations = None;

        let packed_width = too_large(channels.checked_mul(lanes))?;
        let packed = self.work(Work::Weights, DType::F32, [packed_width, kernel_width, kernel_height, groups])?;
        let kernel_rows = too_large(packed_width.checked_mul(kernel_width))?;
        let packed_rows = self.work(Work::Weights, DType::F32, [kernel_rows, kernel_height, groups, 1])?;
        let pack_cost = packed_width.saturating_mul(cost::CONVERT);
        let pack_grid = Grid::rows(packed.rows(), packed_width, pack_cost);
        let pack = Kernel::PackKernel(PackKernel { kernel, out: packed, lanes, grid: pack_grid });
        self.push(pack, pack_grid.chunks(), &[kernel], Some(&packed), packed.rows().saturating_mul(pack_cost));

        conv.axes = steps.axes([kernel_width, kernel_height], &x, &out);
        (conv.x, conv.kernel) = (by_row, packed_rows);
        self.push(Kernel::Conv(conv), grid.chunks(), &[by_row, packed_rows], Some(&out), total_cost);
        Ok(())
    }

    pub(super) fn conv_2d_dw(&mut self, steps: Steps, operands: &[Place], out: Place) {
        let (kernel, x) = (operands[0], operands[1]);
        if out.is_empty() {
            return;
        }
        let taps = kernel.shape[0].saturating_mul(kernel.shape[1]);
        let axes = steps.axes([kernel.shape[0], kernel.shape[1]], &x, &out);
        let element_cost = taps.saturating_mul(cost::MOVE / 2).max(cost::MOVE);
        let grid = pieces(&out, element_cost);
        let kernel_step = Kernel::Depthwise(Depthwise { kernel, x, out, axes, grid });
        let total = out.elements().saturating_mul(element_cost);
        self.push(kernel_step, grid.chunks(), &[kernel, x], Some(&out), total);
    }

    /// Windows of `sizes` elements.
    pub(super) fn pool(&mut self, op: PoolOp, sizes: [u32; 2], steps: Steps, x: Place, out: Place) {
        if out.is_empty() {
            return;
        }
        let axes = steps.axes(sizes.map(|size| size as usize), &x, &out);
        // Padding costs nothing.
        let met = |axis: usize| axes[axis].taps.min(x.shape[axis]);
        let element_cost = met(0).saturating_mul(met(1)).saturating_mul(cost::MOVE / 2).max(cost::MOVE);
        let grid = pieces(&out, element_cost);
        let kernel = Kernel::Pool(Pool { op, x, out, axes, grid });
        self.push(kernel, grid.chunks(), &[x], Some(&out), out.elements().saturating_mul(element_cost));
    }
}
