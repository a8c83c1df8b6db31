//! Runs of both engines in turn, and the machine's limits beside them.

use std::{error::Error, path::Path, process::Command, time::Duration};

use entensor_benches::limits::{self, Memory, Rate};
use entensor_models::{arch::LlamaConfig, gguf::GgufFile};

use crate::{
    ours,
    peer::Peer,
    side::{Resident, Side},
    wishes::{Run, Wishes},
};

/// Tokens that fit into both conversations, so that memory is compared at the same context.
pub(crate) const CONTEXT: usize = 2048 + 256;

/// Tokens after which peak memory is read, and those decoded behind them.
const MEMORY_TOKENS: (usize, usize) = (2048, 16);

/// Between turns: threads that still look for work of the last one go to rest. ggml's look for some 100 ms before they sleep, and would
/// take a core from whoever comes next.
const SETTLE: Duration = Duration::from_millis(250);

/// The middle value. 0 for none.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        n => (sorted[(n - 1) / 2] + sorted[n / 2]) / 2.0,
    }
}

/// Speeds of one run in tokens per second, round by round.
pub(crate) struct Speeds {
    pub(crate) run: Run,
    pub(crate) ours: Vec<f64>,
    pub(crate) peers: Vec<f64>,
    /// Rounds in which both thought the same token the likeliest.
    pub(crate) agreed: usize,
    /// Bytes of weights and cache that a decoded token reads.
    pub(crate) bytes_per_token: f64,
    /// Operations of the products with weights that a token of a prompt takes.
    pub(crate) operations_per_token: f64,
}

/// What was measured with one file.
pub(crate) struct Found {
    pub(crate) speeds: Vec<Speeds>,
    /// Of each round: gigabytes read per second.
    pub(crate) gb_per_s: Vec<f64>,
    /// Of each round: what the dtype's products could do, in 10⁹ operations per second.
    pub(crate) gop_per_s: Vec<f64>,
    /// By which instructions.
    pub(crate) by: &'static str,
}

/// Most tokens that any of the runs has in its conversation.
fn context(runs: &[Run]) -> usize {
    runs.iter().map(|run| run.depth + run.tokens).fold(CONTEXT, usize::max)
}

fn start_ours(file: &Path, threads: usize, wishes: &Wishes, context: usize) -> Result<Side, Box<dyn Error>> {
    let sign = if wishes.backend.contains(':') { ',' } else { ':' };
    let backend = format!("{}{sign}threads={threads}", wishes.backend);
    let mut command = Command::new(std::env::current_exe()?);
    Side::start(command.arg(ours::ENGINE).arg(file).args([backend, context.to_string()]))
}

/// Both engines in turn, as many rounds as are wished for.
pub(crate) fn speeds(
    file: &Path,
    threads: usize,
    wishes: &Wishes,
    weights: &str,
    runs: &[Run],
    peer: &Peer,
    memory: &Memory,
) -> Result<Found, Box<dyn Error>> {
    let context = context(runs);
    let mut sides = [start_ours(file, threads, wishes, context)?, peer.start(file, threads, context)?];
    let header = GgufFile::open(file)?;
    let work = Work::of(&header)?;
    let speeds = runs.iter().map(|&run| Speeds {
        run,
        ours: Vec::new(),
        peers: Vec::new(),
        agreed: 0,
        bytes_per_token: work.bytes_per_token(run),
        operations_per_token: 2.0 * work.layer_weights,
    });
    let limit = if work.is_float { limits::f32_products } else { limits::int8_products };
    let Rate { by, .. } = limit(threads);
    let mut found = Found { speeds: speeds.collect(), gb_per_s: Vec::new(), gop_per_s: Vec::new(), by };
    // Plans, page tables and caches are made by a first, shorter turn.
    for side in &mut sides {
        for &run in runs {
            let short = if run.decode {
                Run { tokens: run.tokens.min(8), ..run }
            } else {
                Run { tokens: run.tokens.min(512), ..run }
            };
            side.prepare(short)?;
            side.run(short)?;
            std::thread::sleep(SETTLE);
        }
    }
    for _ in 0..wishes.rounds_of(weights) {
        for speeds in &mut found.speeds {
            let run = speeds.run;
            let mut likeliest = [0; 2];
            for (at, side) in sides.iter_mut().enumerate() {
                side.prepare(run)?;
                let answer = side.run(run)?;
                let speed = run.tokens as f64 / answer.time.as_secs_f64().max(1e-9);
                if at == 0 { &mut speeds.ours } else { &mut speeds.peers }.push(speed);
                likeliest[at] = answer.likeliest;
                std::thread::sleep(SETTLE);
            }
            speeds.agreed += usize::from(likeliest[0] == likeliest[1]);
        }
        found.gb_per_s.push(memory.gb_per_s(threads));
        found.gop_per_s.push(limit(threads).gop_per_s);
    }
    Ok(found)
}

/// Memory of both engines after the same conversation, each in a process that has done nothing else.
pub(crate) fn memory(
    file: &Path,
    threads: usize,
    wishes: &Wishes,
    peer: &Peer,
) -> Result<[Option<Resident>; 2], Box<dyn Error>> {
    let sides: [&dyn Fn() -> Result<Side, Box<dyn Error>>; 2] =
        [&|| start_ours(file, threads, wishes, CONTEXT), &|| peer.start(file, threads, CONTEXT)];
    let mut found = [None; 2];
    for (start, found) in sides.into_iter().zip(&mut found) {
        let mut side = start()?;
        let (depth, tokens) = MEMORY_TOKENS;
        let run = Run { decode: true, tokens, depth };
        side.prepare(run)?;
        side.run(run)?;
        *found = side.resident();
    }
    Ok(found)
}

/// What a token costs, from the file.
struct Work {
    config: LlamaConfig,
    /// Elements of all matrices of the layers.
    layer_weights: f64,
    /// Bytes of everything that a decoded token reads once: layers and the matrix of the logits.
    read_bytes: f64,
    /// Products are of numbers, not of blocks.
    is_float: bool,
}

impl Work {
    fn of(file: &GgufFile) -> Result<Self, Box<dyn Error>> {
        let config = LlamaConfig::from_header(file.header())?;
        let tensors = || file.tensors().iter();
        let layers = tensors().filter(|tensor| tensor.name.starts_with("blk."));
        let matrices = layers.filter(|tensor| tensor.shape[1] > 1);
        let has_output = tensors().any(|tensor| tensor.name == "output.weight");
        let read = tensors().filter(|tensor| !(has_output && tensor.name == "token_embd.weight"));
        let blocks = tensors().any(|tensor| tensor.dtype.row().class == entensor::components::DTypeClass::Block);
        Ok(Self {
            config,
            layer_weights: matrices.map(|tensor| tensor.elements() as f64).sum(),
            read_bytes: read.map(|tensor| tensor.size_bytes as f64).sum(),
            is_float: !blocks,
        })
    }

    /// Bytes that a decoded token reads: weights, and the rows of a 16-bit cache that are in use halfway through the run.
    fn bytes_per_token(&self, run: Run) -> f64 {
        let rows = run.depth as f64 + run.tokens as f64 / 2.0;
        let row_bytes = self.config.kv_width() as f64 * 2.0 * 2.0 * f64::from(self.config.layers);
        self.read_bytes + rows * row_bytes
    }
}
