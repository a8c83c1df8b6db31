//! Devices that fail, and devices that go away for good.

use std::sync::{Arc, Mutex};

use bevy_ecs::prelude::{On, ResMut, Resource};
use entensor::{
    BackendIndex, DType, DeviceLost, Engine, EngineError, GraphBuilder, GraphId, ImportedBytes, LostDevice, LostState,
    Tensor, TensorId, Usage,
};
use entensor_components::{Backend, BackendError, Readback, Ticket};
use entensor_sim::{Call, Fault, Pieces, SimBackend, SimConfig, Speed};
use entensor_snapshots::generate::Random;
use entensor_systems::GraphStatus;

use crate::machine::{Chain, ChainShape, Expected, Machine, SEEDS, oracle};

/// What an engine said about lost devices.
#[derive(Resource, Default)]
struct Heard(Vec<DeviceLost>);

fn listen(engine: &mut Engine) {
    engine.world_mut().init_resource::<Heard>();
    engine
        .world_mut()
        .add_observer(|lost: On<'_, '_, DeviceLost>, mut heard: ResMut<'_, Heard>| heard.0.push(lost.event().clone()));
}

/// A layer whose weights lie on the device, so that it runs there: `y = w·x`.
struct Layer {
    graph: GraphId,
    x: Tensor,
    y: Tensor,
}

const WEIGHTS: [f32; 6] = [1.0, 0.0, 0.0, 1.0, 1.0, 1.0];

fn weight_bytes() -> Arc<dyn ImportedBytes> {
    Arc::new(WEIGHTS.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>())
}

impl Layer {
    fn new(engine: &mut Engine, copies: u32) -> Result<Self, EngineError> {
        let buffer = engine.upload_buffer("w", BackendIndex(0), weight_bytes())?;
        let weights = engine.tensor_in("w", DType::F32, &[2, 3], buffer, 0)?;
        Ok(Self::with(engine, &weights, copies))
    }

    fn with(engine: &mut Engine, weights: &TensorId, copies: u32) -> Self {
        let mut g = GraphBuilder::new("layer");
        g.pipeline_copies(copies);
        let w = g.shared(weights).expect("one tensor");
        let x = g.input("x", DType::F32, &[2]).expect("a small input");
        let y = g.mul_mat(w, x).expect("shapes fit");
        let y = g.output("y", y).expect("a free name");
        Self { graph: engine.add_graph(g), x, y }
    }

    fn run(&self, engine: &mut Engine, a: f32, b: f32) -> Result<(), EngineError> {
        engine.write(self.graph, self.x, &[a, b])?;
        engine.run(self.graph)?;
        let mut result = [0.0_f32; 3];
        engine.read(self.graph, self.y, &mut result)?;
        assert_eq!(result, [a, b, a + b]);
        Ok(())
    }
}

fn is_lost(error: &EngineError) -> bool {
    matches!(
        error,
        EngineError::DeviceLost { .. } | EngineError::Backend { source: BackendError::DeviceLost { .. }, .. }
    )
}

/// A little program: allocates, plans, runs and reads, blocking and not.
fn program(engine: &mut Engine) -> Result<(), EngineError> {
    let layer = Layer::new(engine, 2)?;
    layer.run(engine, 1.0, 2.0)?;
    let mut runs = Vec::new();
    for round in 0..3_u8 {
        engine.write(layer.graph, layer.x, &[f32::from(round), 1.0])?;
        runs.push(engine.run_async(layer.graph)?);
    }
    engine.poll(runs[0])?;
    engine.wait(runs[1])?;
    engine.synchronize()?;
    let mut result = [0.0_f32; 3];
    engine.read_run(runs[2], layer.y, &mut result)?;
    assert_eq!(result, [2.0, 1.0, 3.0]);
    Ok(())
}

/// How many calls of any kind the program makes on the device.
fn calls() -> u64 {
    let machine = Machine::of(0, 1);
    program(&mut machine.engine()).expect("nothing is wrong");
    machine.devices[0].calls(None)
}

/// The device is lost at any call: at a submission, a wait, a read, or while its work runs. What went wrong is typed, it stays lost,
/// the same engine goes on with the host, and a new device works.
#[test]
fn report_44_a_device_is_lost_at_any_call() {
    let calls = calls();
    assert!(calls > 40, "{calls} calls");
    let (mut failed, mut survived) = (0, 0);
    for seed in 0..SEEDS.max(calls) {
        let machine = Machine::of(seed, 1);
        machine.devices[0].fail(None, seed % calls, Fault::Lose);
        let mut engine = machine.engine();
        listen(&mut engine);
        match program(&mut engine) {
            Ok(()) => survived += 1,
            Err(error) => {
                assert!(is_lost(&error), "seed {seed}: {error}");
                failed += 1;
            }
        }
        let device = &machine.devices[0];
        if device.is_lost() {
            assert_sticky(device);
            engine.check_devices().expect("the host is there");
            assert_eq!(engine.world().resource::<Heard>().0.len(), 1, "seed {seed}: it is said once");
            assert_eq!(engine.backends()[0].name(), "device0", "indices and names stay");
        }
        // On the host, the device gone.
        let weights = engine.weights("again", DType::F32, &[2, 3], &WEIGHTS).expect("on the host");
        Layer::with(&mut engine, &weights, 1).run(&mut engine, 3.0, 4.0).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        drop(engine);
        machine.assert_no_race(seed);
        assert_eq!(device.memory_report().ours_bytes, 0, "seed {seed}: nothing is left on it");
        // Made again, it works.
        let again = machine.world.device(SimConfig::device("device0", oracle()));
        let machine = Machine { devices: vec![again], ..machine };
        program(&mut machine.engine()).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
    assert!(failed > 300 && survived > 100, "{failed} failed, {survived} did not notice");
}

#[track_caller]
fn assert_sticky(device: &SimBackend) {
    let lost = |result: Result<(), BackendError>| {
        assert!(matches!(result, Err(BackendError::DeviceLost { .. })), "{result:?}");
    };
    lost(device.synchronize());
    lost(device.poll(Ticket::Pending(1)).map(drop));
    lost(device.record().map(drop));
    lost(device.create_buffer(1, Usage::Any).map(drop));
    device.clear_fault();
    lost(device.synchronize());
}

/// The same for a plain error at any call: it is reported, nothing is left behind, and the next try is right.
#[test]
fn report_44_any_call_fails_once() {
    let calls = calls();
    for seed in 0..SEEDS.max(calls) {
        let machine = Machine::of(seed, 1);
        let mut engine = machine.engine();
        let start = machine.devices[0].memory_report().ours_bytes;
        machine.devices[0].fail(None, seed % calls, Fault::Fail(BackendError::OutOfMemory { size_bytes: 1 }));
        if let Err(error) = program(&mut engine) {
            assert!(error.to_string().contains("could not be allocated"), "seed {seed}: {error}");
        }
        machine.devices[0].clear_fault();
        // What runs of the first try failed with is still to be asked for.
        let _ = engine.synchronize();
        program(&mut engine).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        drop(engine);
        machine.assert_no_race(seed);
        assert_eq!(machine.devices[0].memory_report().ours_bytes, start, "seed {seed}");
    }
}

/// A read-back that was under way when its device went away is lost with it, and says so.
#[test]
fn report_44_a_device_is_lost_under_a_read() {
    for seed in 0..SEEDS {
        let machine = Machine::of(seed, 1);
        let device = &machine.devices[0];
        let key = device.create_buffer(8, Usage::Any).expect("eight bytes");
        let memory = device.memory(key).expect("just made");
        device.write(&memory, 0, &[7; 8]).expect("it fits");
        let back = Readback::new(8).expect("small");
        let ticket = device.read_async(&memory, 0, &back).expect("queued");
        device.fail(Some([Call::Run, Call::Poll][seed as usize % 2]), 0, Fault::Lose);
        let error = device.wait_for(ticket, None);
        assert!(matches!(error, Err(BackendError::DeviceLost { .. })), "seed {seed}: {error:?}");
        assert_eq!(back.with(|bytes| bytes.to_vec()), [0; 8], "seed {seed}: nothing arrived");
        assert_sticky(device);
        device.destroy_buffer(key).expect("what is lost can be let go");
    }
}

/// Weights come back from what they were filled from, and a run that met the loss is done again where that cannot be seen.
#[test]
fn a_run_goes_on_where_another_backend_can() {
    for seed in 0..SEEDS / 2 {
        let machine = Machine::of(seed, 1);
        let mut engine = machine.engine();
        listen(&mut engine);
        let layer = Layer::new(&mut engine, 1 + u32::try_from(seed % 2).expect("few")).expect("it fits");
        layer.run(&mut engine, 1.0, 2.0).expect("on the device");
        machine.devices[0].fail(Some(Call::Run), seed % 3, Fault::Lose);
        layer.run(&mut engine, 5.0, 6.0).expect("on the host");
        assert!(machine.devices[0].is_lost(), "seed {seed}");
        let heard = &engine.world().resource::<Heard>().0;
        assert_eq!(heard.len(), 1);
        assert!(heard[0].recovered && heard[0].lost_buffers.is_empty() && &*heard[0].backend == "device0");
        let plan = engine.plan_of(layer.graph).expect("planned");
        assert_eq!(plan.splits.iter().filter(|split| split.backend == 0).count(), 0, "nothing runs on it");
        layer.run(&mut engine, 7.0, 8.0).expect("and again");
        let world = engine.world_mut();
        assert_eq!(world.query::<&LostDevice>().iter(world).count(), 1);
        drop(engine);
        machine.assert_no_race(seed);
    }
}

/// A run that is not waited for fails with a typed error; the graph's status says so until it is planned again.
#[test]
fn a_loss_is_on_the_status_of_every_graph_that_used_the_device() {
    let slow =
        SimConfig { compute: Speed { each_ns: 1000, ..Speed::default() }, ..SimConfig::device("device0", oracle()) };
    let machine = Machine::new(5, [slow]);
    let mut engine = machine.engine();
    let layer = Layer::new(&mut engine, 1).expect("it fits");
    let mut g = GraphBuilder::new("elsewhere");
    let x = g.input("x", DType::F32, &[2]).expect("a small input");
    let y = g.scale(x, 2.0).expect("shapes fit");
    g.pin(y, BackendIndex(1)).expect("a tensor of its own");
    g.output("y", y).expect("a free name");
    let elsewhere = engine.add_graph(g);
    engine.write(elsewhere, x, &[1.0_f32, 2.0]).expect("an input");
    engine.run(elsewhere).expect("on the host");
    engine.write(layer.graph, layer.x, &[1.0_f32, 2.0]).expect("an input");
    let run = engine.run_async(layer.graph).expect("submitted");
    machine.devices[0].lose("unplugged");
    let error = engine.wait(run).expect_err("it went away");
    let expected = EngineError::DeviceLost {
        graph: "layer".into(),
        backend: "device0".into(),
        reason: "unplugged".into(),
        recovered: true,
    };
    assert_eq!(error, expected);
    assert_eq!(
        error.to_string(),
        "graph `layer`: the device of `device0` was lost: unplugged; the graph is planned without it from now on: write its inputs and run it again"
    );
    let status = |engine: &Engine, graph: GraphId| engine.world().get::<GraphStatus>(graph.0).cloned();
    let lost = GraphStatus::DeviceLost { backend: "device0".into(), reason: "unplugged".into() };
    assert_eq!(status(&engine, layer.graph), Some(lost));
    assert_eq!(status(&engine, elsewhere), Some(GraphStatus::Planned));
    layer.run(&mut engine, 3.0, 4.0).expect("on the host");
    assert_eq!(status(&engine, layer.graph), Some(GraphStatus::Planned));
}

/// A counter on the device that every run adds to.
fn counter(engine: &mut Engine) -> (GraphId, Tensor, TensorId, entensor::BufferId) {
    let buffer = engine.create_buffer("counter", BackendIndex(0), Usage::Any, 16).expect("16 bytes");
    let kept = engine.tensor_in("counter", DType::F32, &[4], buffer, 0).expect("it fits");
    let mut g = GraphBuilder::new("count");
    let state = g.shared(&kept).expect("one tensor");
    let x = g.input("x", DType::F32, &[4]).expect("a small input");
    let sum = g.add(state, x).expect("shapes fit");
    let written = g.cpy(sum, state).expect("shapes fit");
    g.output("written", written).expect("a free name");
    (engine.add_graph(g), x, kept, buffer)
}

/// State with a shadow is what it was when the shadow was last brought up to date, whenever the device goes.
#[test]
fn state_comes_back_from_its_shadow() {
    for seed in 0..SEEDS {
        let machine = Machine::of(seed, 1);
        let mut engine = machine.engine();
        let (graph, x, kept, buffer) = counter(&mut engine);
        engine.write_tensor(&kept, &[10.0_f32; 4]).expect("memory of its own");
        engine.keep_shadow(buffer).expect("16 bytes");
        engine.write_tensor(&kept, &[20.0_f32; 4]).expect("the shadow follows");
        machine.devices[0].fail(Some(Call::Run), seed % 17, Fault::Lose);
        let mut value = 20.0;
        for _ in 0..6 {
            engine.write(graph, x, &[1.0_f32; 4]).expect("an input");
            engine.run(graph).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            value += 1.0;
            match engine.update_shadow(buffer, 0..16) {
                Ok(()) => {}
                Err(error) => {
                    // Lost between a run and its shadow: the run was not kept.
                    assert!(is_lost(&error), "seed {seed}: {error}");
                    engine.check_devices().expect("the host is there");
                    value -= 1.0;
                }
            }
        }
        let mut seen = [0.0_f32; 4];
        engine.check_devices().expect("the host is there");
        engine.read_tensor(&kept, &mut seen).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert_eq!(seen, [value; 4], "seed {seed}");
        drop(engine);
        machine.assert_no_race(seed);
    }
}

/// State without a shadow is lost, and nobody computes with zeros instead.
#[test]
fn state_without_a_shadow_is_a_typed_error() {
    let machine = Machine::of(9, 1);
    let mut engine = machine.engine();
    listen(&mut engine);
    let (graph, x, kept, buffer) = counter(&mut engine);
    engine.write(graph, x, &[1.0_f32; 4]).expect("an input");
    engine.run(graph).expect("on the device");
    machine.devices[0].lose("unplugged");
    let error = engine.write(graph, x, &[1.0_f32; 4]).and_then(|()| engine.run(graph)).expect_err("state is gone");
    assert_eq!(error.kind(), "StateLost", "{error}");
    assert_eq!(engine.world().resource::<Heard>().0[0].lost_buffers, ["counter".into()]);
    assert_eq!(engine.world().get::<LostState>(buffer.0), Some(&LostState { backend: "device0".into() }));
    let error = engine.run(graph).expect_err("and stays so");
    assert_eq!(
        error.to_string(),
        "graph `count`: the contents of `counter` were lost with the device of `device0`; restore buffer `counter` and write them again, or keep a shadow of it next time"
    );
    engine.restore_buffer(buffer).expect("16 bytes");
    engine.write_tensor(&kept, &[5.0_f32; 4]).expect("memory of its own");
    engine.write(graph, x, &[1.0_f32; 4]).expect("an input");
    engine.run(graph).expect("on the host");
    let mut seen = [0.0_f32; 4];
    engine.read_tensor(&kept, &mut seen).expect("memory of its own");
    assert_eq!(seen, [6.0; 4]);
}

/// Without the host there is no going on; that is a typed error too, every time.
#[test]
fn without_the_host_nothing_goes_on() {
    let machine = Machine::of(2, 1);
    let mut engine = machine.engine();
    listen(&mut engine);
    let layer = Layer::new(&mut engine, 1).expect("it fits");
    layer.run(&mut engine, 1.0, 2.0).expect("all is there");
    machine.host.lose("the end");
    for _ in 0..3 {
        let error = engine.write(layer.graph, layer.x, &[1.0_f32, 2.0]).expect_err("inputs are on the host");
        assert!(is_lost(&error), "{error}");
        assert!(engine.check_devices().is_err());
    }
    let heard = &engine.world().resource::<Heard>().0;
    assert_eq!((heard.len(), heard[0].recovered), (1, false));
}

/// A graph that is pinned to what is lost says so.
#[test]
fn a_pin_on_a_lost_device_is_an_error_until_it_is_taken_back() {
    let shape = ChainShape { seed: 4, nodes: 6, copies: 1 };
    let (machine, mut expected) = (Machine::of(4, 1), Expected::new(shape));
    let mut engine = machine.engine();
    let chain = Chain::on(&mut engine, shape, |_| ());
    chain.compute(&mut engine, 0).expect("all is there");
    machine.devices[0].lose("unplugged");
    let error = chain.compute(&mut engine, 1).expect_err("it is pinned there");
    let error = if is_lost(&error) { chain.compute(&mut engine, 1).expect_err("still pinned") } else { error };
    assert_eq!(error.kind(), "PinUnsupported", "{error}");
    assert!(error.to_string().contains("its device was lost"), "{error}");
    let tensors = engine.world().get::<entensor_components::GraphTensors>(chain.graph.0).expect("a graph").0.clone();
    for tensor in tensors {
        engine.world_mut().entity_mut(tensor).insert(entensor_components::Pinned(None));
    }
    assert_eq!(chain.compute(&mut engine, 2), Ok(expected.of(2)));
}

/// Cheap and expensive nodes: a submission is as long as its estimated time allows, not as many nodes as somebody thought.
#[test]
fn report_45_a_submission_is_bounded_by_its_estimated_time() {
    const LIMIT_NS: u64 = 10_000;
    let (mut lost, mut several) = (0, 0);
    for seed in 0..SEEDS {
        let run = |pieces| {
            let config = SimConfig {
                compute: Speed { each_ns: 100, flops_per_us: 0, bytes_per_us: 1024 },
                pieces,
                watchdog_ns: Some(LIMIT_NS),
                ..SimConfig::device("device0", oracle())
            };
            let machine = Machine::new(seed, [config]);
            let mut engine = machine.engine();
            let (graph, x) = uneven(&mut engine, seed);
            engine.write(graph, x, &[0.5_f32; 4]).expect("an input");
            let result = engine.run(graph);
            (machine, result)
        };
        let (machine, result) = run(Pieces::Time(LIMIT_NS));
        result.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert!(!machine.devices[0].is_lost(), "seed {seed}");
        let timeline = machine.world.timeline();
        let works = timeline.works().filter(|work| work.label.contains("step"));
        for work in works {
            let nodes = work.label.split(' ').count();
            assert!(
                nodes == 1 || work.end_ns - work.start_ns <= LIMIT_NS,
                "seed {seed}: {} for {nodes}",
                work.end_ns - work.start_ns
            );
            several += u32::from(nodes > 1);
        }
        machine.assert_no_race(seed);
        // A count that is right for cheap nodes loses the device over expensive ones.
        let (machine, _) = run(Pieces::Nodes(8));
        lost += u32::from(machine.devices[0].is_lost());
    }
    assert!(several > 1000, "cheap nodes go together: {several}");
    assert!(lost > 500, "counting nodes would do as well: {lost} lost");
}

/// A chain whose tensors are of 4 to 8192 elements.
fn uneven(engine: &mut Engine, seed: u64) -> (GraphId, Tensor) {
    let mut random = Random::new(seed);
    let mut g = GraphBuilder::new("uneven");
    let x = g.input("x", DType::F32, &[4]).expect("a small input");
    let mut sum = None;
    for step in 0..12 {
        let rows = *random.pick(&[1, 2, 4, 8, 512, 2048]);
        let wide = g.repeat(x, [4, rows, 1, 1]).expect("shapes fit");
        let wide = g.scale(wide, 0.5).expect("shapes fit");
        let row = g.view(wide, 0, [4, 1, 1, 1], None).expect("its first row");
        let row = g.scale(row, 2.0).expect("shapes fit");
        g.name(&format!("step{step}"), row).expect("a free name");
        for tensor in [wide, row] {
            g.pin(tensor, BackendIndex(0)).expect("a tensor of its own");
        }
        sum = Some(match sum {
            Some(sum) => g.add(sum, row).expect("shapes fit"),
            None => row,
        });
    }
    let sum = sum.expect("twelve steps");
    g.pin(sum, BackendIndex(0)).expect("a tensor of its own");
    g.output("y", sum).expect("a free name");
    (engine.add_graph(g), x)
}

/// The observer may use the world: it runs after the engine has done what it can.
#[test]
fn an_observer_sees_the_engine_as_it_goes_on() {
    let machine = Machine::of(6, 1);
    let mut engine = machine.engine();
    let seen: Arc<Mutex<Vec<bool>>> = Arc::default();
    let note = Arc::clone(&seen);
    engine.world_mut().add_observer(
        move |_: On<'_, '_, DeviceLost>, backends: bevy_ecs::prelude::Res<'_, entensor_systems::Backends>| {
            let refuses = backends.0[0].create_buffer(4, Usage::Any).is_err();
            note.lock().expect("nobody panicked").push(refuses);
        },
    );
    machine.devices[0].lose("unplugged");
    engine.check_devices().expect("the host is there");
    assert_eq!(*seen.lock().expect("nobody panicked"), [true]);
}
