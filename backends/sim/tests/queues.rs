//! What queues order and what they do not, memory, faults and the clock, at the seam itself.

use std::{sync::Arc, time::Duration};

use entensor_components::{
    Backend, BackendError, DType, MemoryHandle, MemorySlot, NodeDesc, Op, PreparedSplit, QueueKind, Readback, Shape,
    SplitDesc, TensorDesc, TensorRef, Ticket, Usage,
};
use entensor_oracle::OracleBackend;
use entensor_sim::{Call, Fault, Lane, RaceKind, SimBackend, SimConfig, SimWorld, Speed, check};

fn oracle() -> Arc<dyn Backend> {
    Arc::new(OracleBackend::new("inner"))
}

fn device(world: &SimWorld, name: &str) -> Arc<SimBackend> {
    world.device(SimConfig::device(name, oracle()))
}

fn memory(device: &SimBackend, size_bytes: u64) -> MemoryHandle {
    let key = device.create_buffer(size_bytes, Usage::Any).expect("small");
    device.memory(key).expect("just made")
}

/// `scale(x, 2)` of two floats, from the start of the memory to 8 bytes behind it.
fn doubling(device: &SimBackend) -> Box<dyn PreparedSplit> {
    let desc = TensorDesc::packed(DType::F32, Shape([2, 1, 1, 1])).expect("small");
    let at = |offset_bytes| TensorRef { desc, memory: MemorySlot(0), offset_bytes };
    let node = NodeDesc { name: "doubled".into(), op: Op::Scale { by: 2.0 }, output: at(8), operands: vec![at(0)] };
    device.prepare(&SplitDesc { nodes: vec![node], memory_slots: 1 }).expect("scale is supported")
}

fn floats(values: [f32; 2]) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&values[0].to_le_bytes());
    bytes[4..].copy_from_slice(&values[1].to_le_bytes());
    bytes
}

/// An upload and a computation on it, with an event between them or without.
fn upload_and_compute(seed: u64, ordered: bool) -> ([u8; 8], SimWorld) {
    let world = SimWorld::new(seed);
    let device = device(&world, "device0");
    let (memory, split) = (memory(&device, 16), doubling(&device));
    let upload = device.write_async(&memory, 0, &floats([1.0, 3.0])).expect("queued");
    if ordered {
        let Ticket::Pending(event) = upload else { panic!("it waits in the queue") };
        device.wait(&*device, event).expect("its own event");
    }
    split.submit(std::slice::from_ref(&memory)).expect("queued");
    let mut result = [0; 8];
    device.read(&memory, 8, &mut result).expect("behind the computation");
    (result, world)
}

/// Without the event some schedules compute before the bytes are there, and the proof fails under every one.
#[test]
fn a_missing_event_shows() {
    let right = floats([2.0, 6.0]);
    let (mut early, mut late) = (0, 0);
    for seed in 0..200 {
        let (result, world) = upload_and_compute(seed, true);
        assert_eq!(result, right, "seed {seed}");
        assert_eq!(check(&world.timeline()), Ok(()), "seed {seed}");
        let (result, world) = upload_and_compute(seed, false);
        let races = check(&world.timeline()).expect_err("nothing orders them");
        assert_eq!(races[0].kind, RaceKind::ReadOfUnfinishedWrite, "seed {seed}");
        assert!(races[0].to_string().contains("`doubled`"), "{}", races[0]);
        if result == right { late += 1 } else { early += 1 }
    }
    assert!(early > 20 && late > 20, "{early} schedules show it, {late} do not");
}

/// The same seed gives the same timeline, to the nanosecond.
#[test]
fn a_seed_is_a_schedule() {
    for seed in 0..20 {
        let [a, b] = [(); 2].map(|()| upload_and_compute(seed, true).1.timeline());
        assert_eq!(a, b);
    }
}

#[test]
fn events_order_queues_of_several_devices() {
    for seed in 0..200 {
        let world = SimWorld::new(seed);
        let devices = ["device0", "device1"].map(|name| device(&world, name));
        let [a, b] = [0, 1].map(|i| memory(&devices[i], 16));
        devices[0].write(&a, 0, &floats([1.0, 3.0])).expect("it fits");
        doubling(&devices[0]).submit(std::slice::from_ref(&a)).expect("queued");
        let computed = devices[0].record().expect("an event");
        devices[1].wait_on(QueueKind::Copy, &*devices[0], computed).expect("of the same world");
        devices[1].copy_from(&b, 0, &*devices[0], &a, 8, 8).expect("queued");
        let copied = devices[1].record_on(QueueKind::Copy).expect("an event");
        devices[1].wait(&*devices[1], copied).expect("its own");
        doubling(&devices[1]).submit(std::slice::from_ref(&b)).expect("queued");
        assert!(world.pending() > 0, "nothing waits for anything yet");
        let mut result = [0; 8];
        devices[1].read(&b, 8, &mut result).expect("behind it");
        assert_eq!(result, floats([4.0, 12.0]), "seed {seed}");
        assert_eq!(devices[1].query(copied), Ok(true));
        assert_eq!(check(&world.timeline()), Ok(()), "seed {seed}");
    }
}

/// Bad tickets, memories and ranges are typed errors.
#[test]
fn what_is_not_theirs_is_refused() {
    let world = SimWorld::new(1);
    let devices = ["device0", "device1"].map(|name| device(&world, name));
    let event = devices[0].record().expect("an event");
    let unknown = |event| Err(BackendError::UnknownEvent { backend: "device1".into(), event });
    assert_eq!(devices[1].query(event), unknown(event));
    assert_eq!(devices[0].wait(&*devices[1], event), unknown(event).map(drop));
    assert_eq!(devices[1].wait_for(Ticket::Pending(99), None), unknown(99));
    assert_eq!(devices[1].cancel(Ticket::Pending(0)), unknown(0).map(drop));
    assert_eq!(devices[1].elapsed(event, event).map(drop), unknown(event).map(drop));
    let (mine, theirs) = (memory(&devices[0], 16), memory(&devices[1], 16));
    assert_eq!(devices[0].write(&theirs, 0, &[1]), Err(BackendError::ForeignMemory));
    assert_eq!(doubling(&devices[0]).submit(std::slice::from_ref(&theirs)), Err(BackendError::ForeignMemory));
    let other = SimWorld::new(1);
    let elsewhere = memory(&device(&other, "device0"), 16);
    assert_eq!(devices[0].read(&elsewhere, 0, &mut [0]), Err(BackendError::ForeignMemory));
    assert!(matches!(devices[0].write(&mine, 16, &[1]), Err(BackendError::OutOfBounds { .. })));
    assert!(matches!(devices[0].write_async(&mine, u64::MAX, &[1]), Err(BackendError::OutOfBounds { .. })));
    assert!(matches!(doubling(&devices[0]).submit(&[]), Err(BackendError::OutOfBounds { .. })));
    let small = memory(&devices[0], 8);
    assert!(matches!(doubling(&devices[0]).submit(&[small]), Err(BackendError::OutOfBounds { .. })));
    let back = Readback::new(17).expect("small");
    assert!(matches!(devices[0].read_async(&mine, 0, &back), Err(BackendError::OutOfBounds { .. })));
    assert!(matches!(devices[0].import_host(Arc::new(vec![1])), Err(BackendError::Unsupported { .. })));
    let host = world.device(SimConfig::host("host", oracle()));
    let key = host.import_host(Arc::new(vec![1, 2, 3])).expect("the host can");
    let imported = host.memory(key).expect("just made");
    assert_eq!(host.write(&imported, 0, &[9]), Err(BackendError::ReadOnly));
    assert_eq!(host.memory_report().ours_bytes, 0, "what is imported is not ours");
    host.destroy_buffer(key).expect("live");
    assert_eq!(host.destroy_buffer(key), Err(BackendError::StaleBuffer));
    assert!(matches!(host.memory(key), Err(BackendError::StaleBuffer)));
}

/// An event of another world, or of another kind of backend, is waited for by the host.
#[test]
fn events_of_strangers_are_waited_for() {
    let (here, there) = (SimWorld::new(1), SimWorld::new(2));
    let (mine, theirs) = (device(&here, "mine"), device(&there, "theirs"));
    let memory = memory(&theirs, 4);
    let ticket = theirs.write_async(&memory, 0, &[1, 2, 3, 4]).expect("queued");
    let Ticket::Pending(event) = ticket else { panic!("it waits in the queue") };
    mine.wait(&*theirs, event).expect("the host waits");
    assert_eq!(there.pending(), 0);
    let own = self::memory(&mine, 4);
    mine.copy_from(&own, 0, &*theirs, &memory, 0, 4).expect("through the host");
    let mut back = [0; 4];
    mine.read(&own, 0, &mut back).expect("behind the copy");
    assert_eq!(back, [1, 2, 3, 4]);
    let stranger = oracle();
    let key = stranger.create_buffer(4, Usage::Any).expect("small");
    let host = stranger.memory(key).expect("just made");
    stranger.write(&host, 0, &[5, 6, 7, 8]).expect("it fits");
    mine.copy_from(&own, 0, &*stranger, &host, 0, 4).expect("host memory is read in place");
    mine.wait(&*stranger, stranger.record().expect("none")).expect("it is done already");
    mine.read(&own, 0, &mut back).expect("behind the copy");
    assert_eq!(back, [5, 6, 7, 8]);
    stranger.copy_from(&host, 0, &*mine, &own, 1, 3).expect("the default way");
    let mut copied = [0; 4];
    stranger.read(&host, 0, &mut copied).expect("host memory");
    assert_eq!(copied, [6, 7, 8, 8]);
}

/// Memory counts until the last work that uses it is over.
#[test]
fn memory_is_limited_and_counted() {
    let world = SimWorld::new(3);
    let device = world.device(SimConfig { memory_bytes: 100, ..SimConfig::device("small", oracle()) });
    let key = device.create_buffer(60, Usage::Any).expect("it fits");
    let failed = device.create_buffer(60, Usage::Any);
    assert_eq!(failed, Err(BackendError::OutOfMemory { size_bytes: 60 }));
    let report = device.memory_report();
    assert_eq!((report.total_bytes, report.free_bytes, report.ours_bytes), (Some(100), Some(40), 60));
    let memory = device.memory(key).expect("live");
    device.write_async(&memory, 0, &[1; 60]).expect("queued");
    drop(memory);
    device.destroy_buffer(key).expect("live");
    assert_eq!(device.memory_report().ours_bytes, 60, "the write still uses it");
    device.synchronize().expect("all is done");
    assert_eq!(device.memory_report().ours_bytes, 0);
    device.create_buffer(100, Usage::Any).expect("it fits now");
}

/// Times come from the speeds alone: what waits starts when the last thing that it waits for ends.
#[test]
fn times_follow_from_speeds_and_order() {
    for seed in 0..50 {
        let world = SimWorld::new(seed);
        let config = SimConfig {
            compute: Speed { each_ns: 500, flops_per_us: 2, bytes_per_us: 0 },
            copy: Speed::bytes_per_us(4),
            ..SimConfig::device("device0", oracle())
        };
        let device = world.device(config);
        let (memory, split) = (memory(&device, 16), doubling(&device));
        let first = device.record().expect("an event");
        // 8 bytes at 4 a microsecond.
        let Ticket::Pending(upload) = device.write_async(&memory, 0, &floats([1.0, 2.0])).expect("queued") else {
            panic!("it waits in the queue")
        };
        device.wait(&*device, upload).expect("its own");
        // Two operations at 2 a microsecond, and half a microsecond for the node.
        let computed = split.submit(std::slice::from_ref(&memory)).expect("queued");
        let Ticket::Pending(computed) = computed else { panic!("it waits in the queue") };
        assert_eq!(world.now_ns(), 0);
        assert_eq!(device.elapsed(first, computed), Ok(None), "it has not run");
        let short = Some(Duration::from_nanos(3000));
        assert_eq!(device.wait_for(Ticket::Pending(computed), short), Ok(false), "seed {seed}");
        assert_eq!(world.now_ns(), 3000, "seed {seed}");
        assert_eq!(device.wait_for(Ticket::Pending(computed), None), Ok(true));
        assert_eq!(world.now_ns(), 3500, "seed {seed}");
        assert_eq!(device.elapsed(upload, computed), Ok(Some(Duration::from_nanos(1500))), "seed {seed}");
        let timeline = world.timeline();
        let compute: Vec<_> =
            timeline.ran(Lane::Queue(0, QueueKind::Compute)).map(|w| (w.start_ns, w.end_ns)).collect();
        assert_eq!(compute, [(0, 0), (2000, 3500)], "seed {seed}");
    }
}

/// Who polls and does nothing else lets time pass.
#[test]
fn polling_ends() {
    let world = SimWorld::new(4);
    let device = world.device(SimConfig { copy: Speed::bytes_per_us(1), ..SimConfig::device("slow", oracle()) });
    let memory = memory(&device, 1000);
    let ticket = device.write_async(&memory, 0, &[1; 1000]).expect("queued");
    let mut polls = 0;
    while !device.poll(ticket).expect("all goes well") {
        polls += 1;
        assert!(polls < 100, "it never ends");
    }
    assert!(polls > 3, "it is no wait");
    assert_eq!(world.now_ns(), 1_000_000);
}

/// Cancelled work does nothing; what is behind it goes on.
#[test]
fn cancelled_work_touches_nothing() {
    for seed in 0..100 {
        let world = SimWorld::new(seed);
        let device = device(&world, "device0");
        let memory = memory(&device, 4);
        let first = device.write_async(&memory, 0, &[1, 1, 1, 1]).expect("queued");
        let second = device.write_async(&memory, 2, &[2, 2]).expect("queued");
        device.cancel(first).expect("a ticket of its own");
        assert_eq!(device.poll(first), Err(BackendError::Cancelled));
        assert_eq!(device.wait_for(second, None), Ok(true));
        assert_eq!(device.wait_for(first, None), Err(BackendError::Cancelled), "as often as it is asked");
        device.cancel(second).expect("it is done");
        assert_eq!(device.poll(second), Ok(true), "what is done stays done");
        let mut back = [9; 4];
        device.read(&memory, 0, &mut back).expect("it fits");
        assert_eq!(back, [0, 0, 2, 2], "seed {seed}");
    }
}

/// What goes wrong in a queue is said by the ticket, every time.
#[test]
fn a_failure_in_a_queue_is_the_tickets() {
    let world = SimWorld::new(8);
    let device = device(&world, "device0");
    let memory = memory(&device, 4);
    device.fail(Some(Call::Run), 1, Fault::Fail(BackendError::StaleBuffer));
    let tickets = [(); 3].map(|()| device.write_async(&memory, 0, &[7; 4]).expect("queued"));
    let results = tickets.map(|ticket| device.wait_for(ticket, None));
    assert_eq!(results, [Ok(true), Err(BackendError::StaleBuffer), Ok(true)]);
    assert_eq!(device.poll(tickets[1]), Err(BackendError::StaleBuffer));
    device.synchronize().expect("the device is there");
}

/// A lost device drops what was queued, others fail where they waited for it, and the rest goes on.
#[test]
fn a_loss_reaches_who_waited_for_it() {
    let world = SimWorld::new(6);
    let devices = ["device0", "device1"].map(|name| device(&world, name));
    let [a, b] = [0, 1].map(|i| memory(&devices[i], 8));
    let event = devices[0].record().expect("an event");
    devices[1].wait_on(QueueKind::Copy, &*devices[0], event).expect("of the same world");
    let copied = devices[1].copy_from(&b, 0, &*devices[0], &a, 0, 8).expect("queued");
    let free = devices[1].record().expect("an event");
    devices[0].lose("unplugged");
    let lost = || Err(BackendError::DeviceLost { reason: "unplugged".into() });
    assert_eq!(devices[1].wait_for(copied, None), lost());
    assert_eq!(devices[1].wait_for(Ticket::Pending(free), None), Ok(true), "the other queue did not wait");
    assert_eq!(devices[1].wait(&*devices[0], event), lost().map(drop));
    assert_eq!(devices[1].synchronize(), Ok(()), "it is not lost itself");
    assert_eq!(devices[0].synchronize(), lost().map(drop));
    let mut back = [1; 8];
    devices[1].read(&b, 0, &mut back).expect("its own memory");
    assert_eq!(back, [0; 8]);
}
