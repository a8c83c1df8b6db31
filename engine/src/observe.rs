//! Watching a run node by node: an observer is asked about each node whether it wants its data, and is shown it as soon as
//! it is computed.

use std::{borrow::BorrowMut, ops::ControlFlow, sync::Arc};

use bevy_ecs::prelude::*;
use entensor_components::TensorRef;
use entensor_systems::{PlanError, PlanNode};

use crate::{
    engine::{Engine, GraphId},
    error::EngineError,
    walk::{Walk, without_holes},
};

/// Watches a run. Called on the thread that runs the graph, between its pieces, never while anything is under way.
pub trait NodeObserver {
    /// Whether the data of a node are wanted. Asked once for each node that computes, in order; about a node only after everything
    /// wanted of earlier ones was shown, so an answer may depend on it. Leaves and views compute nothing.
    fn wants(&mut self, node: &PlanNode<'_>) -> bool;

    /// Shows a node that was wanted, as soon as it is computed. A break stops everything: no later node runs, on no backend.
    fn see(&mut self, node: &NodeData<'_>) -> ControlFlow<()>;
}

/// A node that was just computed.
#[derive(Debug)]
pub struct NodeData<'a> {
    /// The node.
    pub node: PlanNode<'a>,
    /// The backend that computed it.
    pub backend: &'a str,
    /// Its elements in order, without holes.
    pub bytes: &'a [u8],
}

impl NodeData<'_> {
    /// The elements as f32, block dtypes decoded.
    #[must_use]
    pub fn to_f32(&self) -> Vec<f32> {
        let row = self.node.desc.dtype.row();
        let blocks = self.bytes.len() as u64 / row.block_bytes;
        let mut values = vec![0.0; usize::try_from(blocks * row.block_elements).unwrap_or(0)];
        (row.dequantize)(self.bytes, &mut values);
        values
    }
}

/// How a run that was watched ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedRun {
    /// The node at which the observer stopped it; `None` for a run that came to its end, whose outputs can be read.
    pub stopped_at: Option<Arc<str>>,
    /// In how many pieces it ran: one a split, and one more for each node that was wanted before the end of its split.
    pub pieces: u64,
}

impl<W: BorrowMut<World>> Engine<W> {
    /// Runs a graph as [`Self::run`] does, and lets an observer watch it. Splits are cut only behind nodes whose data are
    /// wanted. Blocks until done; makes plans, prepares pieces and allocates, so it is for looking, not for speed.
    ///
    /// After a stop, and after an error, the graph has no outputs; its inputs stay written, but for those that runs consume, and
    /// it can be run again. What a stopped run wrote into caches and other memory of the user's own stays written.
    ///
    /// # Errors
    /// As [`Self::run`].
    ///
    /// ```
    /// use std::ops::ControlFlow;
    /// use entensor::{DType, Engine, GraphBuilder, NodeData, NodeObserver, systems::PlanNode};
    ///
    /// struct Print;
    ///
    /// impl NodeObserver for Print {
    ///     fn wants(&mut self, node: &PlanNode<'_>) -> bool {
    ///         &**node.name == "squares"
    ///     }
    ///     fn see(&mut self, node: &NodeData<'_>) -> ControlFlow<()> {
    ///         assert_eq!(node.to_f32(), [1.0, 4.0, 9.0]);
    ///         ControlFlow::Break(())
    ///     }
    /// }
    ///
    /// let mut engine = Engine::builder().backend("cpu:threads=1").build()?;
    /// let mut g = GraphBuilder::new("example");
    /// let x = g.input("x", DType::F32, &[3])?;
    /// let squares = g.sqr(x)?;
    /// let squares = g.name("squares", squares)?;
    /// let y = g.neg(squares)?;
    /// g.output("y", y)?;
    /// let graph = engine.add_graph(g);
    /// engine.write(graph, x, &[1.0_f32, 2.0, 3.0])?;
    /// let run = engine.run_observed(graph, &mut Print)?;
    /// assert_eq!(run.stopped_at.as_deref(), Some("squares"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn run_observed(
        &mut self,
        graph: GraphId,
        observer: &mut dyn NodeObserver,
    ) -> Result<ObservedRun, EngineError> {
        let mut walk = self.begin_walk(graph)?;
        let run = observe(&mut walk, observer);
        // Whatever happened, nothing is under way when the caller goes on.
        let quiet = walk.synchronize();
        let run = run.and_then(|run| quiet.map(|()| run)).map_err(|error| self.walk_failed(graph, error))?;
        if run.stopped_at.is_none() {
            self.end_walk(graph, &walk);
        }
        Ok(run)
    }
}

fn observe(walk: &mut Walk, observer: &mut dyn NodeObserver) -> Result<ObservedRun, PlanError> {
    let plan = Arc::clone(&walk.plan);
    let mut run = ObservedRun { stopped_at: None, pieces: 0 };
    while let Some((split, done)) = walk.next_launch()? {
        let nodes = &plan.split_nodes(&plan.splits[split as usize])[done..];
        let wanted = nodes.iter().position(|&node| observer.wants(&plan.node(node as usize)));
        walk.launch(split, wanted.map_or(nodes.len(), |last| last + 1))?;
        run.pieces += 1;
        let Some(last) = wanted else { continue };
        let node = plan.node(nodes[last] as usize);
        let backend = &plan.backends[node.backend as usize].name;
        let failed = |source| PlanError::Run {
            step: split as usize,
            what: format!("read of `{}`", node.name),
            backend: Arc::clone(backend),
            source,
        };
        let place: TensorRef = plan
            .locate(nodes[last] as usize, walk.slot)
            .ok_or_else(|| PlanError::Unplaced { node: Arc::clone(node.name) })?;
        let bytes = without_holes(&node.desc, walk.read(&place).map_err(failed)?);
        if observer.see(&NodeData { node, backend, bytes: &bytes }).is_break() {
            run.stopped_at = Some(Arc::clone(node.name));
            break;
        }
    }
    Ok(run)
}
