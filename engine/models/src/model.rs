//! A language model in an engine: the mapped file, its weights as tensors in place, its tokenizer.

use std::{borrow::BorrowMut, path::Path, sync::Arc};

use bevy_ecs::prelude::World;
use entensor::{Backend, BackendIndex, Engine};

use crate::{
    ModelError,
    arch::{self, Llama},
    gguf::GgufFile,
    tokenizer::Tokenizer,
};

/// What is being loaded, for progress displays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadStage {
    /// The file is mapped and its header read.
    Header,
    /// The vocabulary is built.
    Tokenizer,
    /// The weights are bound in place.
    Weights,
    /// The weights are read from the disk: bytes so far, and of all.
    Warm {
        /// Bytes so far.
        done_bytes: u64,
        /// All bytes.
        total_bytes: u64,
    },
}

/// The type of the buffers that [`WeightMemory::Huge`] wants.
const HUGE: &str = "cpu-huge";

/// Where a model's weights lie on the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WeightMemory {
    /// In the mapped file: no copy, shared with everybody who has it mapped.
    #[default]
    Mapped,
    /// Copied to pages of 2 MiB, in a buffer of the type `cpu-huge`: as much memory as the file is large, and 5 to 20 % more tokens where
    /// reading weights is what takes the time. Where the system has no such pages the copy lies on ordinary ones;
    /// [`MemoryReport::huge_page_bytes`](entensor_components::MemoryReport::huge_page_bytes) says how much does not.
    Huge,
}

/// How a model is loaded.
///
/// ```
/// use entensor_models::{ModelLoad, WeightMemory};
///
/// let load = ModelLoad { weights: WeightMemory::Huge, ..ModelLoad::default() };
/// assert_eq!(load.place, None);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelLoad {
    /// The backend whose memory the weights are copied to; `None` for the host.
    pub place: Option<BackendIndex>,
    /// Where they lie on the host.
    pub weights: WeightMemory,
}

/// A language model, loaded once and shared by its sessions.
pub struct LanguageModel {
    weights: WeightMemory,
    file: GgufFile,
    tokenizer: Tokenizer,
    network: Llama,
}

impl LanguageModel {
    /// Loads a GGUF file: maps it, builds its tokenizer, and binds its weights from the mapping without a copy.
    ///
    /// The file must not be changed while the model is in use; see [`crate::gguf::MappedFile`]. The weights stay in the engine as
    /// long as it lives.
    ///
    /// # Errors
    /// A file that cannot be read or is no GGUF, an unknown architecture, dtype or tokenizer, a missing or misshapen tensor.
    pub fn load<W: BorrowMut<World>>(
        engine: &mut Engine<W>,
        path: impl AsRef<Path>,
        progress: impl FnMut(LoadStage),
    ) -> Result<Self, ModelError> {
        Self::load_with(engine, path, ModelLoad::default(), progress)
    }

    /// The same with the weights in another backend's memory: copied there, and copied back from the mapped file should
    /// the device be lost. On the host they are bound in place.
    ///
    /// # Errors
    /// As [`Self::load`]; memory of the device that does not suffice.
    pub fn load_on<W: BorrowMut<World>>(
        engine: &mut Engine<W>,
        path: impl AsRef<Path>,
        place: BackendIndex,
        progress: impl FnMut(LoadStage),
    ) -> Result<Self, ModelError> {
        Self::load_with(engine, path, ModelLoad { place: Some(place), ..ModelLoad::default() }, progress)
    }

    /// The same with a choice of where the weights lie.
    ///
    /// # Errors
    /// As [`Self::load_on`]. [`WeightMemory::Huge`] needs a backend on the host that makes buffers of that type, which `cpu` does: without
    /// one the error lists the types that there are.
    pub fn load_with<W: BorrowMut<World>>(
        engine: &mut Engine<W>,
        path: impl AsRef<Path>,
        load: ModelLoad,
        mut progress: impl FnMut(LoadStage),
    ) -> Result<Self, ModelError> {
        let file = GgufFile::open(path)?;
        progress(LoadStage::Header);
        let config = arch::from_header(file.header())?;
        let tokenizer = Tokenizer::from_metadata(file.metadata())?;
        if u64::from(tokenizer.len()) != config.vocabulary {
            let (tokens, rows) = (u64::from(tokenizer.len()), config.vocabulary);
            return Err(ModelError::Vocabulary { tokens, rows });
        }
        progress(LoadStage::Tokenizer);
        let host = engine.host();
        let buffer = match load.place.filter(|&place| place != host) {
            Some(place) => engine.upload_buffer("model", place, file.mapping())?,
            None if load.weights == WeightMemory::Huge => {
                engine.upload_buffer_of("model", maker_of_huge(engine), HUGE, file.mapping())?
            }
            None => engine.import_buffer("model", file.mapping())?,
        };
        let network = Llama::bind(engine, config, file.header(), buffer)?;
        progress(LoadStage::Weights);
        Ok(Self { weights: load.weights, file, tokenizer, network })
    }

    /// Reads every page of the weights once, so that the first token does not wait for the disk. Weights that were copied were read then.
    pub fn warm(&self, mut progress: impl FnMut(LoadStage)) {
        if self.weights != WeightMemory::Mapped {
            return;
        }
        const PAGE: usize = 4096;
        const REPORT: usize = 8 << 20;
        let mapping: Arc<_> = self.file.mapping();
        let bytes: &[u8] = (*mapping).as_ref();
        let total_bytes = bytes.len() as u64;
        for (i, piece) in bytes.chunks(REPORT).enumerate() {
            let sum = piece.iter().step_by(PAGE).fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
            std::hint::black_box(sum);
            progress(LoadStage::Warm { done_bytes: (i * REPORT + piece.len()) as u64, total_bytes });
        }
    }

    /// The file.
    #[must_use]
    pub fn file(&self) -> &GgufFile {
        &self.file
    }

    /// The tokenizer.
    #[must_use]
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The network.
    #[must_use]
    pub fn network(&self) -> &Llama {
        &self.network
    }
}

/// The backend that makes buffers on large pages: the host if it does, else one beside it; the host, which then says what it makes, if
/// nobody does.
fn maker_of_huge<W: BorrowMut<World>>(engine: &Engine<W>) -> BackendIndex {
    let makes = |backend: &Arc<dyn Backend>| {
        let types = backend.buffer_types();
        types.iter().any(|info| *info.name == *HUGE && info.is_host())
    };
    let found = engine.backends().iter().rposition(makes).and_then(|index| u32::try_from(index).ok());
    found.map_or(engine.host(), BackendIndex)
}
