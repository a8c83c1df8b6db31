//! Random `.graph` texts from a seed: machines with all kinds of limits, and graphs with views, writers and shared memory.
//!
//! The text of a seed never changes between runs, so a failing seed can be printed and tried again.

use std::fmt::Write as _;

use entensor_components::{
    DType, MAX_DIMS, OPS, Op, OpKind, OpRow, PoolOp, RopeMode, Shape, SortOrder, TensorDesc, UpscaleMode,
};

/// What a case may hold.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Scratch leaves, whose bytes nobody has written: planning them is well defined, reading them is not.
    pub scratch: bool,
    /// Most nodes.
    pub nodes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { scratch: true, nodes: 24 }
    }
}

/// A small generator of random numbers (splitmix64).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The generator of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`, which is at least 1.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next_u64() % end.max(1)
    }

    /// True in so many cases of a hundred.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of the items.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        let index = self.below(items.len() as u64);
        &items[usize::try_from(index).unwrap_or(0)]
    }
}

/// The text of a seed.
#[must_use]
pub fn case(seed: u64, limits: Limits) -> String {
    // Sizes stay small, or a few repeats and products would fill the machine.
    case_of(seed, limits, OPS.iter().collect(), &SIZES, 1 << 16)
}

/// The text of a seed with tensors as large as those of real nets, where what alignment costs is no matter. The ops do not
/// grow with the op table, so that a text that is kept in a file stays the text of its seed.
#[must_use]
pub fn large_case(seed: u64, limits: Limits) -> String {
    case_of(seed, limits, LARGE_OPS.iter().map(|kind| kind.row()).collect(), &LARGE_SIZES, 1 << 23)
}

fn case_of(seed: u64, limits: Limits, ops: Vec<&'static OpRow>, sizes: &'static [u64], largest_bytes: u64) -> String {
    let mut generator = Generator {
        random: Random::new(seed),
        text: String::new(),
        tensors: Vec::new(),
        names: Vec::new(),
        ops,
        sizes,
        largest_bytes,
    };
    let _ = writeln!(generator.text, "# seed {seed}");
    generator.machine();
    generator.leaves(limits);
    for _ in 0..=generator.random.below(limits.nodes) {
        generator.node();
    }
    generator.wishes();
    generator.text
}

struct Generator {
    random: Random,
    text: String,
    tensors: Vec<TensorDesc>,
    names: Vec<String>,
    ops: Vec<&'static OpRow>,
    /// Axes of leaves.
    sizes: &'static [u64],
    /// The largest result.
    largest_bytes: u64,
}

const SIZES: [u64; 5] = [2, 4, 4, 8, 32];
const LARGE_SIZES: [u64; 5] = [64, 128, 128, 256, 1024];

/// Ops of all kinds that a planner tells apart.
const LARGE_OPS: &[OpKind] = &[
    OpKind::Add,
    OpKind::Mul,
    OpKind::Scale,
    OpKind::Relu,
    OpKind::Silu,
    OpKind::Swiglu,
    OpKind::RmsNorm,
    OpKind::SoftMax,
    OpKind::SumRows,
    OpKind::Argmax,
    OpKind::MulMat,
    OpKind::MulMat,
    OpKind::MulMatId,
    OpKind::GetRows,
    OpKind::SetRows,
    OpKind::Cpy,
    OpKind::Cont,
    OpKind::Cast,
    OpKind::Concat,
    OpKind::Repeat,
    OpKind::Pad,
    OpKind::Conv1d,
    OpKind::Pool1d,
    OpKind::View,
    OpKind::Reshape,
    OpKind::Permute,
    OpKind::Transpose,
];

impl Generator {
    fn machine(&mut self) {
        let count = *self.random.pick(&[1, 2, 2, 3, 3, 4]);
        for i in 0..count {
            let last = i + 1 == count;
            let name = if last { "cpu".into() } else { format!("dev{i}") };
            let random = &mut self.random;
            let mut line = format!("backend {name}");
            if !last && random.percent(40) {
                line += &format!(" memory={}", random.pick(&["host", "shared", "host"]));
            }
            if random.percent(25) {
                line += &format!(" reads={}", random.pick(&["host", "shared", "dev0", "host,shared"]));
            }
            if random.percent(if last { 8 } else { 45 }) {
                line += " ops=all";
                for row in self.ops.iter().filter(|row| row.computes()) {
                    if random.percent(20) {
                        line += &format!(",-{}", row.name);
                    }
                }
            }
            if random.percent(if last { 3 } else { 15 }) {
                line += &format!(" dtypes=all,-{}", random.pick(&["f16", "q8_0", "i32", "q4_K"]));
            }
            if random.percent(20) {
                line += &format!(" buffer_type={}", random.pick(&["host", "odd", "shared"]));
            }
            if random.percent(if last { 5 } else { 25 }) {
                line += &format!(" max_buffer={}", random.pick(&["300", "1K", "2500", "8K"]));
            }
            if random.percent(30) {
                line += &format!(" align={}", random.pick(&[1, 4, 64, 256]));
            }
            if random.percent(20) {
                line += &format!(" pad={}", random.pick(&[3, 64, 500]));
            }
            if random.percent(30) {
                line += &format!(" offload_batch={}", random.pick(&[0, 2, 4, 32]));
            }
            if random.percent(25) {
                line += &format!(" max_inputs={}", random.below(5));
            }
            if random.percent(40) {
                line += *random.pick(&[" events async", " async", " events"]);
            }
            self.text += &(line + "\n");
            self.names.push(name);
        }
    }

    fn backend(&mut self) -> String {
        self.random.pick(&self.names).clone()
    }

    fn leaves(&mut self, limits: Limits) {
        let buffers = self.random.below(3);
        for i in 0..buffers {
            let backend = self.backend();
            let usage = *self.random.pick(&["", " usage=weights", " usage=any", " usage=compute"]);
            let opaque = if self.random.percent(15) { " opaque" } else { "" };
            let _ = writeln!(self.text, "buffer buf{i} on {backend}{usage}{opaque}");
        }
        for _ in 0..4 + self.random.below(8) {
            let dtype = *self.random.pick(&[DType::F32, DType::F32, DType::F32, DType::F16, DType::I32, DType::Q8_0]);
            let mut dims = [*self.random.pick(self.sizes), *self.random.pick(self.sizes), 1, 1];
            if dtype == DType::Q8_0 {
                dims[0] = 32;
            }
            if dtype == DType::I32 {
                dims[1] = 1;
            } else if self.random.percent(15) {
                dims[2] = 2;
            }
            if self.random.percent(2) {
                dims[1] = 0;
            }
            let Ok(desc) = TensorDesc::packed(dtype, Shape(dims)) else { continue };
            let name = format!("t{}", self.tensors.len());
            let line = match self.random.below(10) {
                0..3 => format!("input {name} {desc}"),
                3 if limits.scratch => format!("scratch {name} {desc}"),
                4..7 if buffers > 0 => format!("tensor {name} {desc} in buf{}", self.random.below(buffers)),
                _ => {
                    let backend = self.backend();
                    format!("weight {name} {desc} on {backend}")
                }
            };
            self.tensors.push(desc);
            self.text += &(line + "\n");
        }
    }

    fn node(&mut self) {
        for _ in 0..60 {
            let row = *self.random.pick(&self.ops);
            if row.kind == OpKind::None {
                continue;
            }
            // Functions of one operand are many, and alike to a planner.
            if row.operands.len() == 1 && row.overwrites == [0] && self.random.percent(75) {
                continue;
            }
            let needed = row.min_operands() + usize::from(self.random.percent(40));
            let mut operands = Vec::new();
            for operand in row.operands.iter().take(needed) {
                let fits = |i: &usize| operand.dtypes.contains(self.tensors[*i].dtype);
                let fitting: Vec<usize> = (0..self.tensors.len()).filter(fits).collect();
                // Later tensors are likelier, so that graphs are deep and not only wide.
                let recent = &fitting[fitting.len().saturating_sub(8)..];
                let pool = if self.random.percent(60) { recent } else { &fitting[..] };
                if !pool.is_empty() {
                    operands.push(*self.random.pick(pool));
                }
            }
            if operands.len() < row.min_operands() {
                continue;
            }
            let descs: Vec<TensorDesc> = operands.iter().map(|&i| self.tensors[i]).collect();
            let op = self.op(row.kind, descs.first().copied());
            let Ok(result) = op.result(&descs) else { continue };
            if result.desc.size_bytes() > self.largest_bytes {
                continue;
            }
            let _ = write!(self.text, "t{} = {}", self.tensors.len(), row.name);
            for operand in operands {
                let _ = write!(self.text, " t{operand}");
            }
            if let Some((_, params)) = op.to_string().split_once(' ') {
                let _ = write!(self.text, " {params}");
            }
            if self.random.percent(12) {
                let backend = self.backend();
                let _ = write!(self.text, " pin={backend}");
            }
            self.text += if self.random.percent(12) { " output\n" } else { "\n" };
            self.tensors.push(result.desc);
            return;
        }
    }

    fn op(&mut self, kind: OpKind, first: Option<TensorDesc>) -> Op {
        let random = &mut self.random;
        let Some(first) = first else {
            return match kind.default_op() {
                Op::Arange { start, step, .. } => Op::Arange { start, stop: *random.pick(&[2.0, 4.0, 8.0]), step },
                op => op,
            };
        };
        let dims = first.shape.0;
        match kind.default_op() {
            Op::Clamp { .. } => Op::Clamp { min: -1.0, max: *random.pick(&[0.0, 0.5]) },
            Op::Concat { .. } => Op::Concat { dim: *random.pick(&[0, 1, 2]) },
            Op::Pad { .. } => {
                Op::Pad { right: [*random.pick(&[0, 2]), 1, 0, 0], left: *random.pick(&[[0; 4], [2, 0, 1, 0]]) }
            }
            Op::Roll { .. } => Op::Roll { shifts: [1, *random.pick(&[0, -1]), 0, 0] },
            Op::Upscale { .. } => {
                let mode = *random.pick(&[UpscaleMode::Nearest, UpscaleMode::Bilinear]);
                let ne = Shape([dims[0] * 2, dims[1] + random.below(3), dims[2], dims[3]]);
                Op::Upscale { ne, mode, align_corners: random.percent(50) }
            }
            Op::Cast { .. } => Op::Cast { dtype: *random.pick(&[DType::F32, DType::F16, DType::Q8_0]) },
            Op::Scale { .. } => Op::Scale { by: *random.pick(&[0.5, -2.0, 1.0]) },
            Op::SoftMax { .. } => {
                Op::SoftMax { scale: *random.pick(&[1.0, 0.25]), max_bias: *random.pick(&[0.0, 0.0, 8.0]) }
            }
            Op::GroupNorm { eps, .. } => Op::GroupNorm { n_groups: *random.pick(&[1, 2]), eps },
            Op::DiagMaskInf { .. } => Op::DiagMaskInf { n_past: *random.pick(&[0, 1, 3]) },
            Op::Argsort { .. } => Op::Argsort { order: *random.pick(&[SortOrder::Ascending, SortOrder::Descending]) },
            Op::TopK { .. } => Op::TopK { k: *random.pick(&[1, 2, 4]) },
            Op::Rope { base, freq_scale, .. } => {
                let mode = *random.pick(&[RopeMode::Normal, RopeMode::Neox]);
                Op::rope(mode, *random.pick(&[0, 2]), base, freq_scale)
            }
            Op::FlashAttnExt { logit_softcap, .. } => {
                Op::FlashAttnExt { scale: 0.5, max_bias: *random.pick(&[0.0, 8.0]), logit_softcap }
            }
            Op::View { .. } => {
                let shape = Shape([dims[0], 1 + random.below(dims[1].max(1)), 1, 1]);
                let offset = first.strides.0[1] * random.below(dims[1].max(1));
                let strides = random.percent(70).then_some(first.strides);
                Op::View { offset, shape, strides }
            }
            Op::Reshape { .. } => {
                let [a, b, c, d] = dims;
                Op::Reshape {
                    shape: Shape(*random.pick(&[[b, a, c, d], [a, c, b, d], [a, b, d, c], [a, b * c, d, 1]])),
                }
            }
            Op::Permute { .. } => {
                let axes: &[[u32; MAX_DIMS]] = &[[0, 2, 1, 3], [1, 0, 2, 3], [0, 1, 3, 2], [2, 0, 1, 3]];
                Op::Permute { axes: *random.pick(axes) }
            }
            Op::Repeat { .. } => Op::Repeat { shape: Shape([dims[0], dims[1] * 2, dims[2], dims[3]]) },
            Op::Pool1d { .. } => Op::Pool1d { op: *random.pick(&[PoolOp::Max, PoolOp::Avg]), k0: 2, s0: 2, p0: 0 },
            Op::Conv1d { .. } => Op::Conv1d { s0: 1 + u32::from(random.percent(50)), p0: 1, d0: 1 },
            op => op,
        }
    }

    fn wishes(&mut self) {
        let count = self.tensors.len() as u64;
        if self.random.percent(20) {
            let (tensor, backend) = (self.random.below(count), self.backend());
            // A node may have its pin already, and a tensor has one at most.
            if !self.text.lines().any(|line| line.starts_with(&format!("t{tensor} = ")) && line.contains(" pin=")) {
                let _ = writeln!(self.text, "pin t{tensor} {backend}");
            }
        }
        if self.random.percent(25) {
            let _ = writeln!(self.text, "copies {}", 1 + self.random.below(4));
        }
        if self.random.percent(50) {
            let (first, step) = (self.random.below(count), 1 + self.random.below(5));
            let wanted: Vec<String> =
                (first..count).step_by(usize::try_from(step).unwrap_or(1)).map(|i| format!("t{i}")).collect();
            let _ = writeln!(self.text, "run {}", wanted.join(","));
        }
    }
}
