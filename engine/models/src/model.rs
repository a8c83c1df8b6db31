//! A language model in an engine: the mapped file, its weights as tensors in place, its tokenizer.

use std::{borrow::BorrowMut, path::Path, sync::Arc};

use bevy_ecs::prelude::World;
use entensor::{BackendIndex, Engine};

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

/// A language model, loaded once and shared by its sessions.
pub struct LanguageModel {
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
        let host = engine.host();
        Self::load_on(engine, path, host, progress)
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
        let buffer = if place == engine.host() {
            engine.import_buffer("model", file.mapping())?
        } else {
            engine.upload_buffer("model", place, file.mapping())?
        };
        let network = Llama::bind(engine, config, file.header(), buffer)?;
        progress(LoadStage::Weights);
        Ok(Self { file, tokenizer, network })
    }

    /// Reads every page of the weights once, so that the first token does not wait for the disk.
    pub fn warm(&self, mut progress: impl FnMut(LoadStage)) {
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
