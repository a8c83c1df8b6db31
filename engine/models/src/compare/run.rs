//! Running the models that are compared, a chunk of positions at a time.

use std::borrow::BorrowMut;

use bevy_ecs::prelude::World;
use entensor::Engine;

use super::{CHUNK_BYTES, Comparison, RecordedCase, check_vocabularies};
use crate::{LanguageModel, Logits, ModelError, Session, SessionConfig};

/// Compares two models of one engine over these tokens. `context` is the most that are read in one go; `progress` is told how many
/// tokens are done.
///
/// # Errors
/// Different vocabularies, no tokens, ids outside the vocabulary; or what the engine reports.
pub fn compare_models<W: BorrowMut<World>>(
    engine: &mut Engine<W>,
    a: &LanguageModel,
    b: &LanguageModel,
    tokens: &[u32],
    context: u32,
    mut progress: impl FnMut(u64),
) -> Result<Comparison, ModelError> {
    check_vocabularies(a.tokenizer(), b.tokenizer())?;
    if tokens.is_empty() {
        return Err(ModelError::NoTokens);
    }
    let config = session_config(context, tokens.len());
    let mut first = Session::new(engine, a, config)?;
    let mut second = match Session::new(engine, b, config) {
        Ok(second) => second,
        Err(error) => {
            first.remove(engine);
            return Err(error);
        }
    };
    let vocabulary = usize::try_from(a.network().config().vocabulary).unwrap_or(usize::MAX).max(1);
    let chunk = (CHUNK_BYTES / size_of::<f32>() / vocabulary).clamp(1, 64);
    let mut rows: Vec<f32> = Vec::new();
    let mut comparison = Comparison::default();
    let mut run = || {
        for part in tokens.chunks(config.context as usize) {
            first.truncate(0);
            second.truncate(0);
            for (i, fed) in part.chunks(chunk).enumerate() {
                rows.clear();
                first.feed_with(engine, a, fed, Logits::All, |_, row| rows.extend_from_slice(row))?;
                let mut of_first = rows.chunks(vocabulary);
                let mut following = part[i * chunk..].iter().skip(1).copied();
                second.feed_with(engine, b, fed, Logits::All, |_, row| {
                    comparison.add(of_first.next().unwrap_or_default(), row, following.next());
                })?;
                progress(comparison.positions());
            }
        }
        Ok(())
    };
    let result = run();
    first.remove(engine);
    second.remove(engine);
    result.map(|()| comparison)
}

/// Compares a model with recorded logits, running it over the recorded tokens.
///
/// # Errors
/// A record of another vocabulary, a case that does not fit into `context` tokens; or what the engine reports.
pub fn compare_recorded<W: BorrowMut<World>>(
    engine: &mut Engine<W>,
    recorded: &[RecordedCase],
    model: &LanguageModel,
    context: u32,
    mut progress: impl FnMut(u64),
) -> Result<Comparison, ModelError> {
    let vocabulary = model.network().config().vocabulary;
    for (i, case) in recorded.iter().enumerate() {
        case.check_ids(i, vocabulary)?;
    }
    let longest = recorded.iter().map(|case| case.prompt_ids.len()).max().unwrap_or(0);
    let mut session = Session::new(engine, model, session_config(context, longest))?;
    let mut comparison = Comparison::default();
    let result = recorded.iter().filter(|case| !case.prompt_ids.is_empty()).try_for_each(|case| {
        session.truncate(0);
        let mut positions = case.positions.iter();
        let mut following = case.prompt_ids.iter().skip(1).copied();
        session.feed_with(engine, model, &case.prompt_ids, Logits::All, |_, row| {
            if let Some(position) = positions.next() {
                comparison.add_recorded(position, row, following.next());
            }
        })?;
        progress(comparison.positions());
        Ok(())
    });
    session.remove(engine);
    result.map(|()| comparison)
}

/// No cache is larger than what is read.
fn session_config(context: u32, tokens: usize) -> SessionConfig {
    let tokens = u32::try_from(tokens).unwrap_or(u32::MAX).max(1);
    SessionConfig { context: context.min(tokens), ..SessionConfig::default() }
}
