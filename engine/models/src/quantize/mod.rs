//! Writing a GGUF file again with weights of another dtype.
//!
//! ```no_run
//! use entensor_components::DType;
//! use entensor_models::{gguf::GgufFile, quantize::{QuantizeConfig, Quantization}};
//!
//! let input = GgufFile::open("model-f16.gguf")?;
//! let config = QuantizeConfig { dtype: DType::Q8_0, keep: vec!["output.weight=keep".parse()?] };
//! let quantization = Quantization::plan(&input, &config)?;
//! quantization.write("model-q8_0.gguf", std::num::NonZeroUsize::MIN, |_| ())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! **What becomes of a tensor.** The first [`KeepRule`] that fits its name decides; without one, matrices get
//! [`QuantizeConfig::dtype`], vectors become f32, and integers stay. A dtype whose blocks do not divide the rows is replaced by
//! another one; every such [`Fallback`] is in the plan. Data that keep their dtype are copied bit for bit.
//!
//! **What stays.** Names, shapes and the order of tensors; all metadata byte for byte, but for `general.file_type` and
//! `general.quantization_version`, which are set, and added where they were not there.
//!
//! **Cost.** Memory for a few megabytes per thread, whatever the size of the model; the input is mapped. The bytes of the output do not
//! depend on the number of threads.
//!
//! **Safety of files.** The output is written under another name in its folder, brought to the disk and then renamed. Whatever fails,
//! an earlier file of its name is unchanged and nothing is left beside it (unless the process is killed).

mod error;
mod output;
mod plan;
mod rows;

use std::{num::NonZeroUsize, path::Path};

pub use error::{KeepRuleError, QuantizeError};
pub use plan::{Fallback, KeepRule, QuantizeConfig, TensorChange};

use crate::gguf::{GgufError, GgufFile, GgufOutline, GgufValue, excerpt};
use output::Output;
use rows::{Converter, Stopped};

/// The metadata key of the dtype that most weights have, as a number.
pub const FILE_TYPE_KEY: &str = "general.file_type";

/// The metadata key of the version of the block layouts.
pub const QUANTIZATION_VERSION_KEY: &str = "general.quantization_version";

/// The version of the block layouts of the dtype table.
pub const QUANTIZATION_VERSION: u32 = 2;

/// How far writing is.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct QuantizeProgress<'a> {
    /// The tensor.
    pub tensor: &'a str,
    /// Bytes of the input that are done.
    pub done_bytes: u64,
    /// Bytes of all tensors of the input.
    pub total_bytes: u64,
}

/// Sizes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightSizes {
    /// Elements of all tensors.
    pub elements: u64,
    /// Bytes of their data.
    pub bytes: u64,
}

impl WeightSizes {
    /// Bits per element, on average; 0 for a file without tensors.
    #[must_use]
    pub fn bits_per_weight(self) -> f64 {
        if self.elements == 0 { 0.0 } else { self.bytes as f64 * 8.0 / self.elements as f64 }
    }
}

/// A conversion that is decided but not done.
#[derive(Clone, Debug)]
pub struct Quantization<'a> {
    input: &'a GgufFile,
    config: QuantizeConfig,
    changes: Vec<TensorChange>,
}

impl<'a> Quantization<'a> {
    /// Decides what becomes of every tensor.
    ///
    /// # Errors
    /// [`QuantizeError::IntegerTarget`], or [`QuantizeError::UnmatchedPattern`] for a rule that is about nothing: it is mistyped.
    pub fn plan(input: &'a GgufFile, config: &QuantizeConfig) -> Result<Self, QuantizeError> {
        let changes = plan::changes(input.header(), config)?;
        Ok(Self { input, config: config.clone(), changes })
    }

    /// What becomes of every tensor, in the order of the file.
    #[must_use]
    pub fn changes(&self) -> &[TensorChange] {
        &self.changes
    }

    /// Sizes of the input.
    #[must_use]
    pub fn before(&self) -> WeightSizes {
        let tensors = self.input.tensors().iter();
        let sum = |total: (u64, u64), (elements, bytes): (u64, u64)| {
            (total.0.saturating_add(elements), total.1.saturating_add(bytes))
        };
        let (elements, bytes) = tensors.map(|tensor| (tensor.elements(), tensor.size_bytes)).fold((0, 0), sum);
        WeightSizes { elements, bytes }
    }

    /// Sizes of the output.
    #[must_use]
    pub fn after(&self) -> WeightSizes {
        let bytes = self.changes.iter().map(|change| {
            // The plan chose a dtype whose blocks divide the rows.
            change.to.row_bytes(change.elements).unwrap_or(u64::MAX)
        });
        WeightSizes { elements: self.before().elements, bytes: bytes.fold(0, u64::saturating_add) }
    }

    /// Converts and writes. `progress` is called after every piece.
    ///
    /// # Errors
    /// An output that cannot be made or written, that is the input or no file; values that the dtype cannot hold.
    pub fn write(
        &self,
        output: impl AsRef<Path>,
        threads: NonZeroUsize,
        mut progress: impl FnMut(QuantizeProgress<'_>),
    ) -> Result<(), QuantizeError> {
        let path = output.as_ref();
        let outline = self.outline()?;
        let mapping = self.input.mapping();
        let output = Output::create(path, mapping.path())?;
        let fail = |error| match error {
            GgufError::Write(source) => QuantizeError::Write { path: path.to_owned(), source },
            other => QuantizeError::Gguf(other),
        };
        let mut writer = outline.start(output.writer()).map_err(fail)?;
        let mut converter = Converter::new(threads);
        let (mut done_bytes, total_bytes) = (0, self.before().bytes);
        for change in &self.changes {
            let source = self.input.tensor_bytes(&change.name)?;
            let converted = converter.convert(source, change.from, change.to, |bytes, source_bytes| {
                writer.write(bytes)?;
                done_bytes += source_bytes;
                progress(QuantizeProgress { tensor: &change.name, done_bytes, total_bytes });
                Ok(())
            });
            converted.map_err(|stopped| match stopped {
                Stopped::Sink(error) => fail(error),
                Stopped::Value(bad) => QuantizeError::Unrepresentable {
                    tensor: excerpt(&change.name),
                    index: bad.index,
                    value: bad.value,
                    dtype: change.to,
                },
            })?;
        }
        drop(writer.finish().map_err(fail)?);
        output.finish()
    }

    fn outline(&self) -> Result<GgufOutline, GgufError> {
        let set = |value: u32| GgufValue::from(value);
        let changed = [
            (FILE_TYPE_KEY, set(plan::file_type(plan::main_dtype(&self.changes, self.config.dtype)))),
            (QUANTIZATION_VERSION_KEY, set(QUANTIZATION_VERSION)),
        ];
        let mut outline = GgufOutline::with_metadata_of(self.input, &changed);
        for (tensor, change) in self.input.tensors().iter().zip(&self.changes) {
            outline.tensor(&*tensor.name, change.to, &tensor.shape[..tensor.n_dims as usize])?;
        }
        Ok(outline)
    }
}

/// Converts a file: [`Quantization::plan`] and [`Quantization::write`] with all cores.
///
/// # Errors
/// As those, and for an input that cannot be read.
pub fn quantize(
    input: impl AsRef<Path>,
    output: impl AsRef<Path>,
    config: &QuantizeConfig,
) -> Result<Vec<TensorChange>, QuantizeError> {
    let input = GgufFile::open(input)?;
    let quantization = Quantization::plan(&input, config)?;
    let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    quantization.write(output, threads, |_| ())?;
    Ok(quantization.changes)
}
