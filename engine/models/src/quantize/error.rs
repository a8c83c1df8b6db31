//! What can go wrong when a file is converted.

use std::{fmt, io, path::PathBuf};

use entensor_components::{DTYPES, DType, DTypeClass};

use crate::gguf::GgufError;

/// Why a file was not converted. The output, if there was one before, is unchanged then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QuantizeError {
    /// The input cannot be read or is no GGUF file, or the output would be none.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// Weights cannot be integers.
    #[error("weights cannot become {dtype}; choose one of {WeightDTypes}")]
    IntegerTarget {
        /// The dtype that was asked for.
        dtype: DType,
    },
    /// A pattern that no tensor's name fits.
    #[error("no tensor's name fits the pattern {pattern:?}; `entensor inspect` lists the names")]
    UnmatchedPattern {
        /// The pattern.
        pattern: String,
    },
    /// Input and output are one file.
    #[error("{path:?} is the input file itself; give the output another name")]
    SameFile {
        /// The output.
        path: PathBuf,
    },
    /// The output names something that is there and no file.
    #[error("{path:?} is {found}, which is not replaced; give the path of a file")]
    OutputNotAFile {
        /// The output.
        path: PathBuf,
        /// What is there.
        found: &'static str,
    },
    /// No file can be made where the output shall be.
    #[error("cannot create {path:?}: {source}; check that the folder exists and that you may write there")]
    Create {
        /// The output.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// Writing failed.
    #[error("cannot write {path:?}: {source}; nothing was left there, free some space or choose another place")]
    Write {
        /// The output.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// A value that no block can hold beside others.
    #[error("element {index} of tensor {tensor:?} is {value}, which {dtype} cannot hold; keep the tensor as it is")]
    Unrepresentable {
        /// The tensor.
        tensor: String,
        /// The element, counted in the order of the file.
        index: u64,
        /// Its value.
        value: f32,
        /// The dtype that it was to become.
        dtype: DType,
    },
}

/// A rule that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeepRuleError {
    /// There is no `=`.
    #[error("{rule:?} has no `=`; write PATTERN=DTYPE, such as `output.*=q8_0`, or PATTERN=keep")]
    NoTarget {
        /// The rule.
        rule: String,
    },
    /// There is nothing before the `=`.
    #[error("{rule:?} has no pattern before the `=`; write PATTERN=DTYPE, where `*` fits every name")]
    NoPattern {
        /// The rule.
        rule: String,
    },
    /// There is no such dtype, or weights cannot have it.
    #[error("{name:?} is no dtype for weights; choose one of {WeightDTypes}, or `keep` for the tensor's own")]
    UnknownDType {
        /// What stands behind the `=`.
        name: String,
    },
}

/// The dtypes that weights can have, for messages.
struct WeightDTypes;

impl fmt::Display for WeightDTypes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, row) in DTYPES.iter().filter(|row| row.class != DTypeClass::Integer).enumerate() {
            write!(f, "{}{}", if i == 0 { "" } else { ", " }, row.name)?;
        }
        Ok(())
    }
}
