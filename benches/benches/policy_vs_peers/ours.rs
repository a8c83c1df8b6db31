//! Entensor's cpu backend: a runner that holds the graph's memory, and plain runs.

use entensor::{DType, Engine, EngineError, GraphBuilder, GraphId, Runner, Tensor};

use crate::{Failure, Policy, Side};

/// An engine with one thread, and the policy for so many rows.
struct Parts {
    engine: Engine,
    graph: GraphId,
    x: Tensor,
    y: Tensor,
}

fn parts(policy: &Policy, batch: usize) -> Result<Parts, Failure> {
    let mut engine = Engine::builder().backend("cpu:threads=1").build()?;
    let mut layers = Vec::new();
    for (index, layer) in policy.layers.iter().enumerate() {
        let shape = [layer.k as u64, layer.m as u64];
        let weights = engine.weights(&format!("w{index}"), DType::F32, &shape, &layer.weights)?;
        layers.push((weights, engine.weights(&format!("b{index}"), DType::F32, &shape[1..], &layer.bias)?, layer.relu));
    }
    let mut g = GraphBuilder::new("policy");
    let x = g.input("x", DType::F32, &[policy.layers[0].k as u64, batch as u64])?;
    let mut last = x;
    for (weights, bias, relu) in &layers {
        let (weights, bias) = (g.shared(weights)?, g.shared(bias)?);
        let product = g.mul_mat(weights, last)?;
        last = g.add(product, bias)?;
        if *relu {
            last = g.relu(last)?;
        }
    }
    let y = g.output("y", last)?;
    Ok(Parts { graph: engine.add_graph(g), engine, x, y })
}

struct Held<'a, 'b> {
    runner: &'a mut Runner<'b>,
    x: Tensor,
    y: Tensor,
}

impl Held<'_, '_> {
    fn all(&mut self, x: &[f32], y: &mut [f32]) -> Result<(), EngineError> {
        self.runner.write(self.x, x)?;
        self.runner.run()?;
        self.runner.read(self.y, y)
    }
}

impl Side for Held<'_, '_> {
    fn name(&self) -> &'static str {
        "ours, held"
    }

    fn run(&mut self, x: &[f32], y: &mut [f32]) -> Result<(), Failure> {
        Ok(self.all(x, y)?)
    }
}

/// Does something with a runner of the policy, which exists only inside a call.
pub(crate) fn with_held<R>(
    policy: &Policy,
    batch: usize,
    work: impl FnOnce(&mut dyn Side) -> Result<R, Failure>,
) -> Result<R, Failure> {
    let Parts { mut engine, graph, x, y } = parts(policy, batch)?;
    engine.with_runner(graph, |runner| {
        if !runner.is_held() {
            return Ok(Err("the runner holds nothing: the policy is more than one split".into()));
        }
        Ok(work(&mut Held { runner, x, y }))
    })?
}

/// `Engine::run`, with an engine of its own: the runner borrows its engine.
pub(crate) struct Whole(Parts);

impl Whole {
    pub(crate) fn new(policy: &Policy, batch: usize) -> Result<Self, Failure> {
        Ok(Self(parts(policy, batch)?))
    }
}

impl Side for Whole {
    fn name(&self) -> &'static str {
        "ours, `Engine::run`"
    }

    fn run(&mut self, x: &[f32], y: &mut [f32]) -> Result<(), Failure> {
        let Parts { engine, graph, x: input, y: output } = &mut self.0;
        engine.write(*graph, *input, x)?;
        engine.run(*graph)?;
        Ok(engine.read(*graph, *output, y)?)
    }
}
