//! Machines of simulated devices, and graphs that run all over them.

use std::sync::Arc;

use entensor::{BackendIndex, DType, Engine, EngineError, GraphBuilder, GraphId, RunId, Tensor};
use entensor_components::{Backend, MemoryKind};
use entensor_oracle::OracleBackend;
use entensor_sim::{SimBackend, SimConfig, SimWorld, check};
use entensor_snapshots::generate::Random;

/// Seeds that every report is tried with, at least.
pub(crate) const SEEDS: u64 = 1000;

/// Elements of every tensor.
pub(crate) const WIDTH: usize = 8;

pub(crate) fn oracle() -> Arc<dyn Backend> {
    Arc::new(OracleBackend::new("inner"))
}

/// Devices and a host in one world.
pub(crate) struct Machine {
    pub(crate) world: SimWorld,
    pub(crate) devices: Vec<Arc<SimBackend>>,
    pub(crate) host: Arc<SimBackend>,
}

impl Machine {
    pub(crate) fn new(seed: u64, configs: impl IntoIterator<Item = SimConfig>) -> Self {
        let world = SimWorld::new(seed);
        let devices = configs.into_iter().map(|config| world.device(config)).collect();
        let host = world.device(SimConfig::host("host", oracle()));
        Self { world, devices, host }
    }

    /// So many devices with memory of their own.
    pub(crate) fn of(seed: u64, devices: usize) -> Self {
        Self::new(seed, (0..devices).map(|i| SimConfig::device(format!("device{i}"), oracle())))
    }

    /// Devices with queues of their own over one memory.
    pub(crate) fn sharing(seed: u64, devices: usize) -> Self {
        let config = |i: usize| {
            let mut config = SimConfig::device(format!("device{i}"), oracle());
            config.capabilities.memory = MemoryKind("shared".into());
            config.capabilities.reads = vec![MemoryKind("shared".into())];
            config.capabilities.buffer_type = "shared".into();
            config
        };
        Self::new(seed, (0..devices).map(config))
    }

    pub(crate) fn engine(&self) -> Engine {
        let devices = self.devices.iter().map(|device| Arc::clone(device) as Arc<dyn Backend>);
        let all = devices.chain([Arc::clone(&self.host) as Arc<dyn Backend>]);
        all.fold(Engine::builder().verify_plans(true), entensor_builder).build().expect("the machine starts")
    }

    /// Lets so many pieces of waiting work run, if there are so many.
    pub(crate) fn let_happen(&self, pieces: u64) {
        for _ in 0..pieces {
            self.world.step();
        }
    }

    /// Nothing depended on luck, and nothing is left behind.
    #[track_caller]
    pub(crate) fn assert_no_race(&self, seed: u64) {
        while self.world.step() {}
        let timeline = self.world.take_timeline();
        if let Err(races) = check(&timeline) {
            let all: Vec<String> = races.iter().map(ToString::to_string).collect();
            panic!("seed {seed}:\n{}", all.join("\n"));
        }
    }
}

fn entensor_builder(builder: entensor::EngineBuilder, backend: Arc<dyn Backend>) -> entensor::EngineBuilder {
    builder.backend_instance(backend)
}

/// A graph of two inputs and a chain of nodes that is pinned all over the machine.
pub(crate) struct Chain {
    pub(crate) graph: GraphId,
    pub(crate) inputs: [Tensor; 2],
    pub(crate) output: Tensor,
}

/// How a chain is built: the same numbers give the same graph on every machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChainShape {
    pub(crate) seed: u64,
    pub(crate) nodes: usize,
    pub(crate) copies: u32,
}

/// A chain with the nodes of its seed, each on one of `places` backends.
pub(crate) fn chain(
    shape: ChainShape,
    places: u64,
    set: impl FnOnce(&mut GraphBuilder),
) -> (GraphBuilder, [Tensor; 2], Tensor) {
    let mut random = Random::new(shape.seed);
    let mut g = GraphBuilder::new("chain");
    g.pipeline_copies(shape.copies);
    set(&mut g);
    let width = WIDTH as u64;
    let inputs = ["a", "b"].map(|name| g.input(name, DType::F32, &[width]).expect("a small input"));
    let mut made = inputs.to_vec();
    for _ in 0..shape.nodes {
        let (a, b) = (*random.pick(&made[made.len().saturating_sub(4)..]), *random.pick(&made));
        let node = match random.below(4) {
            0 => g.scale(a, 0.5),
            1 => g.sub(a, b),
            2 => g.add(a, b),
            _ => g.mul(a, b),
        };
        let node = node.expect("shapes fit");
        let place = random.below(places);
        g.pin(node, BackendIndex(u32::try_from(place).expect("few"))).expect("a tensor of its own");
        made.push(node);
    }
    let last = *made.last().expect("it has inputs");
    let (first, width) = (inputs[0], g.scale(last, 1.0).expect("shapes fit"));
    let sum = g.add(width, first).expect("shapes fit");
    let output = g.output("y", sum).expect("a free name");
    (g, inputs, output)
}

impl Chain {
    /// On a machine of so many devices, the host being one place more.
    pub(crate) fn on(engine: &mut Engine, shape: ChainShape, set: impl FnOnce(&mut GraphBuilder)) -> Self {
        let places = engine.backends().len() as u64;
        let (g, inputs, output) = chain(shape, places, set);
        Self { graph: engine.add_graph(g), inputs, output }
    }

    pub(crate) fn write(&self, engine: &mut Engine, round: u64) -> Result<(), EngineError> {
        for (input, values) in self.inputs.iter().zip(values(round)) {
            engine.write(self.graph, *input, &values)?;
        }
        Ok(())
    }

    pub(crate) fn read(&self, engine: &Engine, run: RunId) -> Result<Vec<f32>, EngineError> {
        let mut result = vec![0.0; WIDTH];
        engine.read_run(run, self.output, &mut result)?;
        Ok(result)
    }

    /// Writes, runs and reads, one after the other.
    pub(crate) fn compute(&self, engine: &mut Engine, round: u64) -> Result<Vec<f32>, EngineError> {
        self.write(engine, round)?;
        engine.run(self.graph)?;
        let mut result = vec![0.0; WIDTH];
        engine.read(self.graph, self.output, &mut result)?;
        Ok(result)
    }
}

/// What the inputs hold in a round.
pub(crate) fn values(round: u64) -> [Vec<f32>; 2] {
    let mut random = Random::new(round);
    [(); 2].map(|()| (0..WIDTH).map(|_| random.below(32) as f32 / 16.0 - 1.0).collect())
}

/// What a chain computes in each round, on the oracle alone.
pub(crate) struct Expected {
    engine: Engine,
    chain: Chain,
    known: Vec<Vec<f32>>,
}

impl Expected {
    pub(crate) fn new(shape: ChainShape) -> Self {
        let mut engine = Engine::builder().backend("oracle").build().expect("the oracle starts");
        let (g, inputs, output) = chain(ChainShape { copies: 1, ..shape }, 1, |_| ());
        let chain = Chain { graph: engine.add_graph(g), inputs, output };
        Self { engine, chain, known: Vec::new() }
    }

    pub(crate) fn of(&mut self, round: u64) -> Vec<f32> {
        let round = usize::try_from(round).expect("few");
        while self.known.len() <= round {
            let next = self.known.len() as u64;
            self.known.push(self.chain.compute(&mut self.engine, next).expect("the oracle computes"));
        }
        self.known[round].clone()
    }
}
