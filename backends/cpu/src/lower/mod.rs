//! From a split's nodes to steps: checked places, kernels with fixed chunk grids, and which steps must be complete
//! before each may start.

mod attention;
mod chain;
mod elementwise;
mod experts;
mod fills;
mod fused;
mod hazards;
mod indexing;
mod mat_vec;
mod movement;
mod nodes;
mod products;
mod recurrent;
mod reductions;
mod spatial;

use std::sync::Arc;

use entensor_components::{BackendError, DType, NodeDesc, OpDesc, SplitView, Support, TensorDesc};
use smallvec::SmallVec;

use crate::{
    bind,
    kernels::{Activations, Gate, Kernel, MatVec},
    place::{Place, Region},
    simd::{AnyLevel, Pairing},
    support::{reads_repacked, support},
    walk::StepShape,
};

/// One kernel of a program.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) kernel: Kernel,
    pub(crate) shape: StepShape,
    /// The node it belongs to.
    pub(crate) node: usize,
    /// The regions of work memory that it reads and writes.
    work: fills::Uses,
}

/// What a node reads.
#[derive(Debug)]
pub(crate) struct Operand {
    pub(crate) place: Place,
    pub(crate) node: usize,
    pub(crate) op: &'static str,
    /// Whether the node reads it in the private layout where its memory has one.
    pub(crate) repacked: bool,
}

/// A split, ready to run on any memories that are large enough.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) steps: Vec<Step>,
    pub(crate) names: Vec<Arc<str>>,
    pub(crate) uses: Vec<entensor_components::SlotUse>,
    /// What nodes read, as the split has it: whether a run's memory has it in a layout that they know is checked when it is bound.
    pub(crate) operands: Vec<Operand>,
    /// Slots that a run is given; work memory comes behind them.
    pub(crate) slots: usize,
    /// Bytes of each region of work memory.
    pub(crate) work_bytes: Vec<usize>,
    /// What a run costs, in bytes moved or as much arithmetic.
    pub(crate) cost: usize,
}

impl Program {
    /// Calls `again` with the steps to do over before a run goes on inside a step, where all of work memory is lost.
    pub(crate) fn refill(&self, step: usize, again: impl FnMut(usize)) {
        fills::refill(&self.steps, step, again);
    }
}

/// Regions of work memory. Nodes reuse them one after the other; the hazards between steps keep them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Activations, rounded or packed.
    Activations,
    /// Single rows of activations, rounded.
    Vectors(Pairing),
    /// Weights, packed.
    Weights,
    /// Sines and cosines.
    Angles,
    /// Keys that are sorted, and sums of parts.
    Scratch,
    /// Which rows of activations want which expert.
    Routes,
    /// Activations in that order, rounded or packed.
    Gathered,
    /// What attention has gathered of parts of the keys.
    Partials,
    /// The n-th operand, where it shares bytes with the result in a way that kernels cannot follow.
    Operand(usize),
}

impl Work {
    fn index(self) -> usize {
        match self {
            Self::Activations => 0,
            Self::Weights => 1,
            Self::Angles => 2,
            Self::Scratch => 3,
            Self::Routes => 4,
            Self::Gathered => 5,
            Self::Partials => 6,
            Self::Vectors(pairing) => 7 + pairing as usize,
            Self::Operand(operand) => 9 + operand,
        }
    }
}

/// Which angles lie in work memory.
#[derive(Debug, PartialEq)]
struct AnglesKey {
    positions: Place,
    factors: Option<Place>,
    frequencies: Box<[f64]>,
    kinds: Option<Box<[u8]>>,
    magnitude: f64,
}

/// A program in the making.
pub(crate) struct Builder {
    program: Program,
    hazards: hazards::Hazards,
    fills: fills::Fills,
    /// Whose rows lie in [`Work::Activations`], and how.
    activations: Option<(Place, Activations)>,
    vectors: mat_vec::VectorsInWork,
    angles: Option<AnglesKey>,
    routes: experts::RoutesInWork,
    /// While an op is asked for the function that it applies to elements: the answer, in place of a step.
    function: Option<Option<chain::Function>>,
    /// Activations of the product that comes next that are not written anywhere, and what they are made of.
    gate: Option<(Place, Gate)>,
    node: usize,
    level: AnyLevel,
}

/// Lowers a split for a level.
pub(crate) fn lower(split: &dyn SplitView, level: AnyLevel) -> Result<Program, BackendError> {
    let slots = split.memory_slots() as usize;
    let program = Program {
        steps: Vec::with_capacity(split.len()),
        names: Vec::with_capacity(split.len()),
        uses: Vec::new(),
        operands: Vec::new(),
        slots,
        work_bytes: Vec::new(),
        cost: 0,
    };
    let mut builder = Builder {
        program,
        hazards: hazards::Hazards::default(),
        fills: fills::Fills::new(slots),
        activations: None,
        vectors: mat_vec::VectorsInWork::default(),
        angles: None,
        routes: experts::RoutesInWork::default(),
        function: None,
        gate: None,
        node: 0,
        level,
    };
    let mut index = 0;
    while index < split.len() {
        builder.node = index;
        let mut together = builder.lower_chain(split, index)?;
        if together == 0 {
            together = builder.lower_fused(split, index)?;
        }
        if together == 0 {
            builder.lower_node(&split.node(index))?;
            together = 1;
        }
        builder.program.names.extend((index..index + together).map(|index| split.node(index).name));
        index += together;
    }
    fills::hold(&mut builder.program.steps, builder.fills);
    MatVec::set_fetch(builder.program.steps.iter_mut().filter_map(|step| match &mut step.kernel {
        Kernel::MatVec(product) => Some(product),
        _ => None,
    }));
    Ok(builder.program)
}

fn refused(node: &NodeDesc, reason: impl Into<String>) -> BackendError {
    BackendError::UnsupportedNode { node: Arc::clone(&node.name), op: node.op.row().name, reason: reason.into() }
}

impl Builder {
    /// Checks a node, and notes what it uses: its operands and its result.
    fn check(&mut self, node: &NodeDesc) -> Result<(SmallVec<[Place; 4]>, Place), BackendError> {
        let descs: SmallVec<[TensorDesc; 4]> = node.operands.iter().map(|o| o.desc).collect();
        let desc = OpDesc { op: &node.op, output: node.output.desc, operands: &descs };
        if let Support::No(reason) = support(&desc) {
            return Err(refused(node, reason));
        }
        let row = node.op.row();
        if row.writes.is_some_and(|written| node.operands[written] != node.output) {
            return Err(refused(node, "the result of a writer must be its target"));
        }
        let slots = self.program.slots;
        let place = |tensor| {
            let place = Place::new(tensor).ok_or_else(|| refused(node, "a tensor's end overflows"))?;
            if place.slot < slots {
                Ok(place)
            } else {
                Err(refused(node, "a memory slot that the split does not have"))
            }
        };
        let out = place(&node.output)?;
        bind::note(&mut self.program.uses, &out, true);
        let mut operands: SmallVec<[Place; 4]> = SmallVec::new();
        for (index, tensor) in node.operands.iter().enumerate() {
            let operand = place(tensor)?;
            bind::note(&mut self.program.uses, &operand, false);
            let repacked = reads_repacked(node.op.kind(), index, &tensor.desc);
            let op = row.name;
            self.program.operands.push(Operand { place: operand, node: self.node, op, repacked });
            operands.push(operand);
        }
        Ok((operands, out))
    }

    /// Checks a node, notes what it uses, copies operands that the result would overwrite too early, and lowers the op.
    fn lower_node(&mut self, node: &NodeDesc) -> Result<(), BackendError> {
        let row = node.op.row();
        let (mut operands, out) = self.check(node)?;
        for (index, operand) in operands.iter_mut().enumerate() {
            let taken_over = *operand == out && row.overwrites.contains(&index);
            if row.writes != Some(index) && !taken_over && operand.region().overlaps(&out.region()) {
                let copy = self.work(Work::Operand(index), operand.dtype, operand.shape)?;
                self.copy_rows(*operand, copy);
                *operand = copy;
            }
        }
        self.lower_op(&node.op, &operands, out)
    }

    /// A packed place in work memory.
    fn work(&mut self, region: Work, dtype: DType, shape: [usize; 4]) -> Result<Place, BackendError> {
        let index = region.index();
        let place = Place::packed(self.program.slots + index, dtype, shape)
            .ok_or(BackendError::OutOfMemory { size_bytes: u64::MAX })?;
        let sizes = &mut self.program.work_bytes;
        if sizes.len() <= index {
            sizes.resize(index + 1, 0);
        }
        sizes[index] = sizes[index].max(place.region().end);
        Ok(place)
    }

    /// Appends a step. `cost` is for the whole step, in bytes moved or as much arithmetic.
    fn push(&mut self, kernel: Kernel, chunks: usize, reads: &[Place], write: Option<&Place>, cost: usize) {
        self.push_writing(kernel, chunks, reads, write.map_or(&[], std::slice::from_ref), cost);
    }

    /// As [`Self::push`], for steps that write several places.
    fn push_writing(&mut self, kernel: Kernel, chunks: usize, reads: &[Place], writes: &[Place], cost: usize) {
        if chunks == 0 {
            return;
        }
        let after = self.hazards.note(reads.iter().map(Place::region), writes.iter().map(Place::region));
        let work = self.fills.note(reads.iter().map(Place::region), writes.iter().map(Place::region));
        for write in writes {
            self.forget(&write.region());
        }
        let shape = StepShape { chunks, together: kernel.chunks_together(), after, ..StepShape::default() };
        self.program.steps.push(Step { kernel, shape, node: self.node, work });
        self.program.cost = self.program.cost.saturating_add(cost);
    }

    /// What was derived from bytes that are written now is no longer true.
    fn forget(&mut self, write: &Region) {
        if self.activations.is_some_and(|(of, _)| of.region().overlaps(write)) {
            self.activations = None;
        }
        self.vectors.forget(write);
        let stale = |of: &Place| of.region().overlaps(write);
        if self.angles.as_ref().is_some_and(|key| stale(&key.positions) || key.factors.as_ref().is_some_and(stale)) {
            self.angles = None;
        }
        self.routes.forget(write);
    }
}
