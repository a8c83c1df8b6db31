//! Entensor behind lines of text, in a process of its own: the same words as in the package `entensor-llamacpp`.

use std::{
    error::Error,
    io::{BufRead, Write},
    time::Instant,
};

use entensor::Engine;
use entensor_models::{LanguageModel, Session, SessionConfig};

/// The word that makes this program an engine: `--engine MODEL BACKEND CONTEXT`.
pub(crate) const ENGINE: &str = "--engine";

/// Answers lines until there are no more.
pub(crate) fn serve(words: &[String]) -> Result<(), Box<dyn Error>> {
    let [path, backend, context] = words else { return Err("usage: --engine MODEL BACKEND CONTEXT".into()) };
    let mut engine = Engine::builder().backend(backend.as_str()).build()?;
    let model = LanguageModel::load(&mut engine, path, |_| ())?;
    let config = SessionConfig { context: context.parse()?, ..SessionConfig::default() };
    let mut session = Session::new(&mut engine, &model, config)?;
    let vocabulary = u32::try_from(model.network().config().vocabulary)?;
    let id = |i: u32| i.wrapping_mul(2_654_435_761) % vocabulary;
    let mut out = std::io::stdout().lock();
    writeln!(out, "ready {backend}")?;
    out.flush()?;
    let mut ids = Vec::new();
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let (what, tokens) = line.split_once(' ').ok_or("a line is a word and a number")?;
        let tokens: u32 = tokens.parse()?;
        let start = Instant::now();
        let kept = match what {
            "prompt" => {
                session.truncate(0);
                ids.clear();
                ids.extend((0..tokens).map(id));
                if tokens > 0 {
                    session.feed(&mut engine, &model, &ids)?;
                }
                tokens
            }
            "decode" => {
                let from = session.position();
                (from..from + tokens).try_for_each(|i| session.feed(&mut engine, &model, &[id(i)]))?;
                from
            }
            other => return Err(format!("`{other}` is not known").into()),
        };
        let nanoseconds = start.elapsed().as_nanos();
        let logits = session.logits();
        let likeliest = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap_or(0);
        session.truncate(kept);
        writeln!(out, "{nanoseconds} {likeliest}")?;
        out.flush()?;
    }
    Ok(())
}
