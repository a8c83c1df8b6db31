//! What `plan` and `explain` work on: a `.graph` text, or a step of a model, in an engine that is ready to plan it.

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

use clap::Args;
use entensor::{
    Engine, GraphId,
    components::{MAX_PIPELINE_COPIES, PipelineCopies},
    graph_text::GraphText,
};
use entensor_models::{MICRO_BATCH_TOKENS, Session, SessionConfig, gguf};

use crate::{
    error::CliError,
    loading::{BackendArgs, Weights, context, load},
};

/// More than any text that a person or a tool writes; a limit, so that a device file is not read forever.
const TEXT_LIMIT_BYTES: u64 = 256 << 20;

/// A graph and the machine to plan it for.
#[derive(Args)]
pub(crate) struct SubjectArgs {
    /// A .graph text, or a model (a GGUF file), known by its first bytes
    #[arg(value_name = "FILE|MODEL")]
    file: PathBuf,
    /// Takes the machine, the `backend` lines, from another .graph text
    #[arg(long, value_name = "FILE")]
    machine: Option<PathBuf>,
    /// Pipelining: how often inputs, outputs and copies exist [default: the text's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_PIPELINE_COPIES)))]
    copies: Option<u32>,
    /// Models: tokens that are fed at once [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MICRO_BATCH_TOKENS)))]
    tokens: Option<u32>,
    /// Models: tokens that fit into the context [default: 2048, or what the model was trained for]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(i32::MAX)))]
    ctx: Option<u32>,
    /// Models: puts weights and cache of the last N layers, and the output, on the machine's first backend
    #[arg(long, value_name = "N", requires = "machine")]
    gpu_layers: Option<u32>,
    #[command(flatten)]
    backends: BackendArgs,
}

/// A graph in an engine, not planned yet.
pub(crate) struct Subject {
    /// The engine.
    pub(crate) engine: Engine,
    /// The graph.
    pub(crate) graph: GraphId,
    /// The text that it was made from; none for a model on its own backends.
    text: Option<GraphText>,
}

/// What a file turned out to be.
enum Contents {
    Model,
    Text(String),
}

impl SubjectArgs {
    /// Reads the file and makes the graph. With `verify`, every plan is verified.
    pub(crate) fn read(&self, verify: bool) -> Result<Subject, CliError> {
        match read_file(&self.file)? {
            Contents::Text(text) => self.text_subject(&text, verify),
            Contents::Model => self.model_subject(verify),
        }
    }

    fn text_subject(&self, text: &str, verify: bool) -> Result<Subject, CliError> {
        let for_models = [
            ("--tokens", self.tokens.is_some()),
            ("--ctx", self.ctx.is_some()),
            ("--gpu-layers", self.gpu_layers.is_some()),
            ("--backend", !self.backends.specs.is_empty()),
        ];
        if let Some((option, _)) = for_models.into_iter().find(|(_, given)| *given) {
            let fix = "leave it out; --machine changes the backends of a text";
            return Err(CliError::Usage(format!(
                "{option} is for models, and {:?} is a .graph text; {fix}",
                self.file
            )));
        }
        let mut text = GraphText::parse(&self.file.to_string_lossy(), text)?;
        if let Some(machine) = self.machine()? {
            text = text.with_machine(&machine)?;
        }
        self.spawn(text, verify)
    }

    /// The graph of one step of the model, in an engine of its own or on another machine.
    fn model_subject(&self, verify: bool) -> Result<Subject, CliError> {
        let machine = self.machine()?;
        let builder = match &machine {
            // Nothing is computed, so no memory is needed for a cache that only the other machine has room for.
            Some(_) if self.backends.specs.is_empty() => Engine::builder().backend("null"),
            _ => self.backends.engine(),
        };
        let mut engine = builder.record_passes().verify_plans(verify).build()?;
        let model = load(&mut engine, &self.file, Weights::Lazy)?;
        let config = SessionConfig { context: context(&model, self.ctx), ..SessionConfig::default() };
        let mut session = Session::new(&mut engine, &model, config)?;
        let graph = session.graph_for(&mut engine, &model, self.tokens.unwrap_or(1))?;
        let Some(machine) = machine else {
            if let (Some(copies), Ok(mut entity)) = (self.copies, engine.world_mut().get_entity_mut(graph.0)) {
                entity.insert(PipelineCopies(copies));
            }
            return Ok(Subject { engine, graph, text: None });
        };
        let mut text = GraphText::from_graph(engine.world(), graph.0)?.with_machine(&machine)?;
        if let Some(count) = self.gpu_layers {
            text = offload(text, model.network().config().layers, count)?;
        }
        self.spawn(text, verify)
    }

    fn spawn(&self, mut text: GraphText, verify: bool) -> Result<Subject, CliError> {
        if let Some(copies) = self.copies {
            text = text.with_copies(copies);
        }
        // Spawning replaces the backend by those of the text.
        let mut engine = Engine::builder().backend("null").record_passes().verify_plans(verify).build()?;
        let graph = GraphId(text.spawn(engine.world_mut())?);
        Ok(Subject { engine, graph, text: Some(text) })
    }

    fn machine(&self) -> Result<Option<GraphText>, CliError> {
        let Some(path) = &self.machine else { return Ok(None) };
        match read_file(path)? {
            Contents::Text(text) => Ok(Some(GraphText::parse(&path.to_string_lossy(), &text)?)),
            Contents::Model => {
                Err(unreadable(path, "it is a model; --machine takes a .graph text with `backend` lines"))
            }
        }
    }
}

impl Subject {
    /// The graph and its machine as text.
    pub(crate) fn to_text(&self) -> Result<String, CliError> {
        match &self.text {
            Some(text) => Ok(text.to_string()),
            None => Ok(GraphText::from_graph(self.engine.world(), self.graph.0)?.to_string()),
        }
    }
}

/// Moves the weights and the cache of the last layers, and the output, to the first backend.
fn offload(text: GraphText, layers: u32, count: u32) -> Result<GraphText, CliError> {
    if text.machine().len() < 2 {
        let problem = "--gpu-layers needs a machine with at least two backends, the first of them for the layers";
        return Err(CliError::Usage(problem.into()));
    }
    let first_moved = layers.saturating_sub(count);
    let tied = text.tensors().iter().all(|tensor| &*tensor.name != "output.weight");
    let moves = |name: &str| {
        let mut parts = name.split('.');
        match (parts.next(), parts.next()) {
            _ if count == 0 => false,
            (Some("blk" | "cache_k" | "cache_v"), Some(layer)) => layer.parse().is_ok_and(|l: u32| l >= first_moved),
            (Some("output" | "output_norm"), _) => true,
            // A tied output multiplies with the embedding.
            (Some("token_embd"), _) => tied,
            _ => false,
        }
    };
    Ok(text.with_memory_on(0, moves))
}

fn unreadable(path: &Path, reason: impl Into<String>) -> CliError {
    CliError::Unreadable { path: path.into(), reason: reason.into() }
}

/// Reads a text whole; of a model only the first bytes.
fn read_file(path: &Path) -> Result<Contents, CliError> {
    let io_error = |error: io::Error| unreadable(path, format!("{error}; check the path and its permissions"));
    // Pipes are fine, `<(…)` of a shell is one.
    if std::fs::metadata(path).map_err(io_error)?.is_dir() {
        return Err(unreadable(path, "it is a directory; give the path of a .graph or .gguf file"));
    }
    let mut file = File::open(path).map_err(io_error)?;
    let mut bytes = Vec::new();
    let magic_bytes = gguf::MAGIC.len() as u64;
    file.by_ref().take(magic_bytes).read_to_end(&mut bytes).map_err(io_error)?;
    if bytes == gguf::MAGIC {
        return Ok(Contents::Model);
    }
    file.take(TEXT_LIMIT_BYTES).read_to_end(&mut bytes).map_err(io_error)?;
    if bytes.len() as u64 >= TEXT_LIMIT_BYTES {
        return Err(unreadable(path, format!("it is no GGUF file, and above {TEXT_LIMIT_BYTES} bytes no .graph text")));
    }
    let text = String::from_utf8(bytes);
    text.map(Contents::Text)
        .map_err(|_| unreadable(path, "it is neither a GGUF file nor UTF-8 text; give a .graph or .gguf file"))
}
