//! Misuse of buffers and tensors: typed errors.

use std::sync::Arc;

use entensor::{
    BackendError, BackendIndex, DType, Engine, EngineError, GraphBuilder, ImportedBytes, SetPlace, Shape, TensorId,
    TensorRequest, Usage,
    components::{StoredIn, TensorBundle, TensorDesc},
};

use crate::with_device;

struct Engines {
    engine: Engine,
    other: Engine,
}

fn engines() -> Engines {
    Engines { engine: with_device(|_| ()), other: Engine::builder().backend("oracle").build().expect("it starts") }
}

#[test]
fn every_mistake_about_a_tensor_is_a_typed_error() {
    let Engines { mut engine, mut other } = engines();
    let state = engine.state("state", DType::F32, &[4]).expect("small");
    let mut four = [0.0_f32; 4];
    // Wrong size, wrong dtype.
    assert!(matches!(engine.write_tensor(&state, &[0.0_f32; 5]), Err(EngineError::WrongLength { .. })));
    assert!(matches!(engine.read_tensor(&state, &mut [0.0_f32; 3]), Err(EngineError::WrongLength { .. })));
    assert!(matches!(engine.write_tensor(&state, &[0_i32; 4]), Err(EngineError::WrongDType { .. })));
    // Without memory of its own.
    let desc = TensorDesc::packed(DType::F32, Shape([4, 1, 1, 1])).expect("small");
    let name: Arc<str> = "bare".into();
    let entity = engine.world_mut().spawn(TensorBundle::leaf(Arc::clone(&name), desc)).id();
    let bare = TensorId { entity, name, desc };
    assert!(matches!(engine.write_tensor(&bare, &four), Err(EngineError::UnknownBuffer)));
    assert!(matches!(engine.read_tensor(&bare, &mut four), Err(EngineError::UnknownBuffer)));
    assert!(matches!(engine.write_bytes(&bare, 0, &[0]), Err(EngineError::UnknownBuffer)));
    assert!(matches!(engine.copy_tensor(&bare, &state), Err(EngineError::UnknownBuffer)));
    assert!(matches!(engine.copy_tensor(&state, &bare), Err(EngineError::UnknownBuffer)));
    // Despawned.
    engine.world_mut().despawn(bare.entity);
    assert!(matches!(engine.read_tensor(&bare, &mut four), Err(EngineError::UnknownTensor)));
    assert!(matches!(engine.read_bytes(&bare, 0, &mut [0]), Err(EngineError::UnknownTensor)));
    // Of another engine: its entity is nobody's here, or somebody else's.
    for index in 0..200 {
        other.world_mut().spawn_empty();
        let foreign = other.state(&format!("foreign {index}"), DType::F32, &[4]).expect("small");
        if engine.world().get_entity(foreign.entity).is_err() {
            assert!(matches!(engine.write_tensor(&foreign, &four), Err(EngineError::UnknownTensor)));
            assert!(matches!(engine.read_bytes(&foreign, 0, &mut [0]), Err(EngineError::UnknownTensor)));
        }
    }
    // Of another graph.
    let mut a = GraphBuilder::new("a");
    let x = a.input("x", DType::F32, &[4]).expect("small");
    let mut b = GraphBuilder::new("b");
    b.input("y", DType::F32, &[4]).expect("small");
    let (a, b) = (engine.add_graph(a), engine.add_graph(b));
    assert!(matches!(engine.write(b, x, &four), Err(EngineError::UnknownTensor)));
    engine.remove_graph(a);
    assert!(matches!(engine.write(a, x, &four), Err(EngineError::UnknownGraph)));
}

#[test]
fn every_mistake_about_a_buffer_is_a_typed_error() {
    let Engines { mut engine, .. } = engines();
    let device = engine.backend_index("device").expect("the device");
    for backend in [device, engine.host()] {
        let buffer = engine.create_buffer("memory", backend, Usage::Any, 64).expect("small");
        let tensor = engine.tensor_in("t", DType::F32, &[16], buffer, 0).expect("fits");
        for (dims, offset) in [(&[17][..], 0), (&[16], 4), (&[1], 64), (&[1], u64::MAX - 3)] {
            let outside = engine.tensor_in("beyond", DType::F32, dims, buffer, offset);
            let source = BackendError::OutOfBounds { offset_bytes: offset, len_bytes: dims[0] * 4, size_bytes: 64 };
            match outside {
                Err(EngineError::Backend { source: found, .. }) => assert_eq!(found, source),
                other => panic!("{other:?}"),
            }
        }
        assert!(matches!(engine.tensor_in("odd", DType::F32, &[4], buffer, 2), Err(EngineError::BadAddress { .. })));
        engine.remove_buffer(buffer).expect("live");
        // Freed twice, used after it was freed.
        assert!(matches!(engine.remove_buffer(buffer), Err(EngineError::UnknownBuffer)));
        assert!(matches!(engine.clear_buffer(buffer, 0), Err(EngineError::UnknownBuffer)));
        assert!(matches!(engine.reset_buffer(buffer), Err(EngineError::UnknownBuffer)));
        assert!(matches!(engine.set_usage(buffer, Usage::Any), Err(EngineError::UnknownBuffer)));
        assert!(matches!(engine.usage_of(buffer), Err(EngineError::UnknownBuffer)));
        assert!(matches!(engine.tensor_in("late", DType::F32, &[1], buffer, 0), Err(EngineError::UnknownBuffer)));
        assert!(matches!(engine.read_tensor(&tensor, &mut [0.0_f32; 16]), Err(EngineError::UnknownBuffer)));
        assert!(matches!(engine.write_bytes(&tensor, 0, &[1]), Err(EngineError::UnknownBuffer)));
        let mut g = GraphBuilder::new("late");
        let t = g.shared(&tensor).expect("one tensor");
        let y = g.relu(t).expect("one operand");
        g.output("y", y).expect("a free name");
        let graph = engine.add_graph(g);
        assert!(engine.run(graph).is_err(), "a graph that reads it");
    }
    let nobody = engine.create_buffer("m", BackendIndex(9), Usage::Any, 1);
    assert!(matches!(nobody, Err(EngineError::UnknownBackend { .. })));
    let tape = engine.create_buffer_of("m", device, "tape", Usage::Any, 1).expect_err("no such type");
    assert!(tape.to_string().contains("it makes: device"), "{tape}");
    let place = SetPlace { backend: BackendIndex(9), buffer_type: None, usage: Usage::Any };
    assert!(matches!(engine.tensor_set("s", place, &[]), Err(EngineError::UnknownBackend { .. })));
    let place = SetPlace { backend: device, ..place };
    let nonsense = [TensorRequest { name: "t", dtype: DType::Q4_0, dims: &[31] }];
    assert!(matches!(engine.tensor_set("s", place, &nonsense), Err(EngineError::Shape { .. })));
}

/// Bytes that begin at an odd address.
struct Odd(Vec<u64>);

impl AsRef<[u8]> for Odd {
    fn as_ref(&self) -> &[u8] {
        // Without a cast of slices: the bytes of a string that is long enough begin at some address, and the next at an odd one.
        let text: &[u8] = ODD_TEXT.as_bytes();
        let start = usize::from(text.as_ptr().addr().is_multiple_of(8));
        let _ = &self.0;
        &text[start..]
    }
}

const ODD_TEXT: &str = "sixteen bytes and more of them";

#[test]
fn misaligned_memory_is_not_imported() {
    let Engines { mut engine, .. } = engines();
    let error =
        engine.import_buffer("odd", Arc::new(Odd(Vec::new())) as Arc<dyn ImportedBytes>).expect_err("misaligned");
    match &error {
        EngineError::Backend { what, source: BackendError::MisalignedImport { align_bytes: 8, past_bytes: 1..8 } } => {
            assert_eq!(&**what, "odd");
        }
        other => panic!("{other:?}"),
    }
    assert!(error.to_string().contains("copy it into a buffer"), "{error}");
}

#[test]
fn a_copy_between_different_layouts_is_refused() {
    let Engines { mut engine, .. } = engines();
    let state = |engine: &mut Engine, dtype, dims: &[u64]| engine.state("state", dtype, dims).expect("small");
    let from = state(&mut engine, DType::F32, &[4, 2]);
    for (dtype, dims) in
        [(DType::F32, &[2, 4][..]), (DType::F16, &[4, 2]), (DType::F32, &[4, 3]), (DType::I32, &[4, 2])]
    {
        let to = state(&mut engine, dtype, dims);
        let error = engine.copy_tensor(&from, &to).expect_err("another layout");
        assert!(matches!(error, EngineError::DifferentLayouts { .. }), "{error:?}");
        assert!(error.to_string().contains("f32 [4,2]"), "{error}");
    }
    // Read-only memory takes no copy.
    let bytes: Arc<dyn ImportedBytes> = entensor::Registry::default().allocate("cpu", 32).expect("small").freeze();
    let buffer = engine.import_buffer("weights", bytes).expect("aligned");
    let weights = engine.tensor_in("w", DType::F32, &[4, 2], buffer, 0).expect("fits");
    let refused = engine.copy_tensor(&from, &weights);
    assert!(matches!(refused, Err(EngineError::Backend { source: BackendError::ReadOnly, .. })), "{refused:?}");
    engine.copy_tensor(&weights, &from).expect("it may be read");
}

/// Components can be edited by hand before any pass has seen them.
#[test]
fn tensors_that_were_edited_by_hand_are_refused() {
    let Engines { mut engine, .. } = engines();
    for dims in [[u64::MAX, 1, 1, 1], [1 << 61, 1, 1, 1], [1 << 31, 1 << 31, 1 << 31, 1]] {
        let state = engine.state("state", DType::F32, &[4]).expect("small");
        engine.world_mut().entity_mut(state.entity).insert(Shape(dims));
        let error = engine.write_tensor(&state, &[0.0_f32; 4]).expect_err("no such shape");
        assert!(matches!(error, EngineError::NotPacked { .. } | EngineError::WrongLength { .. }), "{error}");
        assert!(engine.read_tensor(&state, &mut [0.0_f32; 4]).is_err());
    }
    let state = engine.state("state", DType::F32, &[4]).expect("small");
    let Some(StoredIn(Some(mut stored))) = engine.world().get::<StoredIn>(state.entity).copied() else {
        panic!("it has memory of its own");
    };
    stored.offset_bytes = u64::MAX - 1;
    engine.world_mut().entity_mut(state.entity).insert(StoredIn(Some(stored)));
    let error = engine.write_tensor(&state, &[0.0_f32; 4]).expect_err("outside");
    assert!(matches!(error, EngineError::Backend { source: BackendError::OutOfBounds { .. }, .. }), "{error}");
}
