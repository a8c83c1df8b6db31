//! The op table: one row per op (see `table/`), from which come the [`Op`] enum, text form, shape checks,
//! placement anchors, in-place rules and default test cases.

mod params;
mod row;
mod rules;
mod samples;
#[macro_use]
mod table;
mod words;

pub use params::{OpParam, ParamError, parse_size};
pub use row::{BatchRule, Content, OpResult, OpRow, OperandRow, Tolerance, ViewOf};
pub use samples::{Sample, SampleOperand};
pub use table::{OPS, Op, OpKind, ParamValue};
pub use words::{PoolOp, RopeMode, SortOrder, UpscaleMode};

use crate::shape::{Shape, ShapeError, TensorDesc};

/// Why an op cannot be applied to some operands.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum OpError {
    /// Too few or too many operands.
    #[error("`{op}` takes {expected} operands ({names}), not {found}")]
    Arity {
        /// The op.
        op: &'static str,
        /// How many it takes, as text.
        expected: String,
        /// The operands' names.
        names: String,
        /// How many were given.
        found: usize,
    },
    /// An operand's dtype is not in the row's set.
    #[error("`{op}`: operand `{operand}` is {found}, but must be one of {allowed}")]
    DType {
        /// The op.
        op: &'static str,
        /// The operand's name in the table.
        operand: &'static str,
        /// Its dtype.
        found: crate::DType,
        /// What the table allows.
        allowed: String,
    },
    /// Shapes or layouts that the op's rule refuses.
    #[error("`{op}`: {rule}; found {}", DescList(.found))]
    Shape {
        /// The op.
        op: &'static str,
        /// What must hold.
        rule: &'static str,
        /// The operands.
        found: Vec<TensorDesc>,
    },
    /// The result would be a tensor that cannot exist.
    #[error("`{op}`: the result cannot exist: {source}")]
    Result {
        /// The op.
        op: &'static str,
        /// Why.
        source: ShapeError,
    },
    /// An operand that may be left out is missing before one that is given.
    #[error("`{op}`: operand `{given}` cannot be given without `{missing}`; give both, or neither")]
    OperandGap {
        /// The op.
        op: &'static str,
        /// The operand that is missing.
        missing: &'static str,
        /// The operand after it.
        given: &'static str,
    },
    /// A parameter is out of range.
    #[error("`{op}`: parameter `{param}`: {rule}")]
    Param {
        /// The op.
        op: &'static str,
        /// The parameter's name.
        param: &'static str,
        /// What must hold.
        rule: &'static str,
    },
}

struct DescList<'a>(&'a [TensorDesc]);

impl std::fmt::Display for DescList<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (i, desc) in self.0.iter().enumerate() {
            write!(f, "{}{desc}", if i == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

/// An op with what it is applied to: all that a backend needs to say whether it can run it.
#[derive(Clone, Copy, Debug)]
pub struct OpDesc<'a> {
    /// The op and its parameters.
    pub op: &'a Op,
    /// The result.
    pub output: TensorDesc,
    /// The operands, in the order of the op's constructor.
    pub operands: &'a [TensorDesc],
}

impl OpDesc<'_> {
    /// The batch of the offload policy: how many rows one upload of the weights would serve.
    #[must_use]
    pub fn batch(&self) -> u64 {
        match self.op.row().batch {
            BatchRule::Axis1 => self.output.shape.0[1],
            BatchRule::Axis2 => self.output.shape.0[2],
            BatchRule::Zero => 0,
            BatchRule::Rows => self.output.shape.rows(),
        }
    }
}

impl Op {
    /// The table row of this op.
    #[must_use]
    #[inline]
    pub fn row(&self) -> &'static OpRow {
        self.kind().row()
    }

    /// `rope` without sections, YaRN or attention factor: what most models want.
    #[must_use]
    pub fn rope(mode: RopeMode, n_dims: u32, base: f32, freq_scale: f32) -> Self {
        let mut op = OpKind::Rope.default_op();
        if let Self::Rope { mode: m, n_dims: n, base: b, freq_scale: f, .. } = &mut op {
            (*m, *n, *b, *f) = (mode, n_dims, base, freq_scale);
        }
        op
    }

    /// The operands in a row, from a list in which some were left out.
    ///
    /// # Errors
    /// When one is left out before one that is given.
    pub fn given_operands<T>(&self, operands: impl IntoIterator<Item = Option<T>>) -> Result<Vec<T>, OpError> {
        let row = self.row();
        let mut given = Vec::with_capacity(row.operands.len());
        for (position, operand) in operands.into_iter().enumerate() {
            let Some(operand) = operand else { continue };
            if given.len() != position {
                let (missing, given) = (row.operands[given.len()].name, row.operands[position].name);
                return Err(OpError::OperandGap { op: row.name, missing, given });
            }
            given.push(operand);
        }
        Ok(given)
    }

    /// Checks operands and gives the description of the result.
    ///
    /// # Errors
    /// Names what of arity, dtypes, shapes or parameters does not fit.
    pub fn result(&self, operands: &[TensorDesc]) -> Result<OpResult, OpError> {
        let row = self.row();
        row.check_operands(operands)?;
        (row.result)(self, operands)
    }
}

impl OpKind {
    /// The table row of this op.
    #[must_use]
    #[inline]
    pub fn row(self) -> &'static OpRow {
        &OPS[self as usize]
    }

    /// ggml's name of the op.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// The op with this name, if the table has it.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        OPS.iter().find(|row| row.name == name).map(|row| row.kind)
    }
}

impl std::fmt::Display for OpKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// The op with its parameters that are not the defaults: `rms_norm eps=1e-5`.
impl std::fmt::Display for Op {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.kind().name())?;
        let defaults = self.kind().default_op();
        let mut result = Ok(());
        let mut standard = Vec::new();
        defaults.visit_params(&mut |_, value| standard.push(value.text()));
        let mut i = 0;
        self.visit_params(&mut |name, value| {
            let text = value.text();
            if result.is_ok() && standard[i] != text {
                result = match text {
                    Some(text) => write!(f, " {name}={text}"),
                    None => Ok(()),
                };
            }
            i += 1;
        });
        result
    }
}

/// The shape that `x[axis]` broadcast over must fit: `b` repeats to `a` on every axis.
pub(crate) fn broadcasts(small: Shape, large: Shape) -> bool {
    small.repeats_to(large)
}
