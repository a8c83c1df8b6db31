//! What it costs to run anything at all: a graph of one small node by itself, held and not; helpers that are asked from rest; and steps that
//! wait for each other.
//!
//! `cargo bench -p entensor-benches --bench dispatch [-- record]`

use std::{
    hint::black_box,
    sync::Arc,
    time::{Duration, Instant},
};

use entensor::{DType, Engine, GraphBuilder};
use entensor_benches::{Spread, results, spread};
use entensor_components::{
    Backend, MemoryHandle, MemorySlot, NodeDesc, Op, PreparedSplit, Shape, SplitDesc, TensorDesc, TensorRef, Usage,
};
use entensor_cpu::{CpuBackend, CpuConfig};

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    if results::recorded("dispatch", "")? {
        return Ok(());
    }
    fixed_costs()?;
    println!();
    helpers()?;
    Ok(())
}

/// Microseconds a call, so many calls a sample.
fn per_call(samples: usize, calls: u32, mut call: impl FnMut()) -> Spread {
    let sample = || {
        let start = Instant::now();
        (0..calls).for_each(|_| call());
        start.elapsed().as_secs_f64() * 1e6 / f64::from(calls)
    };
    spread(std::iter::repeat_with(sample).take(samples).collect())
}

fn fixed_costs() -> Result<(), Failure> {
    println!("one thread, one node of 8 elements, µs a run: least, middle, most of the samples");
    let mut engine = Engine::builder().backend("cpu:threads=1").build()?;
    let mut g = GraphBuilder::new("tiny");
    let x = g.input("x", DType::F32, &[8])?;
    let y = g.scale(x, 0.5)?;
    let y = g.output("y", y)?;
    let graph = engine.add_graph(g);
    engine.write(graph, x, &[1.0_f32; 8])?;
    let mut out = [0.0_f32; 8];
    let whole = per_call(30, 2_000, || engine.run(graph).expect("runs"));
    println!("  Engine::run                       {whole}");
    let (held, with_values) = engine.with_runner(graph, |runner| {
        assert!(runner.is_held());
        let held = per_call(30, 20_000, || runner.run().expect("runs"));
        let with_values = per_call(30, 20_000, || {
            runner.write(x, &[1.0_f32; 8]).expect("an input");
            runner.run().expect("runs");
            runner.read(y, &mut out).expect("an output");
        });
        Ok((held, with_values))
    })?;
    println!("  Runner::run                       {held}");
    println!("  Runner::write, run and read       {with_values}");

    let cpu = CpuBackend::new(CpuConfig { threads: Some(1), ..CpuConfig::default() })?;
    let (split, memory) = chain_of_adds(&cpu, 1, 8)?;
    let submitted = per_call(30, 20_000, || {
        split.submit(&memory).expect("runs");
    });
    println!("  PreparedSplit::submit             {submitted}");
    black_box(out);
    Ok(())
}

/// `steps` additions of one to `width` elements, each of which waits for the one before.
fn chain_of_adds(
    cpu: &CpuBackend,
    steps: usize,
    width: u64,
) -> Result<(Box<dyn PreparedSplit>, Vec<MemoryHandle>), Failure> {
    let tensor = |slot, width| -> Result<TensorRef, Failure> {
        let shape = Shape::new(&[width]).ok_or("one axis")?;
        let desc = TensorDesc::packed(DType::F32, shape)?;
        Ok(TensorRef { desc, memory: MemorySlot(slot), offset_bytes: 0 })
    };
    let (x, one) = (tensor(0, width)?, tensor(1, 1)?);
    let add = NodeDesc { name: Arc::from("add"), op: Op::Add {}, output: x, operands: vec![x, one] };
    let split = SplitDesc { nodes: vec![add; steps], memory_slots: 2 };
    let memory =
        [width * 4, 64].map(|size_bytes| cpu.create_buffer(size_bytes, Usage::Any).and_then(|key| cpu.memory(key)));
    Ok((cpu.prepare(&split)?, memory.into_iter().collect::<Result<_, _>>()?))
}

fn helpers() -> Result<(), Failure> {
    let cpus = [1, 2].map(|threads| CpuBackend::new(CpuConfig { threads: Some(threads), ..CpuConfig::default() }));
    let [alone, both] = cpus;
    let (alone, both) = (alone?, both?);
    // Some 400 µs of work in chunks of a few microseconds, without a step that waits for another.
    let width = 1 << 18;
    let (one, memory) = chain_of_adds(&alone, 1, width)?;
    let (two, memory_of_two) = chain_of_adds(&both, 1, width)?;
    let once = |split: &dyn PreparedSplit, memory: &[MemoryHandle]| {
        let start = Instant::now();
        split.submit(memory).expect("runs");
        start.elapsed().as_secs_f64() * 1e6
    };
    let times = |split: &dyn PreparedSplit, memory: &[MemoryHandle], rest: Duration, samples: usize| {
        let sample = || {
            if !rest.is_zero() {
                std::thread::sleep(rest);
            }
            once(split, memory)
        };
        (0..5).for_each(|_| {
            black_box(once(split, memory));
        });
        spread(std::iter::repeat_with(sample).take(samples).collect())
    };
    println!("a helper that is asked: one run of {width} additions, µs: least, middle, most");
    for (name, rest, samples) in [
        ("one run behind the other", Duration::ZERO, 500),
        ("after 1 ms of rest      ", Duration::from_millis(1), 200),
        ("after 16 ms of rest     ", Duration::from_millis(16), 60),
    ] {
        let (one, two) = (times(&*one, &memory, rest, samples), times(&*two, &memory_of_two, rest, samples));
        // While it was not there yet the caller did all of it alone.
        let away = 2.0 * two.middle - one.middle;
        println!("  {name}  1 thread {one}   2 threads {two}   helper away for {away:.1}");
    }
    println!("steps that wait for each other: µs a step, of two chunks each");
    // Two chunks of a few microseconds.
    let (steps, width) = (400, 8 * 1024);
    let (one, memory) = chain_of_adds(&alone, steps, width)?;
    let (two, memory_of_two) = chain_of_adds(&both, steps, width)?;
    let per_step = |spread: Spread| spread.scaled(1.0 / steps as f64);
    let one = per_step(times(&*one, &memory, Duration::ZERO, 100));
    let two = per_step(times(&*two, &memory_of_two, Duration::ZERO, 100));
    println!("  1 thread {one}   2 threads {two}   a step's barrier {:.2}", two.least - one.least / 2.0);
    Ok(())
}
