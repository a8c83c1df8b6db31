//! Plans with one wait too few: each is caught, by the proof from the timeline and by the bytes of some schedule.

use std::sync::Arc;

use entensor::Usage;
use entensor_components::{DeviceBuffer, MemoryHandle, RunLimit};
use entensor_sim::{Race, check};
use entensor_systems::{GraphPlan, GraphRuns, Plan, PlanCache, Step};

use crate::machine::{ChainShape, Expected, Machine, WIDTH, chain, values};

/// A plan in memory of its own, which anybody may damage.
struct Loose {
    machine: Machine,
    plan: Arc<Plan>,
    memory: Vec<MemoryHandle>,
    _buffers: Vec<Arc<DeviceBuffer>>,
}

/// What a schedule showed.
struct Seen {
    races: Vec<Race>,
    /// Whether any result was wrong.
    wrong: bool,
}

impl Loose {
    fn new(machine: Machine, shape: ChainShape, places: u64) -> Self {
        let mut engine = machine.engine();
        let (g, ..) = chain(shape, places, |_| ());
        let graph = engine.add_graph(g);
        engine.plan(graph).expect("it can be planned");
        let plan = Arc::clone(&engine.world().get::<GraphPlan>(graph.0).expect("planned").plan);
        engine.remove_graph(graph);
        engine.world_mut().resource_mut::<PlanCache>().clear();
        drop(engine);
        let create = |buffer: &entensor_systems::PlanBuffer| {
            let backend = &plan.backends[buffer.backend as usize].handle;
            DeviceBuffer::create(backend, buffer.size_bytes, Usage::Compute).expect("small")
        };
        let buffers: Vec<Arc<DeviceBuffer>> = plan.buffers.iter().map(create).collect();
        let memory = buffers.iter().map(|buffer| buffer.memory().clone()).collect();
        Self { machine, plan, memory, _buffers: buffers }
    }

    fn plan_mut(&mut self) -> &mut Plan {
        Arc::get_mut(&mut self.plan).expect("nobody else holds it")
    }

    /// Writes the inputs of a round, as far as the run needs them.
    fn write(&self, slot: u32, round: u64) {
        for (name, values) in ["a", "b"].iter().zip(values(round)) {
            if self.plan.find(name).is_none() {
                continue;
            }
            let (backend, memory, offset) = self.access(name, slot);
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            backend.write(memory, offset, &bytes).expect("an input");
        }
    }

    fn read(&self, slot: u32) -> Vec<f32> {
        let (backend, memory, offset) = self.access("y", slot);
        let mut bytes = vec![0; 4 * WIDTH];
        backend.read(memory, offset, &mut bytes).expect("an output");
        bytes.chunks_exact(4).map(|c| f32::from_le_bytes(c.try_into().expect("four bytes"))).collect()
    }

    fn access(&self, name: &str, slot: u32) -> (&Arc<dyn entensor_components::Backend>, &MemoryHandle, u64) {
        let node = self.plan.find(name).expect("it is there");
        let place = self.plan.locate(node, slot).expect("it has a place");
        let buffer = &self.plan.buffers[place.memory.0 as usize];
        let backend = &self.plan.backends[buffer.backend as usize].handle;
        (backend, &self.memory[place.memory.0 as usize], place.offset_bytes)
    }

    /// Runs so many rounds, as many under way as there are slots.
    fn run(&self, seed: u64, rounds: u64, expected: &mut Expected) -> Seen {
        self.machine.world.reseed(seed);
        let runs = GraphRuns::default();
        let slots = self.plan.programs.len() as u64;
        let mut wrong = false;
        let mut numbers = Vec::new();
        for round in 0..rounds {
            let slot = u32::try_from(round % slots).expect("few");
            runs.wait_slot(slot);
            self.write(slot, round);
            numbers.push(runs.submit(&self.plan, &self.memory, &[], slot, &RunLimit::NONE).expect("submitted"));
            // The oldest whose slot is still its own.
            if let Some(old) = (round + 1).checked_sub(slots) {
                runs.wait(numbers[usize::try_from(old).expect("few")], &RunLimit::NONE).expect("it ran");
                wrong |= self.read(u32::try_from(old % slots).expect("few")) != expected.of(old);
            }
        }
        runs.wait_all();
        while self.machine.world.step() {}
        let races = check(&self.machine.world.take_timeline()).err().unwrap_or_default();
        Seen { races, wrong }
    }
}

/// Every wait of many plans is taken out, one at a time.
#[test]
fn a_wait_that_is_missing_is_caught() {
    let (mut waits, mut previous, mut wrong) = (0, 0, 0);
    for seed in 0..36 {
        let copies = 1 + u32::try_from(seed % 3).expect("few");
        let shape = ChainShape { seed, nodes: 8, copies };
        let machine = if seed % 2 == 0 { Machine::of(seed, 2) } else { Machine::sharing(seed, 2) };
        let (mut loose, mut expected) = (Loose::new(machine, shape, 3), Expected::new(shape));
        for schedule in 0..20 {
            let seen = loose.run(schedule, 6, &mut expected);
            assert_eq!(seen.races, [], "seed {seed}");
            assert!(!seen.wrong, "seed {seed}");
        }
        let steps = loose.plan.programs[0].steps.iter().enumerate();
        let all: Vec<usize> = steps.filter(|(_, step)| matches!(step, Step::Wait { .. })).map(|(at, _)| at).collect();
        for at in all {
            let plan = loose.plan_mut();
            let taken: Vec<Step> = plan.programs.iter_mut().map(|program| program.steps.remove(at)).collect();
            plan.index_steps();
            waits += 1;
            previous += u32::from(matches!(taken[0], Step::Wait { previous: true, .. }));
            let (mut is_proved, mut is_wrong) = (false, false);
            for schedule in 0..200 {
                let seen = loose.run(schedule, 6, &mut expected);
                is_proved |= !seen.races.is_empty();
                is_wrong |= seen.wrong;
                assert!(!seen.wrong || is_proved, "seed {seed}: wrong bytes, and no race is found");
                if is_proved && is_wrong {
                    break;
                }
            }
            assert!(is_proved, "seed {seed}: without {:?} nothing is found", taken[0]);
            wrong += u32::from(is_wrong);
            for (program, step) in loose.plan_mut().programs.iter_mut().zip(taken) {
                program.steps.insert(at, step);
            }
            loose.plan_mut().index_steps();
        }
    }
    println!("{waits} waits, {previous} of them for the run before; {wrong} showed in bytes too");
    assert!(waits >= 100 && previous >= 10, "{waits} waits, {previous} of them for the run before");
    // The others only make room: bytes that are overwritten too early are not always read again.
    assert!(wrong * 10 >= waits * 8, "{wrong} of {waits} showed in bytes");
}

/// What the host does with memory in use is ordered without any plan: its reads and writes wait for all that was submitted.
#[test]
fn the_host_never_overtakes_work_in_flight() {
    for seed in 0..crate::machine::SEEDS {
        let shape = ChainShape { seed: seed % 25, nodes: 6, copies: 1 };
        let loose = Loose::new(Machine::of(seed, 2), shape, 2);
        let on_host = loose.plan.splits.iter().any(|split| split.backend == 2);
        assert!(!on_host, "all of it is submitted at once");
        let mut expected = Expected::new(shape);
        let runs = GraphRuns::default();
        for round in 0..2 {
            // Nobody waited for the last run.
            loose.write(0, round);
            runs.submit(&loose.plan, &loose.memory, &[], 0, &RunLimit::NONE).expect("submitted");
        }
        runs.wait_all();
        assert_eq!(loose.read(0), expected.of(1), "seed {seed}");
        drop(runs);
        loose.machine.assert_no_race(seed);
    }
}
