//! Kernels of the cpu backend against what this machine can do: for every op, dtype and shape how fast memory is read and how much is
//! computed, and how much of the limits that were measured a moment before that is. See `benches/README.md`.

mod streams;

use std::{
    io,
    time::{Duration, Instant},
};

use entensor_benches::{
    limits::{Memory, f32_products, int8_products},
    results,
};
use entensor_components::{Backend, DTypeSet, OpKind};
use entensor_conformance::{PerfConfig, PerfError, Selection, perf};
use entensor_cpu::{CpuBackend, CpuConfig};

use streams::Stream;

/// Bytes that fit into the last cache of usual machines and into no other.
const CACHED_BYTES: usize = 4 << 20;

const HELP: &str = "\
cargo bench -p entensor-benches --bench kernels -- [PART…] [threads=1,2] [ms=MILLISECONDS] [record]

Measures the cases whose line has any of the parts, such as `mul_mat` or `q4_1`; all of them without one. `stream` is products with one
row of activations whose weights come from memory, not from a cache. Each sample takes `ms` milliseconds, 4 unless given. `record` writes the output into
RESULTS.md.";

/// What this machine can do with so many threads.
#[derive(Clone, Copy)]
struct Limits {
    memory_gb_per_s: f64,
    cache_gb_per_s: f64,
    int8_gop_per_s: f64,
    f32_gop_per_s: f64,
}

impl Limits {
    /// The best of some tries each: neighbours slow limits down as they do kernels, and a limit that was exceeded is none.
    fn measure(threads: usize, memory: &Memory, cached: &Memory) -> Self {
        let best = |measure: &dyn Fn() -> f64| (0..3).map(|_| measure()).fold(0.0, f64::max);
        Self {
            memory_gb_per_s: best(&|| memory.gb_per_s(threads)),
            cache_gb_per_s: best(&|| cached.gb_per_s(threads)),
            int8_gop_per_s: best(&|| int8_products(threads).gop_per_s),
            f32_gop_per_s: best(&|| f32_products(threads).gop_per_s),
        }
    }
}

/// A measured case.
struct Row {
    name: String,
    run: Duration,
    bytes: u64,
    flops: u64,
    /// Whether products are of 8-bit integers.
    int8: bool,
    /// Whether operands come from memory.
    streams: bool,
}

impl Row {
    fn print(&self, threads: usize, limits: &Limits) {
        let seconds = self.run.as_secs_f64().max(1e-9);
        let (bandwidth, speed) = (self.bytes as f64 / seconds / 1e9, self.flops as f64 / seconds / 1e9);
        let from = if self.streams { limits.memory_gb_per_s } else { limits.cache_gb_per_s };
        let compute = if self.int8 { limits.int8_gop_per_s } else { limits.f32_gop_per_s };
        let percent = |value: f64, limit: f64| format!("{:.0} %", 100.0 * value / limit);
        println!(
            "{threads:>2} {:>11.1} {bandwidth:>8.2} {:>6} {speed:>9.2} {:>6}  {}",
            seconds * 1e6,
            percent(bandwidth, from),
            percent(speed, compute),
            self.name
        );
    }
}

/// What was asked for.
struct Asked {
    parts: Vec<String>,
    threads: Vec<usize>,
    sample: Duration,
}

impl Asked {
    fn parse(args: impl Iterator<Item = String>) -> Result<Self, String> {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let mut threads: Vec<usize> = [1, 2].into_iter().filter(|&threads| threads <= cores).collect();
        let (mut parts, mut millis) = (Vec::new(), 4);
        for arg in args {
            // Cargo's own.
            if arg == "--bench" {
                continue;
            }
            if arg.starts_with('-') {
                return Err(HELP.into());
            }
            let number = |text: &str| {
                text.parse::<usize>().ok().filter(|&n| n > 0).ok_or(format!("{text}: not a number\n{HELP}"))
            };
            match arg.split_once('=') {
                Some(("threads", list)) => threads = list.split(',').map(number).collect::<Result<_, _>>()?,
                Some(("ms", text)) => millis = number(text)? as u64,
                _ => parts.push(arg),
            }
        }
        Ok(Self { parts, threads, sample: Duration::from_millis(millis) })
    }

    fn wants(&self, line: &str) -> bool {
        self.parts.is_empty() || self.parts.iter().any(|part| line.contains(part.as_str()))
    }
}

fn main() -> io::Result<()> {
    if results::recorded("kernels", "")? {
        return Ok(());
    }
    let start = Instant::now();
    let asked = match Asked::parse(std::env::args().skip(1)) {
        Ok(asked) => asked,
        Err(message) => {
            // A failure, so that it is not recorded.
            eprintln!("{message}");
            std::process::exit(2);
        }
    };
    let streams: Vec<Stream> = DTypeSet::REALS.iter().map(Stream::new).filter(|s| asked.wants(&s.name())).collect();
    let (memory, cached) = (Memory::new(), Memory::of(CACHED_BYTES));
    for &threads in &asked.threads {
        let limits = Limits::measure(threads, &memory, &cached);
        println!(
            "{threads} threads: memory {:.1} GB/s, last cache {:.1} GB/s, int8 {:.0} GOP/s, f32 {:.0} GFLOP/s",
            limits.memory_gb_per_s, limits.cache_gb_per_s, limits.int8_gop_per_s, limits.f32_gop_per_s
        );
        println!("\n threads  µs a run     GB/s     of     GOP/s     of");
        for stream in &streams {
            stream.measure(threads, asked.sample).print(threads, &limits);
        }
        let config = CpuConfig { threads: Some(threads), ..CpuConfig::default() };
        match CpuBackend::new(config) {
            Ok(cpu) => ops(&cpu, threads, &asked, &limits),
            Err(error) => println!("no cpu backend: {error}"),
        }
        println!();
    }
    println!("in {:.0} s", start.elapsed().as_secs_f64());
    Ok(())
}

/// The bench cases of the op table, in every dtype.
fn ops(cpu: &dyn Backend, threads: usize, asked: &Asked, limits: &Limits) {
    let config = PerfConfig { samples: 3, sample_time: asked.sample };
    let all = [Selection::All];
    let chosen: Vec<Selection> = asked.parts.iter().map(|part| Selection::new(part)).collect();
    for selection in if chosen.is_empty() { &all[..] } else { &chosen } {
        let each = |row: entensor_conformance::PerfRow| {
            let int8 = matches!(row.case.op.kind(), OpKind::MulMat | OpKind::MulMatId)
                && row.case.operands[0].desc.dtype.is_block();
            let (run, bytes, flops) = (row.run, row.bytes, row.flops);
            // What fits into no cache comes from memory in every run.
            let streams = bytes as usize > 8 * CACHED_BYTES;
            Row { name: row.case.to_string(), run, bytes, flops, int8, streams }.print(threads, limits);
        };
        match perf(cpu, selection, config, each) {
            // A part may name streams alone.
            Ok(()) | Err(PerfError::NoSuchCase { .. }) => {}
            Err(error) => println!("{error}"),
        }
    }
}
