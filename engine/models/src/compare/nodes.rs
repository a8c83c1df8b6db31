//! A model's step on two engines, node by node.

use std::borrow::BorrowMut;

use bevy_ecs::prelude::World;
use entensor::{Engine, GraphComparison, compare_graphs};

use crate::{LanguageModel, Logits, ModelError, Session, SessionConfig};

/// Feeds tokens, all at once, to an empty conversation on two engines, and says how far they are apart at every node; see
/// [`compare_graphs`]. The model is that of the first engine; the second gets a copy of its weights. Every token has logits.
///
/// # Errors
/// No tokens, more than run at once, ids outside the vocabulary; or what the engines report.
pub fn compare_nodes<A: BorrowMut<World>, B: BorrowMut<World>>(
    a: &mut Engine<A>,
    b: &mut Engine<B>,
    model: &LanguageModel,
    tokens: &[u32],
) -> Result<GraphComparison, ModelError> {
    let context = u32::try_from(tokens.len()).unwrap_or(u32::MAX).max(1);
    let mut session = Session::new(a, model, SessionConfig { context, ..SessionConfig::default() })?;
    let mut run = || {
        let graph = session.stage(a, model, tokens, Logits::All)?;
        let host = b.host();
        let copy = a.copy_graph(graph, b, host)?;
        let comparison = compare_graphs((a, graph), (b, copy.graph));
        copy.remove(b);
        Ok(comparison?)
    };
    let result = run();
    session.remove(a);
    result
}
