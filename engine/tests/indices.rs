//! Ids that point outside of what they index: every op that takes ids answers with a typed error that names node, position
//! and value, before it has touched memory, and is right again with good ids.

use entensor::{BackendError, DType, Engine, EngineError, GraphBuilder, GraphId, Op, PlanError, Tensor, TensorId};

/// What all ops here index: three rows, or planes. There are four ids.
const ROWS: u64 = 3;

fn backends() -> Vec<&'static str> {
    if cfg!(feature = "cpu") { vec!["oracle", "cpu:threads=1", "cpu:threads=3"] } else { vec!["oracle"] }
}

fn counted(count: usize) -> Vec<f32> {
    (1..=count).map(|i| i as f32).collect()
}

/// A graph of one lookup, behind which its result is kept in memory of the user's own.
struct Lookup {
    engine: Engine,
    graph: GraphId,
    ids: Tensor,
    dtype: DType,
    /// Memory that the graph writes: the copy of the result, and the target where the op has one.
    kept: Vec<TensorId>,
    /// What is in there after ids 2, 0, 1, 2.
    expected: Vec<Vec<f32>>,
}

impl Lookup {
    fn new(op: &Op, dtype: DType, backend: &str) -> Self {
        let mut engine = Engine::builder().backend(backend).verify_plans(true).build().expect("the backend starts");
        let mut g = GraphBuilder::new("lookup");
        let mut inputs: Vec<(Tensor, Vec<f32>)> = Vec::new();
        let mut kept = Vec::new();
        let ids_shape: &[u64] = if matches!(op, Op::GetRows {} | Op::SetRows {}) { &[4] } else { &[2, 2] };
        let ids = g.input("ids", dtype, ids_shape).expect("a small input");
        let mut weights = |g: &mut GraphBuilder, dims: &[u64]| {
            let count = usize::try_from(dims.iter().product::<u64>()).expect("small");
            let id = engine.weights("weights", DType::F32, dims, &counted(count)).expect("as many values");
            g.shared(&id).expect("one tensor")
        };
        let (operands, expected) = match op {
            Op::GetRows {} => (vec![weights(&mut g, &[2, ROWS]), ids], vec![5.0, 6.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
            Op::SetRows {} => {
                let target = engine.state("target", DType::F32, &[2, ROWS]).expect("24 bytes");
                let rows = g.input("rows", DType::F32, &[2, 4]).expect("a small input");
                inputs.push((rows, counted(8)));
                let operands = vec![g.shared(&target).expect("one tensor"), rows, ids];
                kept.push(target);
                (operands, vec![3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
            }
            Op::MulMatId {} => {
                let x = g.input("x", DType::F32, &[2, 1, 2]).expect("a small input");
                inputs.push((x, vec![1.0, 0.0, 0.0, 1.0]));
                // Expert e is [[4e+1, 4e+2], [4e+3, 4e+4]]: the first token takes columns 0, the second columns 1.
                (vec![weights(&mut g, &[2, 2, ROWS]), x, ids], vec![9.0, 11.0, 1.0, 3.0, 6.0, 8.0, 10.0, 12.0])
            }
            Op::AddId {} => {
                let a = g.input("a", DType::F32, &[2, 2, 2]).expect("a small input");
                inputs.push((a, vec![10.0; 8]));
                (vec![a, weights(&mut g, &[2, ROWS]), ids], vec![15.0, 16.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0])
            }
            other => panic!("`{other}` takes no ids"),
        };
        let y = g.named("lookup", op.clone(), &operands).expect("shapes fit");
        let copy = engine.state("copy", DType::F32, &y.shape()).expect("a few bytes");
        let target = g.shared(&copy).expect("one tensor");
        let copied = g.cpy(y, target).expect("shapes fit");
        g.output("copied", copied).expect("a free name");
        kept.push(copy);
        let expected = vec![expected; kept.len()];
        let graph = engine.add_graph(g);
        for (tensor, values) in inputs {
            engine.write(graph, tensor, &values).expect("an input");
        }
        for tensor in &kept {
            let count = usize::try_from(tensor.desc.shape.elements().expect("small")).expect("small");
            engine.write_tensor(tensor, &vec![-1.0_f32; count]).expect("own memory");
        }
        Self { engine, graph, ids, dtype, kept, expected }
    }

    fn run(&mut self, ids: [i64; 4]) -> Result<(), EngineError> {
        if self.dtype == DType::I32 {
            let ids = ids.map(|id| i32::try_from(id).expect("fits"));
            self.engine.write(self.graph, self.ids, &ids)?;
        } else {
            self.engine.write(self.graph, self.ids, &ids)?;
        }
        self.engine.run(self.graph)
    }

    fn contents(&mut self) -> Vec<Vec<f32>> {
        let read = |tensor: &TensorId| {
            let count = usize::try_from(tensor.desc.shape.elements().expect("small")).expect("small");
            let mut values = vec![0.0; count];
            self.engine.read_tensor(tensor, &mut values).expect("own memory");
            values
        };
        self.kept.iter().map(read).collect()
    }
}

fn index_error(error: &EngineError) -> &BackendError {
    match error {
        EngineError::Plan { error, .. } => match &**error {
            PlanError::Run { source, .. } => source,
            other => panic!("{other} is no error of a run"),
        },
        other => panic!("{other} is no error of a run"),
    }
}

#[test]
fn ids_out_of_range_are_named_and_nothing_is_written() {
    let bad = [
        ([3, 0, 0, 0], 0, 3),
        ([0, -1, 0, 0], 1, -1),
        ([0, 1, 7, 9], 2, 7),
        ([2, 2, 2, i64::from(i32::MAX)], 3, i64::from(i32::MAX)),
    ];
    // Low halves that are in range do not make them so.
    let long = [([1 << 40, 0, 0, 0], 0, 1 << 40), ([0, 0, 0, i64::MIN], 3, i64::MIN)];
    for op in [Op::GetRows {}, Op::SetRows {}, Op::MulMatId {}, Op::AddId {}] {
        for (dtype, backend) in
            [DType::I32, DType::I64].iter().flat_map(|d| backends().into_iter().map(move |b| (d, b)))
        {
            let at = format!("{op} with {dtype} ids on {backend}");
            let mut lookup = Lookup::new(&op, *dtype, backend);
            let untouched = lookup.contents();
            let long = if *dtype == DType::I64 { &long[..] } else { &[] };
            for &(ids, position, value) in bad.iter().chain(long) {
                let error = lookup.run(ids).expect_err(&at);
                let expected = BackendError::IndexOutOfRange { node: "lookup".into(), position, value, rows: ROWS };
                assert_eq!(index_error(&error), &expected, "{at}");
                assert!(error.to_string().contains(&format!("`lookup`: id {value} at position {position}")), "{error}");
                assert_eq!(lookup.contents(), untouched, "{at}");
            }
            lookup.run([2, 0, 1, 2]).expect(&at);
            let expected = lookup.expected.clone();
            assert_eq!(lookup.contents(), expected, "{at}");
        }
    }
}
