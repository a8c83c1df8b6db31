//! The memory of a case: tensors between guard bytes, filled; and running the case on it.

use std::sync::Arc;

use entensor_components::{
    Backend, BackendError, Content, DType, MemorySlot, NodeDesc, Shape, SplitDesc, TensorDesc, TensorRef, Usage,
};

use crate::{Case, Fill};

/// What memory holds where nothing was put: NaN as f32 and f16, a NaN scale in blocks, −1 as integer.
pub(super) const POISON: u8 = 0xff;

/// Bytes of poison around each tensor, at least.
const GUARD_BYTES: u64 = 64;

/// Numbers at which functions bend, lose digits, overflow or have no value. None is subnormal: devices may take those
/// for zero.
pub const EXTREMES: [f32; 32] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    1e-4,
    -1e-4,
    2.5,
    -2.5,
    3.0,
    -3.0,
    5.0,
    -5.0,
    20.0,
    -20.0,
    80.0,
    -80.0,
    200.0,
    -200.0,
    40_000.0,
    -40_000.0,
    70_000.0,
    1e-30,
    -1e-30,
    1e30,
    -1e30,
    f32::MAX,
    f32::MIN,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::NAN,
];

/// The bytes of a case before it runs, and where its tensors lie.
pub(super) struct Image {
    pub(super) bytes: Vec<u8>,
    pub(super) operands: Vec<TensorRef>,
    pub(super) output: TensorRef,
}

/// How a run ended, and memory afterwards.
pub(super) enum Outcome {
    Done(Vec<u8>),
    Failed(Vec<u8>, BackendError),
}

impl Image {
    /// Lays out and fills a case.
    pub(super) fn new(case: &Case) -> Self {
        Self::padded(case, POISON)
    }

    /// As [`Self::new`], with `padding` where nothing is put.
    pub(super) fn padded(case: &Case, padding: u8) -> Self {
        let mut image = Self::empty(case, padding);
        for index in 0..case.operands.len() {
            image.fill(case, index);
        }
        image
    }

    /// Lays out a case and puts nothing anywhere.
    pub(super) fn empty(case: &Case, padding: u8) -> Self {
        let mut end = 0;
        let mut place = |desc: TensorDesc| {
            let offset_bytes = (end + GUARD_BYTES).next_multiple_of(64);
            end = offset_bytes + desc.size_bytes();
            TensorRef { desc, memory: MemorySlot(0), offset_bytes }
        };
        let operands: Vec<TensorRef> = case.operands.iter().map(|o| place(o.desc)).collect();
        let taken_over = case.in_place.or(case.op.row().writes);
        let output = taken_over.map_or_else(|| place(case.output()), |index| operands[index]);
        let size = usize::try_from(end + GUARD_BYTES).expect("cases are small");
        Self { bytes: vec![padding; size], operands, output }
    }

    fn fill(&mut self, case: &Case, index: usize) {
        let tensor = self.operands[index];
        let content = case.op.row().operands[index].content;
        let mut noise = Noise(index as u64 + 1);
        let elements = usize::try_from(tensor.desc.shape.elements().expect("small")).expect("small");
        let descs: Vec<TensorDesc> = self.operands.iter().map(|o| o.desc).collect();
        if let Some(rows) = content.indexed(&descs) {
            let rows = i32::try_from(rows).expect("small");
            let mut ids: Vec<i64> = (0..elements).map(|_| i64::from(noise.integer(rows))).collect();
            spoil_ids(case.fill, tensor.desc.dtype, i64::from(rows), &mut ids);
            return self.store(&tensor, |i| ids[i] as f32, Some(&ids));
        }
        if content == Content::Data && tensor.desc.dtype == DType::I64 {
            // Larger than any float holds exactly: whoever moves them must not convert them.
            let integers: Vec<i64> = (0..elements).map(|_| noise.next().cast_signed()).collect();
            return self.store(&tensor, |i| integers[i] as f32, Some(&integers));
        }
        let mut values: Vec<f32> = (0..elements)
            .map(|_| match content {
                Content::Data if case.fill == Fill::Large => noise.float() * 5000.0,
                Content::Data if tensor.desc.dtype == DType::I8 => noise.integer(256) as f32 - 128.0,
                Content::Data if tensor.desc.dtype.is_integer() => noise.integer(2000) as f32,
                Content::Data | Content::Indices | Content::PlaneIndices | Content::SecondIndices => noise.float(),
                Content::Positions => noise.integer(3000) as f32,
                Content::Mask => {
                    if noise.integer(3) == 0 {
                        f32::NEG_INFINITY
                    } else {
                        // What is not left out is biased, or ALiBi would have nothing to multiply.
                        noise.float()
                    }
                }
                Content::Factors => 1.25 + 0.3 * noise.float(),
            })
            .collect();
        spoil(case.fill, index, tensor.desc.dtype, &mut values);
        spoil_keys(case.fill, index, content, tensor.desc.shape, &mut values);
        self.store(&tensor, |i| values[i], None);
    }

    /// Encodes elements in linear order; integers from a list of their own, where f32 would round.
    fn store(&mut self, tensor: &TensorRef, value: impl Fn(usize) -> f32, integers: Option<&[i64]>) {
        let dtype = tensor.desc.dtype;
        let block = usize::try_from(dtype.block_elements()).expect("small");
        for (unit, range) in unit_ranges(tensor).into_iter().enumerate() {
            let bytes = &mut self.bytes[range];
            match integers {
                // What is left out of a smaller integer is its sign.
                Some(integers) => bytes.copy_from_slice(&integers[unit].to_le_bytes()[..bytes.len()]),
                None => {
                    let values: Vec<f32> = (0..block).map(|i| value(unit * block + i)).collect();
                    (dtype.row().quantize)(&values, bytes);
                }
            }
        }
    }

    /// The case as the only node of a split.
    pub(super) fn split(&self, case: &Case) -> SplitDesc {
        let (op, operands) = (case.op.clone(), self.operands.clone());
        let node = NodeDesc { name: Arc::from("case"), op, output: self.output, operands };
        SplitDesc { nodes: vec![node], memory_slots: 1 }
    }

    /// Runs the case on a backend, on a buffer of its own.
    pub(super) fn run(&self, backend: &dyn Backend, case: &Case) -> Result<Outcome, BackendError> {
        let prepared = backend.prepare(&self.split(case))?;
        let key = backend.create_buffer(self.bytes.len() as u64, Usage::Compute)?;
        let memory = backend.memory(key)?;
        backend.write(&memory, 0, &self.bytes)?;
        let submitted = prepared.submit(std::slice::from_ref(&memory));
        let result = submitted.and_then(|ticket| backend.wait_for(ticket, None)).and_then(|_| backend.synchronize());
        let mut bytes = vec![0; self.bytes.len()];
        backend.read(&memory, 0, &mut bytes)?;
        backend.destroy_buffer(key)?;
        Ok(match result {
            Ok(()) => Outcome::Done(bytes),
            Err(error) => Outcome::Failed(bytes, error),
        })
    }
}

/// Byte ranges of a tensor's elements (blocks) in linear order.
pub(super) fn unit_ranges(tensor: &TensorRef) -> Vec<std::ops::Range<usize>> {
    let desc = &tensor.desc;
    let [d0, d1, d2, d3] = desc.shape.0;
    let units = d0 / desc.dtype.block_elements();
    let unit = usize::try_from(desc.dtype.block_bytes()).expect("small");
    let mut ranges = Vec::new();
    for (i3, i2, i1) in (0..d3).flat_map(|i3| (0..d2).flat_map(move |i2| (0..d1).map(move |i1| (i3, i2, i1)))) {
        for i0 in 0..units {
            let at = [i0, i1, i2, i3].iter().zip(desc.strides.0).map(|(i, stride)| i * stride).sum::<u64>();
            let start = usize::try_from(tensor.offset_bytes + at).expect("small");
            ranges.push(start..start + unit);
        }
    }
    ranges
}

fn spoil_ids(fill: Fill, dtype: DType, rows: i64, ids: &mut [i64]) {
    // An id whose lower half alone would be right.
    let too_large = if dtype == DType::I64 { 1 << 32 } else { rows };
    match fill {
        Fill::IdTooLarge => ids.iter_mut().last().into_iter().for_each(|id| *id = too_large),
        Fill::IdNegative => ids.iter_mut().take(1).for_each(|id| *id = -1),
        Fill::IdsEqual => ids.fill(rows / 2),
        _ => {}
    }
}

fn spoil(fill: Fill, index: usize, dtype: DType, values: &mut [f32]) {
    let middle = values.len() / 2;
    let mut one = |value: f32| values.iter_mut().skip(middle).take(1).for_each(|v| *v = value);
    match (fill, index) {
        // Blocks cannot hold them: activations get them instead.
        (Fill::Nan, 0) if !dtype.is_block() => one(f32::NAN),
        (Fill::Infinity, 0) if !dtype.is_block() => one(f32::INFINITY),
        (Fill::Nan, 1) => one(f32::NAN),
        (Fill::Infinity, 1) if dtype == DType::F32 => one(f32::INFINITY),
        (Fill::NanSink, 2) => one(f32::NAN),
        (Fill::InfiniteSink, 2) => one(f32::INFINITY),
        (Fill::Specials, 0) => values.iter_mut().for_each(|v| *v = special(*v)),
        (Fill::Nans, 0) => values.fill(f32::NAN),
        (Fill::Equal, 0) => values.fill(0.1),
        (Fill::Huge, 0) => values.iter_mut().for_each(|v| *v *= 1.6e38),
        (Fill::Tiny, 0) => values.iter_mut().for_each(|v| *v *= 1e-39),
        (Fill::Offset, 0) => values.iter_mut().for_each(|v| *v += 30_000.0),
        (Fill::AllMasked | Fill::MaskedSinks, 0) | (Fill::MaskedSinks, 2) => values.fill(f32::NEG_INFINITY),
        (Fill::Extremes, 0) => values.iter_mut().zip(EXTREMES.iter().cycle()).for_each(|(v, &extreme)| *v = extreme),
        (Fill::Extremes, 1) => {
            let each = EXTREMES.iter().flat_map(|extreme| [extreme; EXTREMES.len()]);
            values.iter_mut().zip(each.cycle()).for_each(|(v, &extreme)| *v = extreme);
        }
        (Fill::MaskedNan, 0) => {
            values.fill(f32::NEG_INFINITY);
            values[middle] = f32::NAN;
        }
        _ => {}
    }
}

/// One of a few numbers that sort in a way of their own, by a number between -2 and 2.
fn special(v: f32) -> f32 {
    const SPECIALS: [f32; 8] = [-1.0, -0.0, 0.0, 1.0, 1.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
    // Steps of 1/256, all of them whole numbers.
    SPECIALS[(v.abs() * 256.0) as usize % SPECIALS.len()]
}

/// What is about whole rows of a mask, and of what it masks.
fn spoil_keys(fill: Fill, index: usize, content: Content, shape: Shape, values: &mut [f32]) {
    let [width, rows, ..] = shape.0.map(|axis| usize::try_from(axis).expect("small"));
    for plane in values.chunks_mut((width * rows).max(1)) {
        match (fill, content) {
            (Fill::MaskedByMask, Content::Mask) => plane.fill(f32::NEG_INFINITY),
            (Fill::MaskedQuery, Content::Mask) => plane[..width].fill(f32::NEG_INFINITY),
            (Fill::MaskedKeys, Content::Mask) => {
                plane.chunks_mut(width).for_each(|row| row[..width / 2].fill(f32::NEG_INFINITY));
            }
            (Fill::MaskedKeys, Content::Data) if index == 1 || index == 2 => plane[..width * (rows / 2)].fill(f32::NAN),
            _ => {}
        }
    }
}

/// Numbers that look random and are the same in every run.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        // The increment and the mixing of splitmix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Between −2 and 2, in steps that f16 holds exactly.
    fn float(&mut self) -> f32 {
        let steps = i16::try_from(self.next() % 1025).expect("small") - 512;
        f32::from(steps) / 256.0
    }

    fn integer(&mut self, below: i32) -> i32 {
        let below = u64::try_from(below.max(1)).expect("positive");
        i32::try_from(self.next() % below).expect("below an i32")
    }
}
