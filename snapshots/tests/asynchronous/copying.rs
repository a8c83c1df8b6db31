//! Copies under way while the host writes, frees and grows.

use entensor::{BackendIndex, DType, GraphBuilder};
use entensor_components::{Backend, Readback, Usage};
use entensor_systems::GraphPlan;

use crate::machine::{Chain, ChainShape, Expected, Machine, SEEDS, WIDTH};

/// The host writes the next inputs while the last ones are still to be copied: every run computes with its own.
#[test]
fn report_38_a_copy_in_flight_has_the_bytes_of_its_own_run() {
    for seed in 0..SEEDS {
        let shape = ChainShape { seed: seed % 30, nodes: 6, copies: 1 + u32::try_from(seed % 4).expect("few") };
        let (machine, mut expected) = (Machine::of(seed, 2), Expected::new(shape));
        let mut engine = machine.engine();
        let chain = Chain::on(&mut engine, shape, |_| ());
        let mut last = None;
        for round in 0..6 {
            chain.write(&mut engine, round).expect("inputs");
            let run = engine.run_async(chain.graph).expect("submitted");
            // With one slot the write has to wait for its run, with more for an older one.
            if let Some((round, run)) = last.filter(|_| shape.copies > 1) {
                assert_eq!(chain.read(&engine, run), Ok(expected.of(round)), "seed {seed}");
            }
            last = Some((round, run));
        }
        let (round, run) = last.expect("six rounds");
        assert_eq!(chain.read(&engine, run), Ok(expected.of(round)), "seed {seed}");
        machine.assert_no_race(seed);
    }
}

/// What is written asynchronously is taken at once: the caller may do with its bytes what it likes.
#[test]
fn report_38_bytes_to_be_written_are_taken_at_once() {
    for seed in 0..SEEDS {
        let machine = Machine::of(seed, 1);
        let device = &machine.devices[0];
        let key = device.create_buffer(4, Usage::Any).expect("four bytes");
        let memory = device.memory(key).expect("just made");
        let mut bytes = [1, 2, 3, 4];
        device.write_async(&memory, 0, &bytes).expect("queued");
        bytes.fill(9);
        let mut back = [0; 4];
        device.read(&memory, 0, &mut back).expect("it waits for the write");
        assert_eq!((back, bytes), ([1, 2, 3, 4], [9; 4]), "seed {seed}");
        machine.assert_no_race(seed);
    }
}

/// A read that is under way keeps its memory alive when the buffer is destroyed, and unchanged when the host writes there next.
#[test]
fn report_39_a_read_in_flight_keeps_its_memory_alive_and_unchanged() {
    for seed in 0..SEEDS {
        let machine = Machine::of(seed, 1);
        let device = &machine.devices[0];
        let key = device.create_buffer(8, Usage::Any).expect("eight bytes");
        let memory = device.memory(key).expect("just made");
        device.write(&memory, 0, &[1, 2, 3, 4, 5, 6, 7, 8]).expect("fits");
        let (first, second) = (Readback::new(4).expect("small"), Readback::new(4).expect("small"));
        let before = device.read_async(&memory, 2, &first).expect("queued");
        device.write(&memory, 0, &[9; 8]).expect("behind the read");
        let after = device.read_async(&memory, 2, &second).expect("queued");
        device.destroy_buffer(key).expect("live");
        drop(memory);
        let other = device.create_buffer(8, Usage::Any).expect("eight bytes");
        let other = device.memory(other).expect("just made");
        device.write_async(&other, 0, &[77; 8]).expect("queued");
        if seed % 2 == 0 {
            // The reader goes too: the read still has somewhere to put its bytes.
            drop(second.clone());
        }
        assert_eq!(device.wait_for(after, None), Ok(true));
        assert_eq!(device.poll(before), Ok(true), "in order");
        assert_eq!(first.with(|bytes| bytes.to_vec()), [3, 4, 5, 6], "seed {seed}");
        assert_eq!(second.with(|bytes| bytes.to_vec()), [9; 4], "seed {seed}");
        machine.assert_no_race(seed);
    }
}

/// Planned memory grows for a larger graph while an output of the smaller one is still being read.
#[test]
fn report_40_memory_that_grows_under_a_pending_read() {
    let width = WIDTH as u64;
    for seed in 0..SEEDS {
        let machine = Machine::of(seed, 1);
        let mut engine = machine.engine();
        let arena = engine.new_arena();
        let mut doubled = |rows: u64| {
            let mut g = GraphBuilder::new(format!("{rows} rows"));
            g.share_arena(arena);
            let x = g.input("x", DType::F32, &[width, rows]).expect("a small input");
            let y = g.scale(x, 2.0).expect("shapes fit");
            g.pin(y, BackendIndex(0)).expect("a tensor of its own");
            let y = g.output("y", y).expect("a free name");
            (engine.add_graph(g), x, y)
        };
        let (small, large) = (doubled(1), doubled(64));
        engine.write(small.0, small.1, &[3.0_f32; WIDTH]).expect("an input");
        engine.run_async(small.0).expect("submitted");
        engine.synchronize().expect("it ran");
        let plan = engine.world().get::<GraphPlan>(small.0.0).expect("planned");
        let place = plan.plan.locate(plan.plan.find("y").expect("its output"), 0).expect("it has a place");
        let memory = plan.binding[place.memory.0 as usize].clone();
        let back = Readback::new(4 * width).expect("small");
        let ticket = machine.devices[0].read_async(&memory, place.offset_bytes, &back).expect("queued");
        drop(memory);
        engine.write(large.0, large.1, &vec![1.0_f32; WIDTH * 64]).expect("the arena grows");
        let run = engine.run_async(large.0).expect("submitted");
        engine.wait(run).expect("it ran");
        assert_eq!(machine.devices[0].wait_for(ticket, None), Ok(true));
        let read: Vec<f32> = back.with(|bytes| {
            let floats = bytes.chunks_exact(4).map(|c| f32::from_le_bytes(c.try_into().expect("four bytes")));
            floats.collect()
        });
        assert_eq!(read, [6.0; WIDTH], "seed {seed}");
        let mut result = vec![0.0_f32; WIDTH * 64];
        engine.read(large.0, large.2, &mut result).expect("an output");
        assert_eq!(result, vec![2.0; WIDTH * 64], "seed {seed}");
        machine.assert_no_race(seed);
    }
}

/// The same while the run that makes the output is still under way: growing waits for it.
#[test]
fn report_40_memory_that_grows_under_a_run() {
    for seed in 0..SEEDS {
        let machine = Machine::of(seed, 2);
        let mut engine = machine.engine();
        let arena = engine.new_arena();
        let shapes = [4, 30].map(|nodes| ChainShape { seed, nodes, copies: 2 });
        let chains = shapes.map(|shape| {
            Chain::on(&mut engine, shape, |g| {
                g.share_arena(arena);
            })
        });
        for (chain, shape) in chains.iter().zip(shapes) {
            let mut expected = Expected::new(shape);
            for round in 0..3 {
                chain.write(&mut engine, round).expect("inputs");
                let run = engine.run_async(chain.graph).expect("submitted");
                if round == 1 {
                    assert_eq!(chain.read(&engine, run), Ok(expected.of(round)), "seed {seed}");
                }
            }
        }
        engine.synchronize().expect("all went well");
        machine.assert_no_race(seed);
    }
}
