//! Comparing what two engines compute for one graph, node by node.
//!
//! A node's **NMSE** is the sum of squared differences of the two results over the sum of squares of the first. It is taken in two ways:
//!
//! - **node by node**: the second side gets the first side's operands for every node, so each figure is about that node alone;
//! - **whole**: each side goes on with its own results, so differences add up along the graph, as they do in a run.
//!
//! The tolerance of a node, [`Tolerance::max_nmse`], is for the first.

use std::{borrow::BorrowMut, fmt, sync::Arc};

use bevy_ecs::prelude::*;
use entensor_components::{DType, DeviceBuffer, OpKind, TensorDesc, Tolerance};
use entensor_systems::{Plan, PlanError};

use crate::{
    engine::{Engine, GraphId},
    error::EngineError,
    walk::{Walk, without_holes, zeroed},
};

/// How far two sides are apart at a node.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeDifference {
    /// The node.
    pub node: Arc<str>,
    /// Its op.
    pub op: OpKind,
    /// Where the first side computes it.
    pub backend_a: Arc<str>,
    /// Where the second side computes it.
    pub backend_b: Arc<str>,
    /// With the first side's operands on both.
    pub nmse: f64,
    /// With each side's own operands.
    pub whole_nmse: f64,
    /// The most that the op table allows for `nmse`.
    pub max_nmse: f64,
}

impl NodeDifference {
    /// Whether the difference is more than the op table allows.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.nmse.is_nan() || self.nmse > self.max_nmse
    }
}

/// How far two sides are apart, at every node that computes, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GraphComparison {
    /// The nodes.
    pub nodes: Vec<NodeDifference>,
}

impl GraphComparison {
    /// The nodes, the worst first; of equals, the earlier first.
    #[must_use]
    pub fn worst_first(&self) -> Vec<&NodeDifference> {
        let mut nodes: Vec<&NodeDifference> = self.nodes.iter().collect();
        // NaN is worse than any number.
        nodes.sort_by(|a, b| b.nmse.abs().total_cmp(&a.nmse.abs()));
        nodes
    }

    /// How many nodes are apart by more than the op table allows.
    #[must_use]
    pub fn over(&self) -> usize {
        self.nodes.iter().filter(|node| node.is_over()).count()
    }
}

/// `27 nodes, worst NMSE 1.250e-9 at ffn_out, 0 over`.
impl fmt::Display for GraphComparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let worst = self.worst_first().first().map_or((0.0, "-"), |worst| (worst.nmse, &*worst.node));
        write!(f, "{} nodes, worst NMSE {:.3e} at {}, {} over", self.nodes.len(), worst.0, worst.1, self.over())
    }
}

/// Squared differences over squares.
#[must_use]
pub fn nmse(a: &[f64], b: &[f64]) -> f64 {
    let (mut difference, mut magnitude) = (0.0, 0.0);
    for (&a, &b) in a.iter().zip(b) {
        // Equal infinities and two that are no numbers are no difference; whatever else is not finite makes the sum so.
        if a == b || (a.is_nan() && b.is_nan()) {
            magnitude += if a.is_finite() { a * a } else { 0.0 };
            continue;
        }
        if !(a.is_finite() && b.is_finite()) {
            return f64::INFINITY;
        }
        difference += (a - b) * (a - b);
        magnitude += a * a;
    }
    if difference == 0.0 { 0.0 } else { difference / magnitude }
}

/// The elements of a result as numbers.
fn numbers(desc: &TensorDesc, span: Vec<u8>) -> Vec<f64> {
    let bytes = without_holes(desc, span);
    match desc.dtype {
        // As f32, neighbours of large integers would be the same.
        DType::I32 => bytes.as_chunks::<4>().0.iter().map(|b| f64::from(i32::from_le_bytes(*b))).collect(),
        DType::I64 => bytes.as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b) as f64).collect(),
        dtype => {
            let row = dtype.row();
            let mut values = vec![0.0_f32; bytes.len() / row.block_bytes as usize * row.block_elements as usize];
            (row.dequantize)(&bytes, &mut values);
            values.into_iter().map(f64::from).collect()
        }
    }
}

/// The bytes of the buffers that a run may write, to begin again with.
struct Snapshot(Vec<(Arc<DeviceBuffer>, Vec<u8>)>);

impl Snapshot {
    fn take(walk: &Walk) -> Result<Self, EngineError> {
        let written = walk.plan.existing.iter().zip(walk.existing());
        let written =
            written.filter(|(planned, _)| !planned.read_only && planned.usage != entensor_components::Usage::Weights);
        let saved = written.map(|(planned, buffer)| {
            let read = zeroed(buffer.size_bytes()).and_then(|mut bytes| {
                buffer.backend().read(buffer.memory(), 0, &mut bytes)?;
                Ok(bytes)
            });
            let failed = |source| EngineError::Backend { what: Arc::clone(&planned.name), source };
            read.map(|bytes| (Arc::clone(buffer), bytes)).map_err(failed)
        });
        saved.collect::<Result<_, _>>().map(Self)
    }

    fn restore(&self) -> Result<(), EngineError> {
        self.0.iter().try_for_each(|(buffer, bytes)| {
            let written = buffer.backend().write(buffer.memory(), 0, bytes);
            written.map_err(|source| EngineError::Backend { what: "a buffer of the compared graph".into(), source })
        })
    }
}

/// What both sides made of a node.
type Pair = (Vec<f64>, Vec<f64>);

/// Runs a graph on both sides and says how far they are apart at every node. The second graph is a copy of the first
/// ([`Engine::copy_graph`]), on whatever backends. Both must have their inputs written, with the same values.
///
/// Runs the graph twice on each side, a node at a time. Caches and other memory that the graphs write are afterwards as they were before;
/// outputs cannot be read.
///
/// # Errors
/// [`EngineError::NotAlike`] for graphs that are not copies; planning errors, an input that was not written, or what a backend reports.
pub fn compare_graphs<A: BorrowMut<World>, B: BorrowMut<World>>(
    a: (&mut Engine<A>, GraphId),
    b: (&mut Engine<B>, GraphId),
) -> Result<GraphComparison, EngineError> {
    let ((a, graph_a), (b, graph_b)) = (a, b);
    let walks =
        |a: &mut Engine<A>, b: &mut Engine<B>| Ok::<_, EngineError>((a.begin_walk(graph_a)?, b.begin_walk(graph_b)?));
    let (mut on_a, mut on_b) = walks(a, b)?;
    check_alike(&on_a.plan, &on_b.plan)?;
    let (saved_a, saved_b) = (Snapshot::take(&on_a)?, Snapshot::take(&on_b)?);
    let mut comparison = GraphComparison::default();
    let by_node = node_by_node(&mut on_a, &mut on_b, |plans, node, (of_a, of_b)| {
        comparison.nodes.push(difference(plans, node, nmse(&of_a, &of_b)));
    });
    saved_a.restore()?;
    saved_b.restore()?;
    by_node.map_err(|error| a.walk_failed(graph_a, error))?;
    let (mut on_a, mut on_b) = walks(a, b)?;
    let mut nodes = comparison.nodes.iter_mut();
    let whole = side_by_side(&mut on_a, &mut on_b, |(of_a, of_b)| {
        if let Some(node) = nodes.next() {
            node.whole_nmse = nmse(&of_a, &of_b);
        }
    });
    saved_a.restore()?;
    saved_b.restore()?;
    whole.map_err(|error| a.walk_failed(graph_a, error))?;
    Ok(comparison)
}

fn check_alike(a: &Plan, b: &Plan) -> Result<(), EngineError> {
    let (left, right) = (&*a.table, &*b.table);
    let alike = |node: usize| {
        left.ops[node] == right.ops[node]
            && left.descs[node] == right.descs[node]
            && left.sources.of(node) == right.sources.of(node)
            && left.roots.root[node] == right.roots.root[node]
            && left.roots.offset_bytes[node] == right.roots.offset_bytes[node]
    };
    if left.len() != right.len() {
        let node = left.names.last().cloned().unwrap_or_else(|| "-".into());
        return Err(EngineError::NotAlike { node, rule: "one graph has more nodes than the other" });
    }
    match (0..left.len()).find(|&node| !alike(node)) {
        Some(node) => {
            let rule = "op, shape, dtype, layout and operands must be the same in both";
            Err(EngineError::NotAlike { node: Arc::clone(&left.names[node]), rule })
        }
        None => Ok(()),
    }
}

fn difference((a, b): (&Plan, &Plan), node: usize, nmse: f64) -> NodeDifference {
    let of_a = a.node(node);
    let dtype = |&source: &u32| a.table.descs[source as usize].dtype;
    let operands: Vec<DType> = of_a.sources.iter().map(dtype).collect();
    let tolerance: Tolerance = of_a.op.row().tolerance;
    NodeDifference {
        node: Arc::clone(of_a.name),
        op: of_a.op.kind(),
        backend_a: Arc::clone(&a.backends[of_a.backend as usize].name),
        backend_b: Arc::clone(&b.backends[b.placements[node] as usize].name),
        nmse,
        whole_nmse: 0.0,
        max_nmse: tolerance.max_nmse(&operands, of_a.desc.dtype),
    }
}

fn failed(walk: &Walk, node: usize, what: &str, source: entensor_components::BackendError) -> PlanError {
    let plan = &walk.plan;
    PlanError::Run {
        step: plan.split_of(node).unwrap_or(0) as usize,
        what: format!("{what} of `{}`", plan.table.names[node]),
        backend: Arc::clone(&plan.backends[plan.placements[node] as usize].name),
        source,
    }
}

/// A node's result on one side.
fn result(walk: &Walk, node: usize) -> Result<Vec<f64>, PlanError> {
    let unplaced = || PlanError::Unplaced { node: Arc::clone(&walk.plan.table.names[node]) };
    let place = walk.plan.locate(node, walk.slot).ok_or_else(unplaced)?;
    let span = walk.read(&place).map_err(|source| failed(walk, node, "read", source))?;
    Ok(numbers(&place.desc, span))
}

/// Gives the second side what the first reads for a node.
fn give_operands(a: &Walk, b: &Walk, node: usize) -> Result<(), PlanError> {
    for &source in a.plan.table.sources.of(node) {
        let unplaced = || PlanError::Unplaced { node: Arc::clone(&a.plan.table.names[source as usize]) };
        let from = a.plan.locate_read(source, a.plan.placements[node], a.slot).ok_or_else(unplaced)?;
        let to = b.plan.locate_read(source, b.plan.placements[node], b.slot).ok_or_else(unplaced)?;
        if b.is_constant(&to) {
            continue;
        }
        let bytes = a.read(&from).map_err(|source| failed(a, node, "operands", source))?;
        b.write(&to, &bytes).map_err(|source| failed(b, node, "operands", source))?;
    }
    Ok(())
}

/// The first side's run; the second computes each node from the first's operands.
///
/// The second side's plan says where its operands lie: what a node reads is alive there when it runs, whoever wrote it. What is between the
/// elements of a view is other elements of its root, and the first side has those too.
fn node_by_node(
    a: &mut Walk,
    b: &mut Walk,
    mut each: impl FnMut((&Plan, &Plan), usize, Pair),
) -> Result<(), PlanError> {
    while let Some((split, done)) = a.next_launch()? {
        let node = a.plan.split_nodes(&a.plan.splits[split as usize])[done] as usize;
        // Before it runs: it may take the memory of an operand.
        give_operands(a, b, node)?;
        let unplaced = || PlanError::Unplaced { node: Arc::clone(&b.plan.table.names[node]) };
        let split_b = b.plan.split_of(node).ok_or_else(unplaced)?;
        let of_split = b.plan.split_nodes(&b.plan.splits[split_b as usize]);
        let at = of_split.iter().position(|&other| other as usize == node).ok_or_else(unplaced)?;
        a.launch(split, 1)?;
        b.run_part(split_b, at..at + 1)?;
        each((&a.plan, &b.plan), node, (result(a, node)?, result(b, node)?));
    }
    Ok(())
}

/// Both sides' runs, each with its own results.
fn side_by_side(a: &mut Walk, b: &mut Walk, mut each: impl FnMut(Pair)) -> Result<(), PlanError> {
    loop {
        let (Some(next_a), Some(next_b)) = (a.next_launch()?, b.next_launch()?) else { return Ok(()) };
        let node = |walk: &Walk, (split, done): (u32, usize)| {
            walk.plan.split_nodes(&walk.plan.splits[split as usize])[done] as usize
        };
        // Nodes come in creation order on any machine.
        let (node_a, node_b) = (node(a, next_a), node(b, next_b));
        a.launch(next_a.0, 1)?;
        b.launch(next_b.0, 1)?;
        each((result(a, node_a)?, result(b, node_b)?));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nmse_is_that_by_hand() {
        assert_eq!(nmse(&[3.0, 4.0], &[3.0, 5.0]), 1.0 / 25.0);
        assert_eq!(nmse(&[], &[]), 0.0);
        assert_eq!(nmse(&[0.0], &[0.0]), 0.0);
        assert_eq!(nmse(&[0.0], &[1e-9]), f64::INFINITY);
        let infinite = f64::NEG_INFINITY;
        assert_eq!(nmse(&[infinite, f64::NAN, 1.0], &[infinite, f64::NAN, 1.0]), 0.0);
        assert_eq!(nmse(&[infinite, 1.0], &[1.0, 1.0]), f64::INFINITY);
        assert_eq!(nmse(&[1.0, 1.0], &[f64::NAN, 1.0]), f64::INFINITY);
    }

    #[test]
    fn the_last_line_names_the_worst() {
        let node = |name: &str, nmse| NodeDifference {
            node: name.into(),
            op: OpKind::MulMat,
            backend_a: "cpu".into(),
            backend_b: "gemm".into(),
            nmse,
            whole_nmse: 0.0,
            max_nmse: 1e-6,
        };
        let mut comparison = GraphComparison { nodes: vec![node("a", 1e-9), node("b", 1.25e-7), node("c", 0.0)] };
        assert_eq!(comparison.to_string(), "3 nodes, worst NMSE 1.250e-7 at b, 0 over");
        comparison.nodes.push(node("d", f64::INFINITY));
        comparison.nodes.push(node("e", f64::NAN));
        assert_eq!(comparison.over(), 2);
        assert_eq!(&*comparison.worst_first()[0].node, "e");
        assert_eq!(GraphComparison::default().to_string(), "0 nodes, worst NMSE 0.000e0 at -, 0 over");
    }
}
