//! A net of an agent, 24→64→64→8 with biases, relu and tanh, beside other ways to compute it on one thread, in turn.
//!
//! `cargo bench -p entensor-benches --features peers-rust --bench policy_vs_peers`
//!
//! Ours is what a caller pays: the input is written, the graph run by a runner, and the output read. `rten` is given its input as a view of
//! the caller's memory, and makes its output. `gemm` is its three products alone, without biases and activations. All are compared in one
//! process, each some milliseconds long, one behind the other, round after round; ratios are those of a round.

mod gemm_calls;
mod onnx;

use std::{hint::black_box, sync::Arc, time::Instant};

use entensor::{DType, Engine, GraphBuilder, GraphId, Tensor};
use entensor_benches::spread;
use gemm_calls::GemmCalls;
use rten_tensor::{AsView, Layout, NdTensor};

type Failure = Box<dyn std::error::Error>;

const WIDTHS: [usize; 4] = [24, 64, 64, 8];
const ROUNDS: usize = 15;
/// How long one of them runs in a round.
const SECONDS: f64 = 0.02;

/// A layer's numbers, as all of them get them.
struct Layer {
    k: usize,
    m: usize,
    weights: Vec<f32>,
    bias: Vec<f32>,
}

struct Policy {
    layers: Vec<Layer>,
}

fn numbers(len: usize, seed: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 7919 + seed * 104_729) % 2003) as f32 / 4006.0 - 0.25).collect()
}

impl Policy {
    fn new() -> Self {
        let layer = |(index, pair): (usize, &[usize])| {
            let (k, m) = (pair[0], pair[1]);
            Layer { k, m, weights: numbers(k * m, index), bias: numbers(m, index + 10) }
        };
        Self { layers: WIDTHS.windows(2).enumerate().map(layer).collect() }
    }

    fn graph(&self, engine: &mut Engine, rows: usize) -> Result<(GraphId, Tensor, Tensor), Failure> {
        let mut parts = Vec::new();
        for (index, layer) in self.layers.iter().enumerate() {
            let shape = [layer.k as u64, layer.m as u64];
            let weights = engine.weights(&format!("w{index}.{rows}"), DType::F32, &shape, &layer.weights)?;
            parts.push((weights, engine.weights(&format!("b{index}.{rows}"), DType::F32, &shape[1..], &layer.bias)?));
        }
        let mut g = GraphBuilder::new(format!("policy for {rows}"));
        let x = g.input("x", DType::F32, &[WIDTHS[0] as u64, rows as u64])?;
        let mut last = x;
        for (index, (weights, bias)) in parts.iter().enumerate() {
            let (weights, bias) = (g.shared(weights)?, g.shared(bias)?);
            let product = g.mul_mat(weights, last)?;
            let sum = g.add(product, bias)?;
            last = if index + 1 == parts.len() { g.tanh(sum)? } else { g.relu(sum)? };
        }
        let y = g.output("y", last)?;
        Ok((engine.add_graph(g), x, y))
    }
}

fn main() -> Result<(), Failure> {
    let policy = Policy::new();
    println!(
        "policy {WIDTHS:?}, one thread, {ROUNDS} rounds in turn; µs a run: least, middle, most; then how many times ours, by round"
    );
    for rows in [1, 32, 1024] {
        compare(&policy, rows)?;
    }
    Ok(())
}

/// Microseconds of a call, over some milliseconds.
fn time(calls: u32, mut call: impl FnMut() -> Result<(), Failure>) -> Result<f64, Failure> {
    let start = Instant::now();
    for _ in 0..calls {
        call()?;
    }
    Ok(start.elapsed().as_secs_f64() * 1e6 / f64::from(calls))
}

fn compare(policy: &Policy, rows: usize) -> Result<(), Failure> {
    let x_values = numbers(WIDTHS[0] * rows, 99);
    let mut ours_values = vec![0.0_f32; WIDTHS[3] * rows];

    let mut engine = Engine::builder().backend("cpu:threads=1").build()?;
    let (graph, x, y) = policy.graph(&mut engine, rows)?;

    let model = rten::Model::load(onnx::encode(policy, rows))?;
    let pool = Arc::new(rten::ThreadPool::with_num_threads(1));
    let options = rten::RunOptions::default().with_thread_pool(Some(pool));
    let rten_x = NdTensor::from_data([rows, WIDTHS[0]], x_values.clone());
    let run_rten = || -> Result<NdTensor<f32, 2>, Failure> {
        Ok(model.run_one(rten_x.view().into(), Some(options.clone()))?.try_into()?)
    };

    let mut calls = GemmCalls::new(policy, rows);
    let names = ["ours", "rten", "gemm"];
    let mut samples: [Vec<f64>; 3] = Default::default();
    let measured = engine.with_runner(graph, |runner| {
        let measured = (|| -> Result<(), Failure> {
            let mut run_ours = || -> Result<(), Failure> {
                runner.write(x, &x_values)?;
                runner.run()?;
                runner.read(y, &mut ours_values)?;
                Ok(())
            };
            run_ours()?;
            let once = time(20, &mut run_ours)?;
            let count = ((SECONDS * 1e6 / once) as u32).max(1);
            for _ in 0..ROUNDS {
                samples[0].push(time(count, &mut run_ours)?);
                samples[1].push(time(count, || run_rten().map(|y| drop(black_box(y))))?);
                samples[2].push(time(count, || Ok(drop(black_box(calls.run(black_box(&x_values))))))?);
            }
            Ok(())
        })();
        Ok(measured)
    })?;
    measured?;

    let theirs = run_rten()?;
    assert_eq!(theirs.shape(), [rows, WIDTHS[3]]);
    let most = theirs.iter().zip(&ours_values).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(most < 1e-5, "the two disagree by {most}");

    println!("batch {rows}");
    for (name, theirs) in names.iter().zip(&samples) {
        let ratios: Vec<f64> = theirs.iter().zip(&samples[0]).map(|(theirs, ours)| theirs / ours).collect();
        println!("  {name:6} {}   {}", spread(theirs.clone()), spread(ratios));
    }
    Ok(())
}
