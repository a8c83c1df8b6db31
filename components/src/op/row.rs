//! What a row of the op table says.

use crate::{
    dtype::{DType, DTypeSet},
    op::{Op, OpError, OpKind, samples::Sample},
    shape::{Shape, TensorDesc},
};

/// What an operand's elements mean, so that tests know what to fill in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Any numbers.
    Data,
    /// Row indices into operand 0.
    Indices,
    /// Plane indices into operand 0: which expert.
    PlaneIndices,
    /// Row indices into operand 1.
    SecondIndices,
    /// Token positions.
    Positions,
    /// Small numbers and minus infinities.
    Mask,
    /// Positive factors around 1.
    Factors,
}

impl Content {
    /// For indices: how many rows or planes there are to choose from. Backends check ids against it when they run.
    #[must_use]
    pub fn indexed(self, operands: &[TensorDesc]) -> Option<u64> {
        match self {
            Self::Indices => Some(operands[0].shape.0[1]),
            Self::PlaneIndices => Some(operands[0].shape.0[2]),
            Self::SecondIndices => Some(operands[1].shape.0[1]),
            Self::Data | Self::Positions | Self::Mask | Self::Factors => None,
        }
    }
}

/// One operand of an op.
#[derive(Clone, Copy, Debug)]
pub struct OperandRow {
    /// Its name in messages.
    pub name: &'static str,
    /// The dtypes that the op's meaning covers; a backend may support fewer.
    pub dtypes: DTypeSet,
    /// Whether it may be left out; only trailing operands can be.
    pub optional: bool,
    /// What its elements mean.
    pub content: Content,
}

/// Which number of an op's result the offload policy compares with its threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchRule {
    /// `shape[1]` of the result.
    Axis1,
    /// `shape[2]` of the result.
    Axis2,
    /// Never worth an upload.
    Zero,
    /// All rows of the result.
    Rows,
}

/// How far a backend may be from the f64 oracle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tolerance {
    /// Bit for bit: the op only moves data.
    Exact,
    /// A few units in the last place of f32.
    Rounding,
    /// Transcendental functions, norms and the like: relative 1e-5 of the row's magnitude.
    Sum,
    /// Sums and sums of products: 1e-5 of what the op makes of the operands' magnitudes.
    Linear,
    /// As [`Self::Linear`]; with block weights (operand 0), the activations (operand 1) may be rounded to 8 bits.
    QuantizedProduct,
    /// Weighted means of the values (operand 2): 1e-5 of the largest of them.
    WeightedMean,
}

impl Tolerance {
    /// The largest normalised mean square error (squared differences over squares) between the results of two backends for the
    /// same operands, for comparisons that look at whole results instead of elements.
    ///
    /// Two units in the last place of the result's dtype are always allowed. Where the element's bound is 1e-5 of the largest, the largest
    /// is taken to be 30 times the root mean square. A block of 32 rounded to 8 bits is off by 1.65e-4 at worst (one value
    /// that sets the scale, and 31 that round); a product in which terms cancel is off by more, up to 4.7e-4 on SmolLM2.
    #[must_use]
    pub fn max_nmse(self, operands: &[DType], result: DType) -> f64 {
        let unit = match result {
            DType::F16 => 2.0_f64.powi(-10),
            DType::Bf16 => 2.0_f64.powi(-7),
            _ => 2.0_f64.powi(-23),
        };
        let rounding = (2.0 * unit).powi(2);
        let linear = rounding + 1e-7;
        match self {
            Self::Exact => 0.0,
            Self::Rounding => rounding,
            Self::Sum | Self::Linear | Self::WeightedMean => linear,
            Self::QuantizedProduct if operands.first().is_some_and(|dtype| dtype.is_block()) => 5e-4,
            Self::QuantizedProduct => linear,
        }
    }
}

/// The view that a result is of one of its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ViewOf {
    /// Which operand.
    pub operand: usize,
    /// Bytes from the operand's first element to the result's.
    pub offset_bytes: u64,
}

/// What an op makes of its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpResult {
    /// The result's description.
    pub desc: TensorDesc,
    /// For view ops and writers: whose memory it is.
    pub view: Option<ViewOf>,
}

/// One row of the op table.
pub struct OpRow {
    /// Which op.
    pub kind: OpKind,
    /// ggml's name.
    pub name: &'static str,
    /// The operands, in the order of ggml's constructor.
    pub operands: &'static [OperandRow],
    /// A view op: no computation, the result is memory of operand 0.
    pub view: bool,
    /// A writer: which operand it writes; its result is a view of that operand.
    pub writes: Option<usize>,
    /// The operand whose existing memory decides placement (a weight, a cache), if any.
    pub anchor: Option<usize>,
    /// Operands whose memory the result may take over, when shapes and layouts agree and nobody else reads it.
    pub overwrites: &'static [usize],
    /// What the offload policy looks at.
    pub batch: BatchRule,
    /// The dtype and shape rule.
    pub result: fn(&Op, &[TensorDesc]) -> Result<OpResult, OpError>,
    /// Floating-point operations of one run, for benches and estimates.
    pub flops: fn(&[TensorDesc], &TensorDesc) -> u64,
    /// How exact backends must be.
    pub tolerance: Tolerance,
    /// Conformance cases, made from the op with default parameters: shapes and parameters, crossed with dtypes and
    /// layouts by the suite.
    pub samples: fn(&Op) -> Vec<Sample>,
    /// What is measured, made in the same way.
    pub bench: fn(&Op) -> Vec<Sample>,
    /// What the op computes, numerics included.
    pub doc: &'static str,
    /// Where its meaning comes from.
    pub source: &'static str,
}

impl std::fmt::Debug for OpRow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpRow").field("name", &self.name).finish_non_exhaustive()
    }
}

impl OpRow {
    /// Whether the op launches work: neither a leaf nor a view op.
    #[must_use]
    #[inline]
    pub fn computes(&self) -> bool {
        !self.view && self.kind != OpKind::None
    }

    /// The row's conformance samples.
    #[must_use]
    pub fn test_samples(&self) -> Vec<Sample> {
        (self.samples)(&self.kind.default_op())
    }

    /// The row's bench samples.
    #[must_use]
    pub fn bench_samples(&self) -> Vec<Sample> {
        (self.bench)(&self.kind.default_op())
    }

    /// How many operands must be given.
    #[must_use]
    pub fn min_operands(&self) -> usize {
        self.operands.iter().filter(|o| !o.optional).count()
    }

    /// Checks arity and dtypes.
    ///
    /// # Errors
    /// Names the operand and what the table allows.
    pub fn check_operands(&self, operands: &[TensorDesc]) -> Result<(), OpError> {
        let (min, max) = (self.min_operands(), self.operands.len());
        if !(min..=max).contains(&operands.len()) {
            let expected = if min == max { min.to_string() } else { format!("{min} to {max}") };
            let names = self.operands.iter().map(|o| o.name).collect::<Vec<_>>().join(", ");
            return Err(OpError::Arity { op: self.name, expected, names, found: operands.len() });
        }
        for (row, desc) in self.operands.iter().zip(operands) {
            if !row.dtypes.contains(desc.dtype) {
                let allowed = row.dtypes.iter().map(crate::DType::name).collect::<Vec<_>>().join(", ");
                return Err(OpError::DType { op: self.name, operand: row.name, found: desc.dtype, allowed });
            }
            if !desc.shape.0[0].is_multiple_of(desc.dtype.block_elements()) {
                return Err(self.shape_error("rows of block dtypes must be whole blocks", operands));
            }
        }
        Ok(())
    }

    /// A shape error of this op.
    pub(super) fn shape_error(&self, rule: &'static str, operands: &[TensorDesc]) -> OpError {
        OpError::Shape { op: self.name, rule, found: operands.to_vec() }
    }
}

/// Shared by rules: the packed result of `dtype` and `shape`.
pub(super) fn packed(op: &Op, dtype: crate::DType, shape: Shape) -> Result<OpResult, OpError> {
    TensorDesc::packed(dtype, shape)
        .map(|desc| OpResult { desc, view: None })
        .map_err(|source| OpError::Result { op: op.row().name, source })
}
