//! Products with one row of activations whose weights are larger than every cache: what writing a token costs.

use std::time::{Duration, Instant};

use entensor::{DType, Engine, GraphBuilder, Usage};

use crate::Row;

/// Bytes of weights; several times the largest cache of usual machines.
const WEIGHT_BYTES: u64 = 64 << 20;

/// Elements of a row.
const WIDTH: u64 = 1024;

/// Rows that are made; the others repeat them.
const MADE_ROWS: u64 = 32;

/// Weights of a dtype.
pub(crate) struct Stream {
    dtype: DType,
    rows: u64,
    made: Vec<u8>,
}

impl Stream {
    pub(crate) fn new(dtype: DType) -> Self {
        let values: Vec<f32> = (0..WIDTH * MADE_ROWS).map(|i| (i * 7919 % 509) as f32 / 254.0 - 1.0).collect();
        let row_bytes = dtype.row_bytes(WIDTH).expect("whole blocks");
        let mut made = vec![0; (row_bytes * MADE_ROWS) as usize];
        (dtype.row().quantize)(&values, &mut made);
        Self { dtype, rows: WEIGHT_BYTES / row_bytes / MADE_ROWS * MADE_ROWS, made }
    }

    pub(crate) fn name(&self) -> String {
        format!("stream mul_mat {}[{WIDTH},{}] f32[{WIDTH},1]", self.dtype, self.rows)
    }

    /// The best run of some samples' time.
    pub(crate) fn measure(&self, threads: usize, sample: Duration) -> Row {
        let mut engine = Engine::builder().backend(format!("cpu:threads={threads}")).build().expect("the cpu starts");
        let bytes = self.made.repeat((self.rows / MADE_ROWS) as usize);
        let host = engine.host();
        let buffer = engine.create_buffer("w", host, Usage::Weights, bytes.len() as u64).expect("some memory");
        let weights = engine.tensor_in("w", self.dtype, &[WIDTH, self.rows], buffer, 0).expect("it fits");
        engine.write_bytes(&weights, 0, &bytes).expect("it fits");
        let mut g = GraphBuilder::new("product");
        let w = g.shared(&weights).expect("one tensor");
        let x = g.input("x", DType::F32, &[WIDTH, 1]).expect("a small input");
        let y = g.mul_mat(w, x).expect("shapes fit");
        g.output("y", y).expect("a free name");
        let graph = engine.add_graph(g);
        let input: Vec<f32> = (0..WIDTH).map(|i| (i % 13) as f32 / 6.0 - 1.0).collect();
        engine.write(graph, x, &input).expect("an input");
        engine.run(graph).expect("runs");
        let mut best = Duration::MAX;
        let end = Instant::now() + 10 * sample;
        for run in 0.. {
            let start = Instant::now();
            engine.run(graph).expect("runs");
            best = best.min(start.elapsed());
            if run > 2 && Instant::now() >= end {
                break;
            }
        }
        let (bytes, flops) = (bytes.len() as u64, 2 * WIDTH * self.rows);
        Row { name: self.name(), run: best, bytes, flops, int8: self.dtype.is_block(), streams: true }
    }
}
