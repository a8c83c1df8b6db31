//! Runs that overlap: how fast they get, what the timeline shows, and in which order they end. Times are virtual, and the same everywhere.

use entensor::{BackendIndex, DType, Engine, EngineError, GraphBuilder, GraphId, RunId, Tensor};
use entensor_components::QueueKind;
use entensor_sim::{Lane, SimConfig, Speed, Timeline};

use crate::machine::{Chain, ChainShape, Expected, Machine, SEEDS, oracle};

const ELEMENTS: u64 = 256;
const RUNS: u64 = 50;

/// A device whose node of one operand takes as long as a copy of that operand, times `slower`.
fn device(name: &str, slower: u64) -> SimConfig {
    SimConfig {
        // It reads as much as it writes.
        compute: Speed::bytes_per_us(2 * 1024),
        copy: Speed::bytes_per_us(1024 / slower),
        ..SimConfig::device(name, oracle())
    }
}

/// `scale` once on each device.
fn stages(engine: &mut Engine, copies: u32) -> (GraphId, Tensor, Tensor) {
    let devices = u32::try_from(engine.backends().len()).expect("few") - 1;
    let mut g = GraphBuilder::new("stages");
    g.pipeline_copies(copies);
    let x = g.input("x", DType::F32, &[ELEMENTS]).expect("a small input");
    let mut y = x;
    for device in 0..devices {
        y = g.scale(y, 2.0).expect("shapes fit");
        g.pin(y, BackendIndex(device)).expect("a tensor of its own");
    }
    let y = g.output("y", y).expect("a free name");
    (engine.add_graph(g), x, y)
}

/// Runs as many as fit at once, and reads every result.
fn run_all(machine: &Machine, copies: u32) -> Timeline {
    let mut engine = machine.engine();
    let (graph, x, y) = stages(&mut engine, copies);
    let factor = 2.0_f32.powi(i32::try_from(machine.devices.len()).expect("few"));
    let mut runs: Vec<RunId> = Vec::new();
    let read = |engine: &Engine, runs: &[RunId], round: usize| {
        let mut result = vec![0.0_f32; usize::try_from(ELEMENTS).expect("small")];
        engine.read_run(runs[round], y, &mut result).expect("an output");
        assert!(result.iter().all(|&value| value == round as f32 * factor), "run {round}");
    };
    for round in 0..RUNS {
        engine.write(graph, x, &vec![round as f32; usize::try_from(ELEMENTS).expect("small")]).expect("an input");
        runs.push(engine.run_async(graph).expect("submitted"));
    }
    engine.synchronize().expect("all went well");
    // The last runs' results are there; older slots were taken again.
    let last = runs.len().saturating_sub(copies as usize);
    (last..runs.len()).for_each(|round| read(&engine, &runs, round));
    if last > 0 {
        let error = engine.read_run(runs[last - 1], y, &mut vec![0.0_f32; usize::try_from(ELEMENTS).expect("small")]);
        assert!(matches!(error, Err(EngineError::OutputGone { .. })), "{error:?}");
    }
    machine.world.timeline()
}

/// Where copying takes as long as computing, two slots do nearly twice as much as one.
#[test]
fn two_slots_double_the_throughput() {
    let end = |copies| {
        let machine = Machine::new(1, [device("device0", 1)]);
        let timeline = run_all(&machine, copies);
        machine.assert_no_race(1);
        let busy = |kind| timeline.ran(Lane::Queue(0, kind)).map(|work| work.end_ns - work.start_ns).sum::<u64>();
        // The copy queue reads the last results too.
        let reads = u64::from(copies) * 1000;
        assert_eq!((busy(QueueKind::Compute), busy(QueueKind::Copy)), (RUNS * 1000, RUNS * 1000 + reads));
        let last = timeline.ran(Lane::Queue(0, QueueKind::Compute)).last().map(|work| work.end_ns);
        last.expect("it computed")
    };
    let (one, two) = (end(1), end(2));
    println!("{RUNS} runs: one slot {one} ns, two slots {two} ns, {:.3} times the throughput", one as f64 / two as f64);
    assert_eq!(one, RUNS * 2000, "copying and computing take turns");
    assert!(one * 10 >= two * 18, "one slot {one} ns, two slots {two} ns");
}

/// Where copying is what takes long, the copy queue never rests, and every upload but the first meets the computation before it.
#[test]
fn the_next_upload_happens_while_the_last_one_is_computed_with() {
    let machine = Machine::new(1, [device("device0", 2)]);
    let timeline = run_all(&machine, 2);
    machine.assert_no_race(1);
    let uploads: Vec<_> = timeline.ran(Lane::Queue(0, QueueKind::Copy)).filter(|work| &*work.label == "copy").collect();
    let computed: Vec<_> =
        timeline.ran(Lane::Queue(0, QueueKind::Compute)).filter(|work| &*work.label != "record").collect();
    assert_eq!((uploads.len() as u64, computed.len() as u64), (RUNS, RUNS));
    for (upload, compute) in uploads[1..].iter().zip(&computed) {
        let meets = upload.start_ns < compute.end_ns && compute.start_ns < upload.end_ns;
        assert!(
            meets,
            "upload {}..{}, computing {}..{}",
            upload.start_ns, upload.end_ns, compute.start_ns, compute.end_ns
        );
    }
    for pair in uploads.windows(2) {
        assert_eq!(pair[0].end_ns, pair[1].start_ns, "the copy queue never rests");
    }
    assert_eq!(
        timeline.overlap_ns(Lane::Queue(0, QueueKind::Copy), Lane::Queue(0, QueueKind::Compute)),
        (RUNS - 1) * 1000
    );
}

/// Two devices one behind the other work at the same time, each on another run.
#[test]
fn devices_one_behind_the_other_work_at_once() {
    let end = |copies| {
        let machine = Machine::new(1, [device("device0", 1), device("device1", 1)]);
        let timeline = run_all(&machine, copies);
        machine.assert_no_race(1);
        let lanes = [0, 1].map(|device| Lane::Queue(device, QueueKind::Compute));
        let last = timeline.ran(lanes[1]).last().map(|work| work.end_ns).expect("it computed");
        (last, timeline.overlap_ns(lanes[0], lanes[1]))
    };
    let (alone, overlap) = end(1);
    assert_eq!((alone, overlap), (RUNS * 4000, 0), "upload, compute, copy, compute, one after the other");
    let (two, _) = end(2);
    let (four, overlap) = end(4);
    println!("{RUNS} runs on two devices: one slot {alone} ns, two {two} ns, four {four} ns");
    // What the first device made is scratch and exists once, so its next run waits until that is copied: two stages out of four.
    assert!(two * 18 <= alone * 10 && four <= two, "{alone}, {two}, {four}");
    assert!(overlap >= (RUNS - 4) * 1000, "they work at once for {overlap} ns");
}

/// However runs are asked for, they end in their order, with their own results.
#[test]
fn runs_end_in_the_order_in_which_they_were_submitted() {
    for seed in 0..SEEDS {
        let copies = 1 + u32::try_from(seed % 4).expect("few");
        let shape = ChainShape { seed: seed % 40, nodes: 6, copies };
        let (machine, mut expected) = (Machine::of(seed, 2), Expected::new(shape));
        let mut engine = machine.engine();
        let chain = Chain::on(&mut engine, shape, |_| ());
        let mut runs = Vec::new();
        for round in 0..u64::from(copies) {
            chain.write(&mut engine, round).expect("inputs");
            runs.push(engine.run_async(chain.graph).expect("submitted"));
            assert!(engine.in_flight(chain.graph) <= copies as usize);
        }
        let mut asked = seed;
        loop {
            asked = asked.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = usize::try_from(asked >> 33).expect("small") % runs.len();
            let is_over = engine.poll(runs[at]).expect("all goes well");
            // Whoever is over, all before it are.
            if is_over && runs[..at].iter().any(|&before| engine.poll(before) != Ok(true)) {
                panic!("seed {seed}: run {at} is over, and one before it is not");
            }
            if engine.in_flight(chain.graph) == 0 {
                break;
            }
        }
        for (round, &run) in (0..).zip(&runs) {
            assert_eq!(chain.read(&engine, run), Ok(expected.of(round)), "seed {seed}");
        }
        let unknown = RunId { number: 99, ..runs[0] };
        assert!(matches!(engine.poll(unknown), Err(EngineError::UnknownRun { .. })));
        machine.assert_no_race(seed);
    }
}

/// Submitting waits for no device.
#[test]
fn submitting_waits_for_nothing() {
    let machine = Machine::new(1, [device("device0", 1)]);
    let mut engine = machine.engine();
    let (graph, x, _) = stages(&mut engine, 4);
    let before = machine.world.now_ns();
    for round in 0..4 {
        engine.write(graph, x, &vec![round as f32; usize::try_from(ELEMENTS).expect("small")]).expect("an input");
        let run = engine.run_async(graph).expect("submitted");
        assert_eq!(run.number, round + 1);
    }
    assert_eq!(machine.world.now_ns(), before, "the host did nothing that takes time");
    assert!(engine.in_flight(graph) > 0);
    engine.synchronize().expect("all went well");
    assert_eq!((machine.world.now_ns(), machine.world.pending()), (5000, 0), "four uploads and the last computation");
}

/// Who waits for a late run has no more time for those before it.
#[test]
fn waiting_for_a_late_run_keeps_to_its_time() {
    let machine = Machine::new(1, [device("device0", 1)]);
    let mut engine = machine.engine();
    let (graph, x, _) = stages(&mut engine, 4);
    let mut last = None;
    for round in 0..4 {
        engine.write(graph, x, &vec![round as f32; usize::try_from(ELEMENTS).expect("small")]).expect("an input");
        last = Some(engine.run_async(graph).expect("submitted"));
    }
    let last = last.expect("there were four");
    let mut calls = 0;
    while !engine.wait_for(last, std::time::Duration::ZERO).expect("all goes well") {
        calls += 1;
        assert!(calls < 200, "every call does something");
    }
    assert!(calls > 4, "{calls} calls without time finished four runs");
}

/// A game polls once a frame and never waits.
#[test]
fn a_graph_that_is_only_polled_gets_done() {
    for seed in 0..SEEDS {
        let shape = ChainShape { seed: seed % 40, nodes: 9, copies: 1 };
        let (machine, mut expected) = (Machine::of(seed, 2), Expected::new(shape));
        let mut engine = machine.engine();
        let chain = Chain::on(&mut engine, shape, |_| ());
        chain.write(&mut engine, 3).expect("inputs");
        let run = engine.run_async(chain.graph).expect("submitted");
        let mut frames = 0;
        while !engine.poll(run).expect("all goes well") {
            frames += 1;
            assert!(frames < 200, "seed {seed}: it never ends");
        }
        assert_eq!(chain.read(&engine, run), Ok(expected.of(3)), "seed {seed}");
        machine.assert_no_race(seed);
    }
}

/// Graphs that write the same state wait for each other; nothing is planned, and pins survive a reset.
#[test]
fn graphs_that_share_state_take_turns() {
    for seed in 0..SEEDS / 2 {
        let machine = Machine::of(seed, 2);
        let mut engine = machine.engine();
        let state = engine.create_buffer("state", BackendIndex(0), entensor::Usage::Any, 16).expect("16 bytes");
        let state = engine.tensor_in("state", DType::F32, &[4], state, 0).expect("it fits");
        engine.write_tensor(&state, &[1.0_f32; 4]).expect("memory of its own");
        let mut adding = |name: &str| {
            let mut g = GraphBuilder::new(name);
            g.pipeline_copies(2);
            let kept = g.shared(&state).expect("one tensor");
            let x = g.input("x", DType::F32, &[4]).expect("a small input");
            let sum = g.add(kept, x).expect("shapes fit");
            let written = g.cpy(sum, kept).expect("shapes fit");
            g.output("written", written).expect("a free name");
            (engine.add_graph(g), x)
        };
        let graphs = [adding("first"), adding("second")];
        for round in 0..6 {
            let (graph, x) = graphs[(seed as usize + round) % 2];
            engine.write(graph, x, &[1.0_f32; 4]).expect("an input");
            engine.run_async(graph).expect("submitted");
            if round == 3 {
                engine.reset(graph).expect("it is there");
            }
        }
        let mut values = [0.0_f32; 4];
        engine.read_tensor(&state, &mut values).expect("memory of its own");
        assert_eq!(values, [7.0; 4], "seed {seed}");
        machine.assert_no_race(seed);
    }
}

/// Graphs, tensors and engines go away in mid-run: nothing that runs touches memory that is gone.
#[test]
fn what_is_despawned_in_mid_run_is_let_go() {
    for seed in 0..SEEDS {
        let shape = ChainShape { seed: seed % 40, nodes: 9, copies: 2 };
        let machine = Machine::of(seed, 2);
        let mut engine = machine.engine();
        let chain = Chain::on(&mut engine, shape, |_| ());
        for round in 0..2 {
            chain.write(&mut engine, round).expect("inputs");
            engine.run_async(chain.graph).expect("submitted");
        }
        machine.let_happen(seed % 7);
        match seed % 4 {
            0 => engine.remove_graph(chain.graph),
            1 => drop(engine.world_mut().despawn(chain.graph.0)),
            2 => {
                let tensor = engine.entity(chain.graph, chain.output).expect("it is there");
                engine.world_mut().despawn(tensor);
                engine.synchronize().expect("runs need no entities");
            }
            _ => engine.world_mut().clear_entities(),
        }
        drop(engine);
        machine.assert_no_race(seed);
        assert_eq!(machine.world.pending(), 0);
    }
}
