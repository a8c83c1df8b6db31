//! How long a prompt goes on after `cancel()`, on a real model: the call comes at times all over the prompt.
//!
//! ```text
//! cargo run --release -p entensor-models --example cancel_latency -- MODEL.gguf [THREADS [CANCELS]]
//! ```

use std::{
    error::Error,
    thread,
    time::{Duration, Instant},
};

use entensor::{CancelToken, Engine, EngineError};
use entensor_models::{LanguageModel, ModelError, Session, SessionConfig};

/// Tokens of the prompt: four micro-batches.
const PROMPT_TOKENS: u32 = 2000;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("usage: cancel_latency MODEL.gguf [THREADS [CANCELS]]")?;
    let threads: usize = args.next().map_or(Ok(2), |text| text.parse())?;
    let cancels: u32 = args.next().map_or(Ok(50), |text| text.parse())?;
    let mut engine = Engine::builder().backend(format!("cpu:threads={threads}")).build()?;
    let model = LanguageModel::load(&mut engine, &path, |_| ())?;
    let vocabulary = u32::try_from(model.network().config().vocabulary)?;
    let prompt: Vec<u32> = (0..PROMPT_TOKENS).map(|i| (1000 + i * 37 % 4000) % vocabulary).collect();
    let config = SessionConfig { context: PROMPT_TOKENS, ..SessionConfig::default() };
    let mut session = Session::new(&mut engine, &model, config)?;
    // The first prompt plans, and its pages come from the file.
    session.feed(&mut engine, &model, &prompt)?;
    session.truncate(0);
    let start = Instant::now();
    session.feed(&mut engine, &model, &prompt)?;
    let whole = start.elapsed();
    println!("{PROMPT_TOKENS} tokens on {threads} threads take {:.0} ms", whole.as_secs_f64() * 1e3);

    let mut late = Vec::new();
    for index in 0..cancels {
        session.truncate(0);
        let token = CancelToken::new();
        session.set_cancel_token(Some(token.clone()));
        let delay = whole * (2 * index + 1) / (2 * cancels);
        let (result, late_by) = thread::scope(|scope| {
            let timer = scope.spawn(move || {
                thread::sleep(delay);
                let start = Instant::now();
                token.cancel();
                start
            });
            let result = session.feed(&mut engine, &model, &prompt);
            let end = Instant::now();
            timer.join().map(|start| (result, end.saturating_duration_since(start)))
        })
        .map_err(|_| "the timer panicked")?;
        match result {
            Err(ModelError::Engine(EngineError::Cancelled { .. })) => late.push(late_by),
            Ok(()) => {}
            Err(error) => return Err(error.into()),
        }
    }
    late.sort_unstable();
    let at = |part: usize| late.get((late.len() * part / 100).min(late.len().saturating_sub(1))).copied();
    let micros = |time: Option<Duration>| time.map_or("-".into(), |time| format!("{:.0} µs", time.as_secs_f64() * 1e6));
    println!(
        "{} of {cancels} cancels met it at work; back after {} (median), {} (90 %), {} (most)",
        late.len(),
        micros(at(50)),
        micros(at(90)),
        micros(at(100))
    );
    Ok(())
}
