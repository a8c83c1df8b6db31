//! A case: an op, its operands, and what they are filled with.

use std::fmt;

use entensor_components::{DType, Op, Shape, TensorDesc};

use crate::Layout;

/// What a case does to its operands beside what their content says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fill {
    /// Ordinary numbers.
    #[default]
    Plain,
    /// One NaN in the middle of the first operand of floats.
    Nan,
    /// One infinity.
    Infinity,
    /// Every element of the first operand is minus infinity.
    AllMasked,
    /// Every element of the mask is minus infinity.
    MaskedByMask,
    /// The first row of every plane of the mask is minus infinity.
    MaskedQuery,
    /// The mask takes out the first half of the keys, and those are NaN in operands 1 and 2.
    MaskedKeys,
    /// Minus infinity everywhere in the first operand, but for one NaN.
    MaskedNan,
    /// Magnitudes of thousands: softmax must not overflow.
    Large,
    /// The last id is one too large.
    IdTooLarge,
    /// The first id is negative.
    IdNegative,
    /// All ids are the same.
    IdsEqual,
}

/// One operand of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaseOperand {
    /// Its description.
    pub desc: TensorDesc,
    /// The layout that made the description.
    pub layout: Layout,
}

impl CaseOperand {
    /// An operand, where dtype and layout allow it.
    #[must_use]
    pub fn new(dtype: DType, shape: Shape, layout: Layout) -> Option<Self> {
        layout.apply(dtype, shape).map(|desc| Self { desc, layout })
    }
}

/// One case of the suite.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// The op with its parameters.
    pub op: Op,
    /// Its operands.
    pub operands: Vec<CaseOperand>,
    /// The operand whose memory the result takes over.
    pub in_place: Option<usize>,
    /// What operands are filled with.
    pub fill: Fill,
}

impl Case {
    /// A case with plain numbers and a result of its own.
    #[must_use]
    pub fn new(op: Op, operands: Vec<CaseOperand>) -> Self {
        Self { op, operands, in_place: None, fill: Fill::Plain }
    }

    /// Whether the op's rules allow it.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let operands: Vec<TensorDesc> = self.operands.iter().map(|o| o.desc).collect();
        // What is written must not repeat itself.
        let target = self.op.row().writes.map(|written| self.operands[written].layout);
        target != Some(Layout::Broadcast) && self.op.result(&operands).is_ok()
    }

    /// The result.
    ///
    /// # Panics
    /// Panics unless the case is valid.
    #[must_use]
    pub fn output(&self) -> TensorDesc {
        let operands: Vec<TensorDesc> = self.operands.iter().map(|o| o.desc).collect();
        self.op.result(&operands).expect("cases of the suite are valid").desc
    }
}

/// `mul_mat weights=q4_1[64,5]:contiguous x=f32[64,9]:sliced`.
impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.op)?;
        for (row, operand) in self.op.row().operands.iter().zip(&self.operands) {
            write!(f, " {}={}{}:{}", row.name, operand.desc.dtype, operand.desc.shape, operand.layout)?;
        }
        if let Some(index) = self.in_place {
            write!(f, " in_place={index}")?;
        }
        if self.fill != Fill::Plain {
            write!(f, " fill={:?}", self.fill)?;
        }
        Ok(())
    }
}
