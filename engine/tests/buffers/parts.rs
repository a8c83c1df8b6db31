//! Parts of tensors, whole buffers, and sets.

use entensor::{BackendError, ByteRows, DType, Engine, EngineError, GraphBuilder, SetPlace, TensorRequest, Usage};

use crate::{and_device, with_device};

fn oracle() -> Engine {
    Engine::builder().backend("oracle").build().expect("the oracle starts")
}

#[test]
fn parts_of_a_tensor_are_read_and_written_wherever_it_lies() {
    for mut engine in
        [oracle(), with_device(|_| ()), Engine::builder().backend("cpu:threads=1").build().expect("a cpu")]
    {
        let first = engine.backend_index(engine.backends()[0].name()).expect("the first");
        let buffer = engine.create_buffer("memory", first, Usage::Any, 96).expect("small");
        let before = engine.tensor_in("before", DType::I8, &[32], buffer, 0).expect("fits");
        let table = engine.tensor_in("table", DType::I8, &[8, 4], buffer, 32).expect("fits");
        let after = engine.tensor_in("after", DType::I8, &[32], buffer, 64).expect("fits");
        engine.clear_buffer(buffer, 1).expect("writable");
        engine.write_bytes(&table, 30, &[9, 9]).expect("the last two");
        engine.fill_bytes(&table, 0, 8, 2).expect("the first row");
        engine.write_rows(&table, 9, &ByteRows::new(2, 3, 8), &[3, 4, 5, 6, 7, 8]).expect("inside");
        let mut all = [0_i8; 32];
        engine.read_tensor(&table, &mut all).expect("it is there");
        let expected =
            [[2, 2, 2, 2, 2, 2, 2, 2], [1, 3, 4, 5, 1, 1, 1, 1], [1, 6, 7, 8, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 9, 9]];
        assert_eq!(all, expected.as_flattened());
        let mut column = [0; 4];
        engine.read_rows(&table, 1, &ByteRows::new(4, 1, 8), &mut column).expect("inside");
        assert_eq!(column, [2, 3, 6, 1]);
        let mut tail = [0; 3];
        engine.read_bytes(&table, 29, &mut tail).expect("inside");
        assert_eq!(tail, [1, 9, 9]);
        // Nothing of the neighbours is reached, even where the buffer has the bytes.
        let outside = |error| {
            matches!(error, Err(EngineError::Backend { source: BackendError::OutOfBounds { size_bytes: 32, .. }, .. }))
        };
        assert!(outside(engine.write_bytes(&table, 31, &[0; 2])));
        assert!(outside(engine.read_bytes(&table, 33, &mut [])));
        assert!(outside(engine.fill_bytes(&table, u64::MAX, 2, 0)));
        assert!(outside(engine.write_rows(&table, 7, &ByteRows::new(4, 2, 8), &[0; 8])));
        assert!(outside(engine.read_rows(&table, 0, &ByteRows::new(5, 1, 8), &mut [0; 5])));
        for neighbour in [&before, &after] {
            let mut bytes = [0_i8; 32];
            engine.read_tensor(neighbour, &mut bytes).expect("it is there");
            assert_eq!(bytes, [1; 32]);
        }
        engine.fill_buffer(buffer, 95, 1, 7).expect("the last byte");
        assert!(engine.fill_buffer(buffer, 95, 2, 7).is_err());
    }
}

#[test]
fn tensors_are_copied_from_backend_to_backend() {
    let mut engine = with_device(|_| ());
    let device = engine.backend_index("device").expect("the device");
    let place = |backend| SetPlace { backend, buffer_type: None, usage: Usage::Any };
    let request = [TensorRequest { name: "t", dtype: DType::F32, dims: &[3, 2] }];
    let values = [1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0];
    for (from, to) in
        [(device, device), (device, engine.host()), (engine.host(), device), (engine.host(), engine.host())]
    {
        let from = engine.tensor_set("from", place(from), &request).expect("small").tensors.remove(0);
        let to = engine.tensor_set("to", place(to), &request).expect("small").tensors.remove(0);
        engine.write_tensor(&from, &values).expect("six values");
        engine.copy_tensor(&from, &to).expect("alike");
        let mut copied = [0.0_f32; 6];
        engine.read_tensor(&to, &mut copied).expect("it is there");
        assert_eq!(copied, values);
    }
}

#[test]
fn a_set_has_as_many_buffers_as_the_largest_one_asks_for() {
    let requests: Vec<TensorRequest<'_>> = [("a", 10), ("b", 0), ("c", 16), ("d", 9), ("e", 16)]
        .map(|(name, _)| TensorRequest { name, dtype: DType::F32, dims: &[] })
        .into_iter()
        .collect();
    let dims = [[10_u64], [0], [16], [9], [16]];
    let requests: Vec<TensorRequest<'_>> =
        requests.into_iter().zip(&dims).map(|(request, dims)| TensorRequest { dims, ..request }).collect();
    for (largest, expected_buffers) in [(u64::MAX, 1), (128, 2), (64, 4)] {
        let mut engine = with_device(|capabilities| {
            capabilities.max_buffer_bytes = largest;
            capabilities.pad_bytes = 16;
            capabilities.align_bytes = 32;
        });
        let device = engine.backend_index("device").expect("the device");
        let place = SetPlace { backend: device, buffer_type: None, usage: Usage::Any };
        let set = engine.tensor_set("set", place, &requests).expect("everything fits");
        assert_eq!((set.tensors.len(), set.buffers.len()), (5, expected_buffers), "{largest}");
        for (index, tensor) in set.tensors.iter().enumerate() {
            let values = vec![index as f32; dims[index][0] as usize];
            engine.write_tensor(tensor, &values).expect("room for it");
        }
        for (index, tensor) in set.tensors.iter().enumerate() {
            let mut values = vec![9.0_f32; dims[index][0] as usize];
            engine.read_tensor(tensor, &mut values).expect("it is there");
            assert!(values.iter().all(|&value| value == index as f32), "{largest}: tensors share no bytes");
        }
        // One call for all buffers of a set.
        for &buffer in &set.buffers {
            engine.clear_buffer(buffer, 0).expect("writable");
            engine.set_usage(buffer, Usage::Weights).expect("live");
            assert_eq!(engine.usage_of(buffer).expect("live"), Usage::Weights);
        }
    }
    let mut engine = with_device(|capabilities| capabilities.max_buffer_bytes = 63);
    let device = engine.backend_index("device").expect("the device");
    let before = engine.backends()[0].memory_report().ours_bytes;
    let place = SetPlace { backend: device, buffer_type: None, usage: Usage::Any };
    match engine.tensor_set("set", place, &requests).expect_err("c is too large") {
        EngineError::Backend { what, source: BackendError::BufferTooLarge { size_bytes: 64, max_bytes: 63 } } => {
            assert_eq!(&*what, "c");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(engine.backends()[0].memory_report().ours_bytes, before, "all or nothing");
    let unknown = engine.tensor_set("set", SetPlace { buffer_type: Some("tape"), ..place }, &requests);
    assert!(matches!(unknown, Err(EngineError::Backend { source: BackendError::UnknownBufferType { .. }, .. })));
    let empty = engine.tensor_set("none", place, &[]).expect("nothing");
    assert_eq!((empty.tensors.len(), empty.buffers.len()), (0, 1));
}

#[test]
fn parts_wait_for_runs_and_are_in_the_shadow() {
    let (mut engine, device) = and_device(|_| ());
    let backend = engine.backend_index("device").expect("the device");
    let buffer = engine.create_buffer("state", backend, Usage::Any, 32).expect("small");
    let state = engine.tensor_in("state", DType::F32, &[8], buffer, 0).expect("fits");
    engine.keep_shadow(buffer).expect("it can be read");
    let mut g = GraphBuilder::new("adds one");
    let s = g.shared(&state).expect("one tensor");
    let x = g.input("x", DType::F32, &[8]).expect("small");
    let sum = g.add(s, x).expect("shapes fit");
    let stored = g.cpy(sum, s).expect("shapes fit");
    g.output("y", stored).expect("a free name");
    let graph = engine.add_graph(g);
    engine.write(graph, x, &[1.0_f32; 8]).expect("an input");
    engine.run_async(graph).expect("submitted");
    assert!(engine.in_flight(graph) > 0);
    // A part that is read is what the run made of it; one that is written is not overtaken by the run.
    let mut part = [0; 4];
    engine.read_bytes(&state, 12, &mut part).expect("inside");
    assert_eq!(f32::from_le_bytes(part), 1.0);
    engine.write(graph, x, &[2.0_f32; 8]).expect("an input");
    engine.run_async(graph).expect("submitted");
    engine.write_rows(&state, 4, &ByteRows::new(2, 4, 16), &[9; 8]).expect("inside");
    engine.fill_bytes(&state, 28, 4, 0).expect("inside");
    let nines = f32::from_le_bytes([9; 4]);
    let expected = [3.0, nines, 3.0, 3.0, 3.0, nines, 3.0, 0.0];
    let mut values = [0.0_f32; 8];
    engine.read_tensor(&state, &mut values).expect("it is there");
    assert_eq!(values, expected);
    // What runs wrote is in the shadow when somebody says so; what parts were written with is there at once.
    device.lose("for the test");
    engine.check_devices().expect("the host is there");
    engine.read_tensor(&state, &mut values).expect("made again from the shadow");
    assert_eq!(values, [0.0, nines, 0.0, 0.0, 0.0, nines, 0.0, 0.0]);
}

#[test]
fn a_buffer_of_no_bytes_is_a_buffer() {
    for mut engine in [oracle(), with_device(|_| ())] {
        for backend in 0..engine.backends().len() {
            let backend = engine.backend_index(engine.backends()[backend].name()).expect("there");
            let buffer = engine.create_buffer("empty", backend, Usage::Any, 0).expect("nothing");
            let empty = engine.tensor_in("empty", DType::F32, &[0, 4], buffer, 0).expect("fits");
            engine.write_tensor::<f32>(&empty, &[]).expect("nothing");
            engine.read_tensor::<f32>(&empty, &mut []).expect("nothing");
            engine.clear_buffer(buffer, 1).expect("nothing");
            assert!(engine.tensor_in("one", DType::F32, &[1], buffer, 0).is_err());
        }
    }
}
