//! Neighbouring nodes as one step, where what lies between them is nobody else's: norms with the sum before them and the product behind
//! them, and gates that are rounded for a product as they are computed.
//!
//! Every element is computed by the same operations as without, so no bit changes; it is moved less often.

use entensor_components::{BackendError, DType, NodeDesc, Op, SplitView};

use super::{
    Builder,
    chain::Function,
    nodes::{cost, whole_rows},
    products::few_activations,
};
use crate::{
    kernels::{Activations, Gate, Kernel, RmsNorm, panel_activations},
    place::{Place, Region},
};

/// How many nodes are looked at for those that read a result; what is still there then counts as read.
const LOOK_AHEAD: usize = 64;

/// Whether a node from `first` on may read a region before another overwrites it.
pub(super) fn is_read_from(split: &dyn SplitView, first: usize, region: &Region) -> bool {
    let end = split.len().min(first + LOOK_AHEAD);
    for index in first..end {
        let node = split.node(index);
        if node.operands.iter().filter_map(Place::new).any(|operand| operand.region().overlaps(region)) {
            return true;
        }
        if Place::new(&node.output).is_some_and(|out| out.overwrites(region)) {
            return false;
        }
    }
    end < split.len()
}

/// Whether only the next node reads the result of a node.
fn is_only_for_next(split: &dyn SplitView, index: usize, out: &Place) -> bool {
    if split.is_read_elsewhere(index) {
        return false;
    }
    let region = out.region();
    let next_overwrites = Place::new(&split.node(index + 1).output).is_some_and(|out| out.overwrites(&region));
    next_overwrites || !is_read_from(split, index + 2, &region)
}

/// The node at an index, its operands' places and its result's, all of f32 in packed rows.
struct Rows {
    node: NodeDesc,
    operands: [Place; 2],
    out: Place,
}

impl Rows {
    /// `None` for nodes of anything else, without elements, or of more operands than two.
    fn of(split: &dyn SplitView, index: usize) -> Option<Self> {
        if index >= split.len() {
            return None;
        }
        let node = split.node(index);
        let is_plain = |place: &Place| place.dtype == DType::F32 && place.is_row_packed() && !place.is_empty();
        let place = |tensor| Place::new(tensor).filter(is_plain);
        let out = place(&node.output).filter(Place::is_injective)?;
        let operands = match &node.operands[..] {
            [one] => [place(one)?; 2],
            [one, two] => [place(one)?, place(two)?],
            _ => return None,
        };
        Some(Self { node, operands, out })
    }
}

/// Whether rows may be gone through one after the other: a row that is written is the same row of what is read, or nobody's.
fn goes_by_rows(written: &[Place], read: &[Place]) -> bool {
    let keeps_apart = |write: &Place, other: &Place| write == other || !write.region().overlaps(&other.region());
    written.iter().all(|write| read.iter().chain(written).all(|other| keeps_apart(write, other)))
}

impl Builder {
    /// Lowers nodes from `first` on as one step, if they are of a kind for which there is one, and says how many they are.
    pub(super) fn lower_fused(&mut self, split: &dyn SplitView, first: usize) -> Result<usize, BackendError> {
        match &split.node(first).op {
            Op::Add {} | Op::RmsNorm { .. } => self.lower_norm(split, first),
            Op::Swiglu {} | Op::Geglu {} | Op::Reglu {} | Op::Mul {} => self.lower_gate(split, first),
            _ => Ok(0),
        }
    }

    /// `rms_norm`, and before it the sum that it is of, and behind it the product with a row that all rows share.
    fn lower_norm(&mut self, split: &dyn SplitView, first: usize) -> Result<usize, BackendError> {
        let add = Rows::of(split, first).filter(|rows| rows.node.op == (Op::Add {}));
        let add = add.filter(|add| add.operands.iter().all(|operand| operand.shape == add.out.shape));
        let at = first + usize::from(add.is_some());
        let Some(norm) = Rows::of(split, at) else { return Ok(0) };
        let (Op::RmsNorm { eps }, x) = (&norm.node.op, norm.operands[0]) else { return Ok(0) };
        let mul = Rows::of(split, at + 1).filter(|mul| {
            let by = &mul.operands[1];
            mul.node.op == (Op::Mul {})
                && mul.operands[0] == norm.out
                && by.shape == [norm.out.shape[0], 1, 1, 1]
                && mul.out.shape == norm.out.shape
                && is_only_for_next(split, at, &norm.out)
        });
        if add.as_ref().is_some_and(|add| add.out != x) || add.is_none() && mul.is_none() {
            return Ok(0);
        }
        let out = mul.as_ref().map_or(norm.out, |mul| mul.out);
        let sum = add.as_ref().map(|add| add.operands);
        let by = mul.as_ref().map(|mul| mul.operands[1]);
        let writes: Vec<Place> = add.iter().map(|_| x).chain([out]).collect();
        let by_rows: Vec<Place> = sum.iter().flatten().copied().chain([x]).collect();
        let is_taken = |by: &Place| writes.iter().chain([&norm.out]).any(|out| out.region().overlaps(&by.region()));
        // The sum is wanted as well as what is made of it, so both cannot be in one place.
        let is_lost = add.is_some() && out.region().overlaps(&x.region());
        if !goes_by_rows(&writes, &by_rows) || by.as_ref().is_some_and(is_taken) || is_lost {
            return Ok(0);
        }
        let nodes: Vec<&NodeDesc> = add.iter().chain([&norm]).chain(&mul).map(|rows| &rows.node).collect();
        for (offset, node) in nodes.iter().enumerate() {
            self.node = first + offset;
            self.check(node)?;
        }
        self.node = first;
        let grid = whole_rows(&out, out.shape[0], cost::NORM);
        let kernel = Kernel::RmsNorm(RmsNorm { eps: *eps, sum, x, by, out, grid });
        let reads: Vec<Place> = by_rows.into_iter().chain(by).collect();
        self.push_writing(kernel, grid.chunks(), &reads, &writes, out.elements().saturating_mul(cost::NORM));
        Ok(nodes.len())
    }

    /// A function of two operands whose result only a product reads, which wants it rounded.
    fn lower_gate(&mut self, split: &dyn SplitView, first: usize) -> Result<usize, BackendError> {
        if first + 1 >= split.len() {
            return Ok(0);
        }
        let Some(gate) = Rows::of(split, first) else { return Ok(0) };
        let product = split.node(first + 1);
        if product.op != (Op::MulMat {}) || product.operands[1] != gate.node.output || gate.node.operands.len() != 2 {
            return Ok(0);
        }
        let (Some(weights), Some(out)) = (Place::new(&product.operands[0]), Place::new(&product.output)) else {
            return Ok(0);
        };
        let rows = gate.out.shape[1];
        let form = panel_activations(self.level, weights.dtype, rows).unwrap_or(few_activations(weights.dtype));
        let is_rounded = rows > 1 && form != Activations::Plain;
        let same_shape = gate.operands.iter().all(|operand| operand.shape == gate.out.shape);
        // Where the product takes over their memory, a run could not be left while it is computed: they could not be rounded again.
        let apart = gate.operands.iter().all(|operand| !operand.region().overlaps(&out.region()));
        let unwritten = |place: &Place| place.region().overlaps(&gate.out.region());
        let is_fit = is_rounded && same_shape && apart && !out.is_empty() && !unwritten(&weights) && !unwritten(&out);
        if !is_fit || !is_only_for_next(split, first, &gate.out) {
            return Ok(0);
        }
        self.node = first;
        self.check(&gate.node)?;
        self.function = Some(None);
        self.lower_op(&gate.node.op, &gate.operands, gate.out)?;
        let Some(Function::Two(f)) = self.function.take().flatten() else {
            unreachable!("ops that are gates here are functions of two elements")
        };
        // No step writes the result, and yet what was made of its bytes before is no longer true.
        self.forget(&gate.out.region());
        self.gate = Some((gate.out, Gate { f, x: gate.operands[0], with: gate.operands[1] }));
        self.node = first + 1;
        self.lower_node(&product)?;
        assert!(self.gate.is_none(), "a product that wants its activations rounded takes the gate");
        Ok(2)
    }
}
