//! Convolutions and pooling: what windows make of lengths. All arithmetic is checked; parameters come from files.

use super::{Rule, refuse};
use crate::{
    dtype::DType,
    op::{Op, OpError, row::packed},
    shape::{Shape, TensorDesc},
};

/// How a window moves along one axis.
struct Window {
    /// The parameters' names: stride, padding, dilation.
    names: [&'static str; 3],
    stride: u32,
    padding: u32,
    dilation: u32,
}

const NAMES: [[&str; 3]; 2] = [["s0", "p0", "d0"], ["s1", "p1", "d1"]];

const OVERFLOW: &str = "sizes must stay below 2^63; use smaller axes, strides, paddings or dilations";

impl Window {
    fn new(axis: usize, stride: u32, padding: u32, dilation: u32) -> Self {
        Self { names: NAMES[axis], stride, padding, dilation }
    }

    /// Positions from the first to just past the last tap.
    fn span(&self, op: &Op, operands: &[TensorDesc], taps: u64) -> Result<u64, OpError> {
        for (value, param) in [(self.stride, self.names[0]), (self.dilation, self.names[2])] {
            if value == 0 {
                return Err(OpError::Param { op: op.row().name, param, rule: "must be at least 1" });
            }
        }
        let Some(steps) = taps.checked_sub(1) else {
            return Err(op.row().shape_error("a kernel must not be empty along the axes that it moves on", operands));
        };
        let span = steps.checked_mul(self.dilation.into()).and_then(|reach| reach.checked_add(1));
        span.ok_or_else(|| op.row().shape_error(OVERFLOW, operands))
    }

    /// How many positions the window has over `input` elements.
    fn slides(&self, op: &Op, operands: &[TensorDesc], input: u64, taps: u64) -> Result<u64, OpError> {
        let span = self.span(op, operands, taps)?;
        let Some(padded) = input.checked_add(2 * u64::from(self.padding)) else {
            return Err(op.row().shape_error(OVERFLOW, operands));
        };
        let Some(room) = padded.checked_sub(span) else {
            return Err(op
                .row()
                .shape_error("the kernel, with its dilation, must fit into the input with its padding", operands));
        };
        Ok(room / u64::from(self.stride) + 1)
    }

    /// How many elements the transposed window reaches from `input` elements.
    fn reaches(&self, op: &Op, operands: &[TensorDesc], input: u64, taps: u64) -> Result<u64, OpError> {
        let span = self.span(op, operands, taps)?;
        let Some(steps) = input.checked_sub(1) else {
            return Err(op
                .row()
                .shape_error("the input must not be empty along the axes that kernels move on", operands));
        };
        let reach = steps.checked_mul(self.stride.into()).and_then(|reach| reach.checked_add(span));
        let Some(reach) = reach else { return Err(op.row().shape_error(OVERFLOW, operands)) };
        match reach.checked_sub(2 * u64::from(self.padding)) {
            None | Some(0) => Err(OpError::Param {
                op: op.row().name,
                param: self.names[1],
                rule: "cuts off more than there is; the result must keep at least one element",
            }),
            Some(length) => Ok(length),
        }
    }
}

/// Patches of operand 1 in the order of a kernel's rows.
pub(crate) fn im2col(op: &Op, operands: &[TensorDesc]) -> Rule {
    let Op::Im2col { s0, s1, p0, p1, d0, d1, is_2d, dtype } = op else { unreachable!("rule of `im2col`") };
    if !dtype.is_float() {
        return Err(OpError::Param { op: "im2col", param: "dtype", rule: "must be a plain float type" });
    }
    let (k, x) = (operands[0].shape.0, operands[1].shape.0);
    let along_0 = Window::new(0, *s0, *p0, *d0);
    let (taps, shape) = if *is_2d {
        if k[2] != x[2] {
            return refuse(op, "axis 2 of kernel and input (the channels) must be equal", operands);
        }
        let out_h = Window::new(1, *s1, *p1, *d1).slides(op, operands, x[1], k[1])?;
        let taps = k[0].checked_mul(k[1]).and_then(|taps| taps.checked_mul(k[2]));
        (taps, [along_0.slides(op, operands, x[0], k[0])?, out_h, x[3]])
    } else {
        one_dimension(op, operands, k[1], x[1])?;
        (k[0].checked_mul(k[1]), [along_0.slides(op, operands, x[0], k[0])?, x[2], 1])
    };
    let Some(taps) = taps else { return refuse(op, OVERFLOW, operands) };
    packed(op, *dtype, Shape([taps, shape[0], shape[1], shape[2]]))
}

/// What all ops along one axis ask: no axis 3, and as many channels in the kernel as in the input.
fn one_dimension(op: &Op, operands: &[TensorDesc], kernel_channels: u64, channels: u64) -> Result<(), OpError> {
    if operands[0].shape.0[3] != 1 || operands[1].shape.0[3] != 1 {
        return Err(op.row().shape_error("along one axis, kernel and input have at most 3 axes", operands));
    }
    if kernel_channels != channels {
        return Err(op.row().shape_error("kernel and input must have as many input channels", operands));
    }
    Ok(())
}

/// `[K,IC,OC]` over `[L,IC,N]`.
pub(crate) fn conv_1d(op: &Op, operands: &[TensorDesc]) -> Rule {
    let Op::Conv1d { s0, p0, d0 } = op else { unreachable!("rule of `conv_1d`") };
    let (k, x) = (operands[0].shape.0, operands[1].shape.0);
    one_dimension(op, operands, k[1], x[1])?;
    let length = Window::new(0, *s0, *p0, *d0).slides(op, operands, x[0], k[0])?;
    packed(op, DType::F32, Shape([length, k[2], x[2], 1]))
}

/// `[KW,KH,IC,OC]` over `[W,H,IC,N]`.
pub(crate) fn conv_2d(op: &Op, operands: &[TensorDesc]) -> Rule {
    let Op::Conv2d { s0, s1, p0, p1, d0, d1 } = op else { unreachable!("rule of `conv_2d`") };
    let (k, x) = (operands[0].shape.0, operands[1].shape.0);
    if k[2] != x[2] {
        return refuse(op, "axis 2 of kernel and input (the channels) must be equal", operands);
    }
    let width = Window::new(0, *s0, *p0, *d0).slides(op, operands, x[0], k[0])?;
    let height = Window::new(1, *s1, *p1, *d1).slides(op, operands, x[1], k[1])?;
    packed(op, DType::F32, Shape([width, height, k[3], x[3]]))
}

/// `[KW,KH,1,C]` over `[W,H,C,N]`, each channel by itself.
pub(crate) fn conv_2d_dw(op: &Op, operands: &[TensorDesc]) -> Rule {
    let Op::Conv2dDw { s0, s1, p0, p1, d0, d1 } = op else { unreachable!("rule of `conv_2d_dw`") };
    let (k, x) = (operands[0].shape.0, operands[1].shape.0);
    if k[2] != 1 || k[3] != x[2] {
        return refuse(op, "the kernel needs an axis 2 of 1 and as many elements on axis 3 as channels", operands);
    }
    let width = Window::new(0, *s0, *p0, *d0).slides(op, operands, x[0], k[0])?;
    let height = Window::new(1, *s1, *p1, *d1).slides(op, operands, x[1], k[1])?;
    packed(op, DType::F32, Shape([width, height, x[2], x[3]]))
}

/// `[K,OC,IC]` spread over `[L,IC,N]`.
pub(crate) fn conv_transpose_1d(op: &Op, operands: &[TensorDesc]) -> Rule {
    let Op::ConvTranspose1d { s0, p0, d0 } = op else { unreachable!("rule of `conv_transpose_1d`") };
    let (k, x) = (operands[0].shape.0, operands[1].shape.0);
    one_dimension(op, operands, k[2], x[1])?;
    let length = Window::new(0, *s0, *p0, *d0).reaches(op, operands, x[0], k[0])?;
    packed(op, DType::F32, Shape([length, k[1], x[2], 1]))
}

/// `[KW,KH,OC,IC]` spread over `[W,H,IC,N]`.
pub(crate) fn conv_transpose_2d(op: &Op, operands: &[TensorDesc]) -> Rule {
    let Op::ConvTranspose2d { stride } = op else { unreachable!("rule of `conv_transpose_2d`") };
    let (k, x) = (operands[0].shape.0, operands[1].shape.0);
    if k[3] != x[2] {
        return refuse(op, "axis 3 of the kernel and axis 2 of the input (the channels) must be equal", operands);
    }
    let window = Window { names: ["stride", "padding", "dilation"], stride: *stride, padding: 0, dilation: 1 };
    let width = window.reaches(op, operands, x[0], k[0])?;
    let height = window.reaches(op, operands, x[1], k[1])?;
    packed(op, DType::F32, Shape([width, height, k[2], x[3]]))
}

/// How many windows of `size` a pool has along an axis.
fn pooled(op: &Op, operands: &[TensorDesc], axis: usize, size: u32, stride: u32, padding: u32) -> Result<u64, OpError> {
    let param = |param, rule| Err(OpError::Param { op: op.row().name, param, rule });
    if size == 0 {
        return param(["k0", "k1"][axis], "must be at least 1");
    }
    if padding >= size {
        return param(NAMES[axis][1], "must be less than the window, or a window would be all padding");
    }
    let input = operands[0].shape.0[axis];
    if input == 0 {
        return Err(op.row().shape_error("the input must not be empty along the axes that windows move on", operands));
    }
    Window::new(axis, stride, padding, 1).slides(op, operands, input, size.into())
}

/// Windows along axis 0.
pub(crate) fn pool_1d(op: &Op, operands: &[TensorDesc]) -> Rule {
    let Op::Pool1d { k0, s0, p0, .. } = op else { unreachable!("rule of `pool_1d`") };
    let [_, d1, d2, d3] = operands[0].shape.0;
    packed(op, DType::F32, Shape([pooled(op, operands, 0, *k0, *s0, *p0)?, d1, d2, d3]))
}

/// Windows along axes 0 and 1.
pub(crate) fn pool_2d(op: &Op, operands: &[TensorDesc]) -> Rule {
    let Op::Pool2d { k0, k1, s0, s1, p0, p1, .. } = op else { unreachable!("rule of `pool_2d`") };
    let [_, _, d2, d3] = operands[0].shape.0;
    let width = pooled(op, operands, 0, *k0, *s0, *p0)?;
    let height = pooled(op, operands, 1, *k1, *s1, *p1)?;
    packed(op, DType::F32, Shape([width, height, d2, d3]))
}

/// A multiply and an add for every element of the result and every tap of its kernel, whose axis `outputs` holds one
/// kernel for each channel of the result.
pub(crate) fn conv_flops(operands: &[TensorDesc], out: &TensorDesc, outputs: usize) -> u64 {
    let kernel = operands[0].shape;
    let taps = kernel.elements().unwrap_or(0) / kernel.0[outputs].max(1);
    taps.saturating_mul(2).saturating_mul(out.shape.elements().unwrap_or(0))
}

/// The same for every element of the input; axis `inputs` of the kernel holds the channels of the input.
pub(crate) fn conv_transpose_flops(operands: &[TensorDesc], inputs: usize) -> u64 {
    conv_flops(operands, &operands[1], inputs)
}

#[cfg(test)]
mod tests;
