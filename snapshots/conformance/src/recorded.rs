//! Cases with recorded inputs and results: what other implementations say.

use entensor_components::{Backend, BackendError, TensorRef};
use entensor_oracle::OracleBackend;

use crate::{
    Case, compare,
    image::{Image, Outcome, POISON, unit_ranges},
};

/// What a tensor holds, in linear order.
#[derive(Clone, Debug, PartialEq)]
pub enum Contents {
    /// Its elements, which its dtype rounds.
    Values(Vec<f64>),
    /// Its elements (blocks, for block dtypes) as bytes.
    Bytes(Vec<u8>),
}

/// A case with contents for its operands, and the result that something else computed.
#[derive(Clone, Debug, PartialEq)]
pub struct Recorded {
    /// The case. Its fill is not used.
    pub case: Case,
    /// For each operand.
    pub operands: Vec<Contents>,
    /// The result.
    pub expected: Contents,
}

/// Why a recorded result was not met.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordedError {
    /// The record has another number of operands, or of elements of one, than its case.
    #[error("{tensor} has {expected} {unit}, and the record {found}")]
    Length {
        /// Which tensor.
        tensor: String,
        /// Elements or bytes.
        unit: &'static str,
        /// What the case needs.
        expected: usize,
        /// What the record has.
        found: usize,
    },
    /// The backend fails.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// Another result.
    #[error("{fault}")]
    Differs {
        /// Where and how.
        fault: String,
    },
}

impl Recorded {
    /// Runs the case and compares the result as the op's tolerance asks, and everything else byte for byte.
    ///
    /// # Errors
    /// When the record does not fit its case, the backend fails, or the result is another.
    pub fn check(&self, backend: &dyn Backend) -> Result<(), RecordedError> {
        let mut image = Image::empty(&self.case, POISON);
        if self.operands.len() != image.operands.len() {
            let (expected, found) = (image.operands.len(), self.operands.len());
            return Err(RecordedError::Length { tensor: "the case".into(), unit: "operands", expected, found });
        }
        for (index, contents) in self.operands.iter().enumerate() {
            let tensor = image.operands[index];
            let name = self.case.op.row().operands[index].name;
            put(&mut image.bytes, &tensor, contents, name)?;
        }
        let mut expected = image.bytes.clone();
        put(&mut expected, &image.output, &self.expected, "the result")?;
        let found = match image.run(backend, &self.case)? {
            Outcome::Done(found) => found,
            Outcome::Failed(_, error) => return Err(error.into()),
        };
        let oracle = OracleBackend::new("oracle");
        let bounds = compare::bounds(&oracle, &self.case, &image, &expected);
        compare::images(&self.case, &image, &expected, &found, || &bounds)
            .map_err(|fault| RecordedError::Differs { fault })
    }
}

/// Stores contents by the tensor's strides.
fn put(bytes: &mut [u8], tensor: &TensorRef, contents: &Contents, name: &str) -> Result<(), RecordedError> {
    let ranges = unit_ranges(tensor);
    let dtype = tensor.desc.dtype;
    let (unit, found, per_unit) = match contents {
        Contents::Values(values) => ("elements", values.len(), dtype.block_elements()),
        Contents::Bytes(bytes) => ("bytes", bytes.len(), dtype.block_bytes()),
    };
    let per_unit = usize::try_from(per_unit).expect("blocks are small");
    let expected = ranges.len() * per_unit;
    if found != expected {
        return Err(RecordedError::Length { tensor: name.into(), unit, expected, found });
    }
    for (unit, range) in ranges.into_iter().enumerate() {
        let of_unit = unit * per_unit..(unit + 1) * per_unit;
        match contents {
            Contents::Values(values) => {
                // f16 is reached through f32: what is recorded has far fewer digits than would make that matter.
                let values: Vec<f32> = values[of_unit].iter().map(|&v| v as f32).collect();
                (dtype.row().quantize)(&values, &mut bytes[range]);
            }
            Contents::Bytes(contents) => bytes[range].copy_from_slice(&contents[of_unit]),
        }
    }
    Ok(())
}
