//! Planned memory: chunks that grow, peaks, and that what was predicted is what is allocated.

use std::{fs, sync::Arc};

use entensor::{ArenaId, DType, Engine, GraphBuilder, GraphId, Tensor};
use entensor_components::BackendError;
use entensor_snapshots::generate::{Limits, Random, case};
use entensor_systems::{Arena, PlanError, Recording, plan_schedule};

use crate::{
    common::{self, Planned, fixtures},
    devices::{Call, Log, machine_of},
    runs::Run,
    tools::{Place, between, buffer_sizes, expect, places, touched},
};

/// Inputs and their doubles, of these sizes: all alive at once, so chunks fill in a way that the sizes decide.
fn doubles(engine: &mut Engine, name: &str, sizes: &[u64], arena: ArenaId) -> (GraphId, Vec<(Tensor, Tensor)>) {
    let mut g = GraphBuilder::new(name);
    g.share_arena(arena);
    let pairs = sizes.iter().enumerate().map(|(i, &size)| {
        let x = g.input(&format!("x{i}"), DType::F32, &[size]).expect("a small input");
        let y = g.scale(x, 2.0).expect("shapes fit");
        (x, g.output(&format!("y{i}"), y).expect("a free name"))
    });
    let pairs = pairs.collect();
    (engine.add_graph(g), pairs)
}

fn run_doubles(engine: &mut Engine, graph: GraphId, pairs: &[(Tensor, Tensor)], value: f32) {
    let len = |t: &Tensor| usize::try_from(t.shape()[0]).expect("small");
    for (x, _) in pairs {
        engine.write(graph, *x, &vec![value; len(x)]).expect("an input");
    }
    engine.run(graph).expect("it runs");
    for (_, y) in pairs {
        let mut result = vec![0.0_f32; len(y)];
        engine.read(graph, *y, &mut result).expect("an output");
        assert!(result.iter().all(|&r| r == value * 2.0), "{result:?}");
    }
}

fn engine_on(lines: &str) -> (Engine, Arc<Log>) {
    let log = Arc::new(Log::default());
    let mut builder = Engine::builder().verify_plans(true);
    for backend in machine_of(lines, &log) {
        builder = builder.backend_instance(backend);
    }
    (builder.build().expect("oracles start"), log)
}

/// lc#16396: of two plans in one memory with unlike chunks, the chunk that must grow grows, and only that one; both go on to run.
#[test]
fn report_19_a_chunk_that_grows_is_made_again() {
    let mut grown = 0;
    for seed in 0..80 {
        let mut random = Random::new(seed);
        let limit = *random.pick(&[160_u64, 256, 1024]);
        let (mut engine, log) = engine_on(&format!("backend cpu max_buffer={limit} align=4"));
        let arena = engine.new_arena();
        let graphs: Vec<_> = (0..3)
            .map(|i| {
                let count = between(&mut random, 1, 5);
                let sizes: Vec<u64> = (0..count).map(|_| between(&mut random, 1, limit / 4)).collect();
                doubles(&mut engine, &format!("g{i}"), &sizes, arena)
            })
            .collect();
        let mut largest: Vec<u64> = Vec::new();
        for (i, turn) in [0, 1, 0, 2, 1, 0, 2].into_iter().enumerate() {
            let (graph, pairs) = &graphs[turn];
            let before = log.count(Call::Allocate);
            run_doubles(&mut engine, *graph, pairs, i as f32 + 1.0);
            let sizes = buffer_sizes(engine.plan_of(*graph).expect("it ran"));
            largest.resize(largest.len().max(sizes.len()), 0);
            let small = largest.iter().zip(&sizes).filter(|(had, needed)| needed > had).count() as u64;
            grown += small;
            assert_eq!(log.count(Call::Allocate) - before, small, "seed {seed}: what is too small is made again");
            largest.iter_mut().zip(&sizes).for_each(|(largest, &size)| *largest = size.max(*largest));
            let buffers = &engine.world().get::<Arena>(arena.0).expect("it is there").buffers;
            let mut held: Vec<(u32, u64)> = buffers.iter().map(|b| (b.ordinal, b.buffer.size_bytes())).collect();
            held.sort_unstable();
            assert_eq!(held.iter().map(|&(_, size)| size).collect::<Vec<_>>(), largest, "seed {seed}");
            assert_eq!(log.all_alive_bytes(), largest.iter().sum::<u64>(), "seed {seed}: outgrown chunks are gone");
        }
    }
    assert!(grown >= 200, "{grown} chunks were made");
}

/// Every `.graph` text of a folder beside the fixtures, if the folder is there.
fn texts_of(folder: &str) -> Vec<(String, String)> {
    let Ok(entries) = fs::read_dir(common::folder(folder)) else { return Vec::new() };
    let graphs =
        entries.flatten().map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|e| e == "graph"));
    let read = |path: std::path::PathBuf| {
        let name = path.file_stem().expect("a file").to_string_lossy().into_owned();
        (name, fs::read_to_string(&path).expect("UTF-8"))
    };
    let mut texts: Vec<_> = graphs.map(read).collect();
    texts.sort();
    texts
}

/// sd#907: planned bytes stay close to the largest live set: 1.02 on average, and never above 1.10.
#[test]
fn report_20_planned_memory_is_close_to_the_live_set() {
    let mut ratios = Vec::new();
    for (name, text) in fixtures().into_iter().chain(texts_of("corpus")) {
        // Chunks of a largest buffer cannot be filled to the last byte.
        if text.contains("max_buffer") {
            continue;
        }
        let Ok(plan) = Planned::with_schedule(&common::parse(&name, &text), plan_schedule(Recording::Off)).result()
        else {
            continue;
        };
        // In a few hundred bytes, alignment alone is a tenth.
        if plan.lower_bound_bytes < 2048 {
            continue;
        }
        ratios.push((plan.planned_bytes() as f64 / plan.lower_bound_bytes as f64, name));
    }
    ratios.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mean = ratios.iter().map(|(ratio, _)| ratio).sum::<f64>() / ratios.len() as f64;
    println!("{} graphs, mean {mean:.4}, worst {:?}", ratios.len(), &ratios[..3]);
    assert!(ratios.len() >= 12);
    assert!(mean <= 1.02 && ratios[0].0 <= 1.10, "mean {mean:.4}, worst {:?}", &ratios[..3]);
    assert!(ratios.iter().all(|(ratio, _)| *ratio >= 1.0), "below what must be alive: {ratios:?}");
}

/// A model's layer for this many tokens: widths that grow and shrink, and an output row per token.
fn layer(engine: &mut Engine, name: &str, tokens: u64, arena: ArenaId) -> (GraphId, Tensor, Tensor) {
    let mut g = GraphBuilder::new(name);
    g.share_arena(arena);
    let x = g.input("x", DType::F32, &[8, tokens]).expect("a small input");
    let n = g.rms_norm(x, 1e-5).expect("shapes fit");
    let wide = g.op(entensor::Op::Repeat { shape: entensor::Shape([8, tokens, 4, 1]) }, &[n]).expect("shapes fit");
    let gated = g.silu(wide).expect("shapes fit");
    let wide = g.mul(gated, wide).expect("shapes fit");
    let rows = g.sum_rows(wide).expect("shapes fit");
    let scores = g.op(entensor::Op::Repeat { shape: entensor::Shape([8, tokens, 4, 1]) }, &[rows]).expect("shapes fit");
    let y = g.add(scores, wide).expect("shapes fit");
    let y = g.output("y", y).expect("a free name");
    (engine.add_graph(g), x, y)
}

fn run_layer(engine: &mut Engine, (graph, x, y): (GraphId, Tensor, Tensor)) -> Vec<f32> {
    let values: Vec<f32> = (0..x.shape().iter().product::<u64>()).map(|i| (i % 7) as f32 - 3.0).collect();
    engine.write(graph, x, &values).expect("an input");
    engine.run(graph).expect("it runs");
    let mut result = vec![0.0_f32; usize::try_from(y.shape().iter().product::<u64>()).expect("small")];
    engine.read(graph, y, &mut result).expect("an output");
    result
}

/// ollama#13244: graphs of two kinds take turns in one memory: what was large enough once is never asked for again.
#[test]
fn report_21_a_graph_that_fitted_once_allocates_nothing_again() {
    for (first, second) in [(64, 4), (4, 64), (9, 10), (33, 32), (1, 100)] {
        let (mut engine, log) = engine_on("backend cpu");
        let arena = engine.new_arena();
        let (vision, text) = (layer(&mut engine, "vision", first, arena), layer(&mut engine, "text", second, arena));
        let expected = [run_layer(&mut engine, vision), run_layer(&mut engine, text)];
        let made = log.count(Call::Allocate);
        for _ in 0..3 {
            assert_eq!(run_layer(&mut engine, vision), expected[0]);
            assert_eq!(run_layer(&mut engine, text), expected[1]);
        }
        assert_eq!(log.count(Call::Allocate), made, "{first} and {second}");
        assert_eq!(engine.counters().planned, 2);
    }
}

/// unsloth#7637: the bytes a plan predicts, per backend and in all, are the bytes that are allocated, for any number of copies.
#[test]
fn report_22_predicted_bytes_are_the_bytes_that_are_allocated() {
    let mut compared = 0;
    for (name, text) in
        fixtures().into_iter().chain((0..150).map(|seed| (format!("seed {seed}"), case(seed, Limits::default()))))
    {
        for copies in [1, 2, 4] {
            let text = common::parse(&name, &text).with_copies(copies);
            if text.tensors().iter().any(|t| t.desc.size_bytes() > 1 << 24) {
                continue;
            }
            let Ok(mut run) = Run::new(&text) else { continue };
            let Ok(plan) = run.plan() else { continue };
            for backend in &plan.backends {
                assert_eq!(run.log.alive_bytes(&backend.name), backend.planned_bytes, "{name}: {}", backend.name);
            }
            assert_eq!(run.log.all_alive_bytes(), plan.planned_bytes(), "{name}");
            assert_eq!(run.log.count(Call::Allocate), buffer_sizes(&plan).len() as u64, "{name}");
            compared += 1;
        }
    }
    assert!(compared >= 250, "{compared} plans");
}

/// ik#1560: more output rows than before are a new plan with its reason, and cost what these rows take, not what a largest
/// batch might.
#[test]
fn report_23_more_output_rows_cost_their_bytes_and_say_why() {
    const VOCABULARY: u64 = 128_256;
    let logits = |rows: u64| {
        format!(
            "backend cpu\nweight w f32 [8,{VOCABULARY}] on cpu\ninput x f32 [8,512]\ninput rows i32 [{rows}]\n\
             h = rms_norm x\nlast = get_rows h rows\ny = mul_mat w last output\n"
        )
    };
    let base = expect(&logits(1)).planned_bytes() - VOCABULARY * 4;
    for rows in [1, 2, 8, 31, 512] {
        let plan = expect(&logits(rows));
        let (needed, bound) = (VOCABULARY * 4 * rows, plan.lower_bound_bytes);
        assert!(bound - needed <= base + rows * 64 + 64, "{rows} rows need {bound}");
        // As close to what they need as the allocator looks.
        assert!(plan.planned_bytes() <= bound + bound / 1024 + 64, "{rows} rows plan {}", plan.planned_bytes());
    }
    let (mut engine, log) = engine_on("backend cpu");
    let arena = engine.new_arena();
    let mut most = 0;
    for (i, rows) in [1, 8, 8, 64, 1].into_iter().enumerate() {
        let graph = layer(&mut engine, &format!("g{i}"), rows, arena);
        run_layer(&mut engine, graph);
        most = most.max(engine.plan_of(graph.0).expect("it ran").planned_bytes());
        assert_eq!(log.all_alive_bytes(), most, "the largest plan so far, and no byte more");
        assert_eq!(engine.counters().reasons.values().sum::<u64>(), i as u64 + 1, "every new shape has a reason");
    }
}

/// Bytes alive at each step, pieces that results take over in place counted once; and who they are.
fn alive_at(places: &[Place], step: u32) -> (u64, Vec<&Place>) {
    let alive: Vec<&Place> = places.iter().filter(|place| (place.first..=place.last).contains(&step)).collect();
    let taken = |place: &&Place| {
        alive.iter().any(|other| other.in_place_of.is_some_and(|i| std::ptr::eq(&raw const places[i as usize], *place)))
    };
    (alive.iter().filter(|place| !taken(place)).map(|place| place.size_bytes).sum(), alive)
}

/// lc#16725: the error of a failed allocation lists the largest tensors that are alive where memory peaks, largest first.
#[test]
fn report_24_a_failed_allocation_lists_what_is_largest_at_the_peak() {
    let mut checked = 0;
    for seed in 0..400 {
        let source = case(seed, Limits::default());
        let text = common::parse("case", &source).with_copies(1);
        let Ok(mut run) = Run::new(&text) else { continue };
        run.log.fail(Call::Allocate, 0, BackendError::OutOfMemory { size_bytes: 7 });
        let Err(error) = run.plan() else { continue };
        let PlanError::Allocation { largest, size_bytes, .. } = &error else { continue };
        run.log.heal();
        let plan = run.plan().expect("there is memory now");
        assert!(buffer_sizes(&plan).contains(size_bytes), "seed {seed}");
        let all = places(&plan);
        let steps = touched(&plan).steps.max(1);
        let most = (0..steps).map(|step| alive_at(&all, step).0).max().unwrap_or(0);
        let listed: Vec<(u64, &str)> = largest.iter().map(|t| (t.size_bytes, &*t.name)).collect();
        assert!(listed.windows(2).all(|pair| pair[0].0 >= pair[1].0), "seed {seed}: {listed:?}");
        let fits = (0..steps).any(|step| {
            let (bytes, alive) = alive_at(&all, step);
            let mut sizes: Vec<u64> = alive.iter().map(|place| place.size_bytes).collect();
            sizes.sort_unstable_by(|a, b| b.cmp(a));
            sizes.truncate(listed.len().max(1));
            let named =
                listed.iter().all(|(size, name)| alive.iter().any(|p| p.name == *name && p.size_bytes == *size));
            bytes == most && named && sizes == listed.iter().map(|(size, _)| *size).collect::<Vec<_>>()
        });
        assert!(fits, "seed {seed}: {listed:?} are not the largest where {most} bytes are alive\n{source}");
        let words = error.to_string();
        assert!(listed.iter().all(|(size, name)| words.contains(&format!("{name} ({size} bytes)"))), "{words}");
        checked += 1;
    }
    assert!(checked >= 100, "{checked} failures");
}

/// lc#5096: whatever a large batch fitted into, every smaller batch fits into, without another byte.
#[test]
fn report_27_a_smaller_batch_fits_where_a_larger_one_did() {
    for lines in ["backend cpu", "backend cpu align=256 pad=96", "backend gpu\nbackend cpu"] {
        let (mut engine, log) = engine_on(lines);
        let arena = engine.new_arena();
        let large = layer(&mut engine, "large", 130, arena);
        let expected = run_layer(&mut engine, large);
        let made = log.count(Call::Allocate);
        for tokens in (1..130).rev().step_by(3).chain([1, 2, 64, 65, 129]) {
            let small = layer(&mut engine, &format!("g{tokens}"), tokens, arena);
            let result = run_layer(&mut engine, small);
            assert!(result.iter().all(|value| value.is_finite()));
            assert_eq!(log.count(Call::Allocate), made, "{lines}: {tokens} tokens need more than 130 do");
            engine.remove_graph(small.0);
        }
        assert_eq!(run_layer(&mut engine, large), expected);
        assert_eq!(log.count(Call::Allocate), made);
    }
}
