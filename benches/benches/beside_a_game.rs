//! Decoding a real model beside a game: as many threads as cores, and one more thread that never rests.
//!
//! `cargo bench -p entensor-benches --bench beside_a_game -- model.gguf [tokens] [record]`; `ENTENSOR_MODEL` names a file, too.
//! One and two threads decode in turn, with and without the neighbour, so that whatever else the machine does meets all of them.

use std::{
    hint::black_box,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    time::Instant,
};

use entensor::Engine;
use entensor_benches::{Spread, results, spread};
use entensor_models::{LanguageModel, Session, SessionConfig};

type Failure = Box<dyn std::error::Error>;

const ROUNDS: usize = 3;

fn main() -> Result<(), Failure> {
    let is_ours = |argument: &String| !argument.starts_with("--") && argument != "record";
    let arguments: Vec<String> = std::env::args().skip(1).filter(is_ours).collect();
    let path = arguments.first().cloned().or_else(|| std::env::var("ENTENSOR_MODEL").ok());
    let Some(path) = path else {
        println!("no model: name a GGUF file as an argument or in ENTENSOR_MODEL");
        return Ok(());
    };
    // Behind the look for a model: without one there is nothing to record.
    if results::recorded("beside_a_game", "")? {
        return Ok(());
    }
    let tokens: usize = arguments.get(1).map_or(Ok(400), |tokens| tokens.parse())?;
    let mut samples: [[Vec<f64>; 2]; 2] = Default::default();
    for _ in 0..ROUNDS {
        for (threads, samples) in samples.iter_mut().enumerate() {
            for (neighbours, samples) in samples.iter_mut().enumerate() {
                samples.extend(beside(neighbours, || decode(Path::new(&path), threads + 1, tokens))?);
            }
        }
    }
    let model = Path::new(&path).file_name().unwrap_or_default().to_string_lossy();
    println!("µs a token of {model}: least, middle, most; {ROUNDS} rounds of {tokens} tokens in turn");
    let mut middles = [[0.0; 2]; 2];
    for (threads, samples) in samples.into_iter().enumerate() {
        for (neighbours, samples) in samples.into_iter().enumerate() {
            let mean = samples.iter().sum::<f64>() / samples.len() as f64;
            let of: Spread = spread(samples);
            middles[neighbours][threads] = mean;
            let late = of.p99 / of.middle;
            println!(
                "  {} threads, {neighbours} neighbours: {of}  mean {mean:.0}  p99 {:.0} ({late:.2} × the middle)",
                threads + 1,
                of.p99
            );
        }
    }
    for (neighbours, [one, two]) in middles.into_iter().enumerate() {
        println!("  {neighbours} neighbours: 2 threads are {:.2} × as fast as 1, by all tokens together", one / two);
    }
    Ok(())
}

/// Does something while so many other threads compute.
fn beside<R>(neighbours: usize, work: impl FnOnce() -> R) -> R {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..neighbours {
            scope.spawn(|| {
                let mut x = 1.0_f64;
                while !is_over.load(Ordering::Relaxed) {
                    (0..1000).for_each(|_| x = black_box(x * 1.000_000_1 + 1e-9));
                }
            });
        }
        let done = work();
        is_over.store(true, Ordering::Relaxed);
        done
    })
}

/// Microseconds of each token.
fn decode(path: &Path, threads: usize, tokens: usize) -> Result<Vec<f64>, Failure> {
    let mut engine = Engine::builder().backend(format!("cpu:threads={threads}")).build()?;
    let model = LanguageModel::load(&mut engine, path, |_| ())?;
    let mut session = Session::new(&mut engine, &model, SessionConfig::default())?;
    session.feed(&mut engine, &model, &[1, 2, 3, 4])?;
    let mut times = Vec::with_capacity(tokens);
    for token in 0..tokens + 8 {
        let start = Instant::now();
        session.feed(&mut engine, &model, &[5 + u32::try_from(token)? % 500])?;
        // The first few plan and wake up.
        if token >= 8 {
            times.push(start.elapsed().as_secs_f64() * 1e6);
        }
    }
    black_box(session.logits());
    Ok(times)
}
