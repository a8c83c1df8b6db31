//! Convolutions and pooling: one loop nest each, over every element of the result and every tap.

use entensor_components::{Op, PoolOp, Shape};

use crate::access::{Evaluated, Operand, index, rows};

/// How a window moves along one axis.
#[derive(Clone, Copy)]
struct Steps {
    stride: u64,
    padding: u64,
    dilation: u64,
}

impl Steps {
    fn new(stride: u32, padding: u32, dilation: u32) -> Self {
        Self { stride: stride.into(), padding: padding.into(), dilation: dilation.into() }
    }

    /// Which of `length` elements lies under a tap; none on padding.
    fn under(self, output: u64, tap: u64, length: u64) -> Option<u64> {
        let position = (output * self.stride + tap * self.dilation).checked_sub(self.padding)?;
        (position < length).then_some(position)
    }

    /// Which of `length` elements reaches an element of a transposed convolution with a tap, if one does.
    fn reaching(self, output: u64, tap: u64, length: u64) -> Option<u64> {
        let steps = (output + self.padding).checked_sub(tap * self.dilation)?;
        (steps.is_multiple_of(self.stride) && steps / self.stride < length).then_some(steps / self.stride)
    }
}

/// A tensor, decoded.
struct Array {
    shape: [u64; 4],
    values: Vec<f64>,
}

impl Array {
    fn new(operand: &Operand<'_>) -> Self {
        Self { shape: operand.desc.shape.0, values: operand.values() }
    }

    fn at(&self, at: [u64; 4]) -> f64 {
        let linear = (0..4).rev().fold(0, |linear, axis| linear * self.shape[axis] + at[axis]);
        self.values[index(linear)]
    }

    /// The same values under another shape.
    fn reshaped(self, shape: [u64; 4]) -> Self {
        Self { shape, ..self }
    }
}

/// Every element of a shape, made from its coordinates.
fn each(shape: Shape, element: impl Fn([u64; 4]) -> f64) -> Evaluated {
    let element = &element;
    let row = |[i1, i2, i3]: [u64; 3]| (0..shape.0[0]).map(move |i0| element([i0, i1, i2, i3]));
    Evaluated::Values(rows(shape).flat_map(row).collect())
}

/// Patches of the input as rows.
pub(super) fn im2col(op: &Op, operands: &[Operand<'_>], shape: Shape) -> Evaluated {
    let Op::Im2col { s0, s1, p0, p1, d0, d1, is_2d, .. } = op else { unreachable!("called for `im2col`") };
    let [kw, kh, ..] = operands[0].desc.shape.0;
    let x = Array::new(&operands[1]);
    let [w, h, c, n] = x.shape;
    // Along one axis, height is 1.
    let (kh, x) = if *is_2d { (kh, x) } else { (1, x.reshaped([w, 1, h, c * n])) };
    let along_0 = Steps::new(*s0, *p0, *d0);
    let along_1 = if *is_2d { Steps::new(*s1, *p1, *d1) } else { Steps::new(1, 0, 1) };
    each(shape, |[tap, ox, second, third]| {
        let (oy, n) = if *is_2d { (second, third) } else { (0, second) };
        let (kx, ky, c) = (tap % kw, tap / kw % kh, tap / (kw * kh));
        let (ix, iy) = (along_0.under(ox, kx, x.shape[0]), along_1.under(oy, ky, x.shape[1]));
        ix.zip(iy).map_or(0.0, |(ix, iy)| x.at([ix, iy, c, n]))
    })
}

/// Which product of a convolution: kernel and input, under the shapes that the op has along two axes.
struct Convolution {
    kernel: Array,
    x: Array,
    steps: [Steps; 2],
    /// Whether each channel has its own kernel.
    depthwise: bool,
}

impl Convolution {
    fn element(&self, [ox, oy, co, n]: [u64; 4]) -> f64 {
        let channels = if self.depthwise { co..co + 1 } else { 0..self.x.shape[2] };
        let mut sum = 0.0;
        for c in channels {
            for ky in 0..self.kernel.shape[1] {
                let Some(iy) = self.steps[1].under(oy, ky, self.x.shape[1]) else { continue };
                for kx in 0..self.kernel.shape[0] {
                    let Some(ix) = self.steps[0].under(ox, kx, self.x.shape[0]) else { continue };
                    let weight = self.kernel.at([kx, ky, if self.depthwise { 0 } else { c }, co]);
                    sum += weight * self.x.at([ix, iy, c, n]);
                }
            }
        }
        sum
    }

    fn transposed_element(&self, [ox, oy, co, n]: [u64; 4]) -> f64 {
        let mut sum = 0.0;
        for c in 0..self.x.shape[2] {
            for ky in 0..self.kernel.shape[1] {
                let Some(iy) = self.steps[1].reaching(oy, ky, self.x.shape[1]) else { continue };
                for kx in 0..self.kernel.shape[0] {
                    let Some(ix) = self.steps[0].reaching(ox, kx, self.x.shape[0]) else { continue };
                    sum += self.kernel.at([kx, ky, co, c]) * self.x.at([ix, iy, c, n]);
                }
            }
        }
        sum
    }
}

/// Any convolution of the table.
pub(super) fn conv(op: &Op, operands: &[Operand<'_>], shape: Shape) -> Evaluated {
    let (kernel, x) = (Array::new(&operands[0]), Array::new(&operands[1]));
    let still = Steps::new(1, 0, 1);
    // Along one axis, height is 1.
    let flat = |array: Array| {
        let [d0, d1, d2, _] = array.shape;
        array.reshaped([d0, 1, d1, d2])
    };
    match *op {
        Op::Conv1d { s0, p0, d0 } => {
            let steps = [Steps::new(s0, p0, d0), still];
            let conv = Convolution { kernel: flat(kernel), x: flat(x), steps, depthwise: false };
            each(shape, |[ox, co, n, _]| conv.element([ox, 0, co, n]))
        }
        Op::Conv2d { s0, s1, p0, p1, d0, d1 } | Op::Conv2dDw { s0, s1, p0, p1, d0, d1 } => {
            let steps = [Steps::new(s0, p0, d0), Steps::new(s1, p1, d1)];
            let conv = Convolution { kernel, x, steps, depthwise: matches!(op, Op::Conv2dDw { .. }) };
            each(shape, |at| conv.element(at))
        }
        Op::ConvTranspose1d { s0, p0, d0 } => {
            let steps = [Steps::new(s0, p0, d0), still];
            let conv = Convolution { kernel: flat(kernel), x: flat(x), steps, depthwise: false };
            each(shape, |[ox, co, n, _]| conv.transposed_element([ox, 0, co, n]))
        }
        Op::ConvTranspose2d { stride } => {
            let conv = Convolution { kernel, x, steps: [Steps::new(stride, 0, 1); 2], depthwise: false };
            each(shape, |at| conv.transposed_element(at))
        }
        _ => unreachable!("called for convolutions"),
    }
}

/// A window of `sizes` elements, with strides and paddings, along axes 0 and 1.
pub(super) fn pool(x: &Operand<'_>, shape: Shape, op: PoolOp, sizes: [u32; 2], s: [u32; 2], p: [u32; 2]) -> Evaluated {
    let x = Array::new(x);
    // Windows may be far larger than what they look at.
    let covered = |axis: usize, output: u64| {
        let start = output * u64::from(s[axis]);
        let window = start..start + u64::from(sizes[axis]);
        (0..x.shape[axis]).filter(move |position| window.contains(&(position + u64::from(p[axis]))))
    };
    each(shape, |[ox, oy, i2, i3]| {
        let mut inside = Vec::new();
        for iy in covered(1, oy) {
            inside.extend(covered(0, ox).map(|ix| x.at([ix, iy, i2, i3])));
        }
        match op {
            // Unlike `f64::max`, NaN wins.
            PoolOp::Max => {
                inside.into_iter().fold(f64::NEG_INFINITY, |most, v| if v > most || v.is_nan() { v } else { most })
            }
            PoolOp::Avg => inside.iter().sum::<f64>() / (f64::from(sizes[0]) * f64::from(sizes[1])),
        }
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use entensor_components::{DType, MemorySlot, NodeDesc, TensorDesc, TensorRef};

    use super::*;
    use crate::eval::node;

    /// A packed tensor with the values that a closure gives for linear positions.
    fn tensor(shape: [u64; 4], value: impl Fn(u64) -> f32) -> (TensorDesc, Vec<u8>) {
        let desc = TensorDesc::packed(DType::F32, Shape(shape)).expect("small");
        let elements = desc.shape.elements().expect("small");
        (desc, (0..elements).flat_map(|i| value(i).to_le_bytes()).collect())
    }

    /// The shape and values of an op's result.
    fn run(op: &Op, operands: &[(TensorDesc, Vec<u8>)]) -> ([u64; 4], Vec<f64>) {
        let descs: Vec<TensorDesc> = operands.iter().map(|(desc, _)| *desc).collect();
        let desc = op.result(&descs).expect("shapes fit").desc;
        let operands: Vec<Operand<'_>> =
            operands.iter().map(|(desc, bytes)| Operand { desc: *desc, bytes, start: 0 }).collect();
        let output = TensorRef { desc, memory: MemorySlot(0), offset_bytes: 0 };
        let evaluated =
            node(&NodeDesc { name: Arc::from("node"), op: op.clone(), output, operands: Vec::new() }, &operands);
        match evaluated.expect("nothing to fail") {
            Evaluated::Values(values) => (desc.shape.0, values),
            Evaluated::Units(_) | Evaluated::Rows(_) => panic!("spatial ops give values"),
        }
    }

    /// Small whole numbers, so that sums are exact.
    fn noise(seed: u64) -> impl Fn(u64) -> f32 {
        move |i| {
            let mixed =
                (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(seed).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            (mixed >> 60) as f32 - 7.0
        }
    }

    fn dot(a: &[f64], b: &[f64]) -> f64 {
        assert_eq!(a.len(), b.len());
        a.iter().zip(b).map(|(a, b)| a * b).sum()
    }

    fn decoded((desc, bytes): &(TensorDesc, Vec<u8>)) -> Vec<f64> {
        Operand { desc: *desc, bytes, start: 0 }.values()
    }

    #[test]
    fn small_convolutions_by_hand() {
        let count = |i| (i + 1) as f32;
        // 1·1 + 2·2 + 3·3 and so on; with padding 0 1 2, 1 2 3, …; every second.
        let op = Op::Conv1d { s0: 2, p0: 1, d0: 1 };
        let (shape, y) = run(&op, &[tensor([3, 1, 1, 1], count), tensor([5, 1, 1, 1], count)]);
        assert_eq!((shape, y), ([3, 1, 1, 1], vec![8.0, 20.0, 14.0]));
        // Kernel 1 2 / 3 4 over 1 2 3 / 4 5 6.
        let op = Op::Conv2d { s0: 1, s1: 1, p0: 0, p1: 0, d0: 1, d1: 1 };
        let (shape, y) = run(&op, &[tensor([2, 2, 1, 1], count), tensor([3, 2, 1, 1], count)]);
        assert_eq!((shape, y), ([2, 1, 1, 1], vec![37.0, 47.0]));
        // 1·(1 2 3) at 0, 2·(1 2 3) at 2.
        let op = Op::ConvTranspose1d { s0: 2, p0: 0, d0: 1 };
        let (shape, y) = run(&op, &[tensor([3, 1, 1, 1], count), tensor([2, 1, 1, 1], count)]);
        assert_eq!((shape, y), ([5, 1, 1, 1], vec![1.0, 2.0, 5.0, 4.0, 6.0]));
        let op = Op::ConvTranspose2d { stride: 2 };
        let (shape, y) = run(&op, &[tensor([2, 1, 1, 1], count), tensor([2, 2, 1, 1], count)]);
        assert_eq!((shape, y), ([4, 3, 1, 1], vec![1.0, 2.0, 2.0, 4.0, 0.0, 0.0, 0.0, 0.0, 3.0, 6.0, 4.0, 8.0]));
        // Kernels 1 2 and 3 4 for channels 1 2 3 and 4 5 6.
        let op = Op::Conv2dDw { s0: 1, s1: 1, p0: 0, p1: 0, d0: 1, d1: 1 };
        let (shape, y) = run(&op, &[tensor([2, 1, 1, 2], count), tensor([3, 1, 2, 1], count)]);
        assert_eq!((shape, y), ([2, 1, 2, 1], vec![5.0, 8.0, 32.0, 39.0]));
    }

    #[test]
    fn small_pools_by_hand() {
        let x = tensor([5, 1, 1, 1], |i| [3.0, -1.0, 4.0, -1.0, -5.0][i as usize]);
        let run_1d =
            |op, x: &(TensorDesc, Vec<u8>)| run(&Op::Pool1d { op, k0: 3, s0: 2, p0: 1 }, std::slice::from_ref(x)).1;
        assert_eq!(run_1d(PoolOp::Max, &x), [3.0, 4.0, -1.0]);
        assert_eq!(run_1d(PoolOp::Avg, &x), [2.0 / 3.0, 2.0 / 3.0, -2.0]);
        let x = tensor([5, 1, 1, 1], |i| if i == 0 { f32::NAN } else { f32::NEG_INFINITY });
        for op in [PoolOp::Max, PoolOp::Avg] {
            let y = run_1d(op, &x);
            assert!(y[0].is_nan(), "{y:?}");
            assert_eq!(y[1..], [f64::NEG_INFINITY; 2]);
        }
        let op = Op::Pool2d { op: PoolOp::Max, k0: 2, k1: 2, s0: 2, s1: 1, p0: 0, p1: 0 };
        let (shape, y) = run(&op, &[tensor([5, 3, 1, 1], |i| i as f32)]);
        assert_eq!((shape, y), ([2, 2, 1, 1], vec![6.0, 8.0, 11.0, 13.0]));
    }

    /// A product of patches with the kernel's rows is the convolution.
    #[test]
    fn patches_times_kernels_are_convolutions() {
        let (kernel, x) = (tensor([3, 2, 4, 5], noise(1)), tensor([9, 8, 4, 2], noise(2)));
        let (s0, s1, p0, p1, d0, d1) = (2, 1, 1, 3, 1, 2);
        let operands = [kernel, x];
        let (shape, y) = run(&Op::Conv2d { s0, s1, p0, p1, d0, d1 }, &operands);
        let op = Op::Im2col { s0, s1, p0, p1, d0, d1, is_2d: true, dtype: DType::F32 };
        let (patches_shape, patches) = run(&op, &operands);
        let taps = index(patches_shape[0]);
        assert_eq!(patches_shape, [24, shape[0], shape[1], shape[3]]);
        let weights = decoded(&operands[0]);
        let [width, height, outputs, batch] = shape.map(index);
        for (position, patch) in patches.chunks(taps).enumerate() {
            let (at, n) = (position % (width * height), position / (width * height));
            for (co, weights) in weights.chunks(taps).enumerate() {
                assert_eq!(y[at + width * height * (co + outputs * n)], dot(weights, patch));
            }
        }
        assert_eq!(patches.len(), taps * width * height * batch);

        let operands = [tensor([3, 4, 5, 1], noise(3)), tensor([9, 4, 2, 1], noise(4))];
        let (shape, y) = run(&Op::Conv1d { s0, p0, d0: 2 }, &operands);
        let op = Op::Im2col { s0, s1: 0, p0, p1: 0, d0: 2, d1: 0, is_2d: false, dtype: DType::F32 };
        let (patches_shape, patches) = run(&op, &operands);
        assert_eq!(patches_shape, [12, shape[0], 2, 1]);
        let weights = decoded(&operands[0]);
        let width = index(shape[0]);
        for (position, patch) in patches.chunks(12).enumerate() {
            for (co, weights) in weights.chunks(12).enumerate() {
                assert_eq!(y[position % width + width * (co + 5 * (position / width))], dot(weights, patch));
            }
        }
    }

    /// `⟨conv(x), y⟩ = ⟨x, transposed(y)⟩`: what makes it the transpose. A kernel `[…,IC,OC]` of one is a kernel `[…,OC,IC]`
    /// of the other as it is.
    #[test]
    fn transposed_convolutions_are_transposes() {
        for (s0, p0, d0, length) in [(1, 0, 1, 9), (2, 1, 1, 9), (3, 2, 2, 13), (4, 0, 1, 15)] {
            let kernel = tensor([3, 4, 5, 1], noise(5));
            let x = tensor([length, 4, 2, 1], noise(6));
            let forward = run(&Op::Conv1d { s0, p0, d0 }, &[kernel.clone(), x.clone()]);
            let y = tensor(forward.0, noise(7));
            let back = run(&Op::ConvTranspose1d { s0, p0, d0 }, &[kernel, y.clone()]);
            assert_eq!(back.0, x.0.shape.0, "lengths that strides use up");
            assert_eq!(dot(&forward.1, &decoded(&y)), dot(&decoded(&x), &back.1));
        }
        for (stride, size) in [(1, [7, 5]), (2, [7, 8]), (3, [9, 8])] {
            let kernel = tensor([3, 2, 4, 5], noise(8));
            let x = tensor([size[0], size[1], 4, 2], noise(9));
            let op = Op::Conv2d { s0: stride, s1: stride, p0: 0, p1: 0, d0: 1, d1: 1 };
            let forward = run(&op, &[kernel.clone(), x.clone()]);
            let y = tensor(forward.0, noise(10));
            let back = run(&Op::ConvTranspose2d { stride }, &[kernel, y.clone()]);
            assert_eq!(back.0, x.0.shape.0, "sizes that strides use up");
            assert_eq!(dot(&forward.1, &decoded(&y)), dot(&decoded(&x), &back.1));
        }
    }
}
