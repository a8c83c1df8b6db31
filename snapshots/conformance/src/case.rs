//! A case: an op, its operands, and what they are filled with.

use std::fmt;

use entensor_components::{DType, Op, Shape, TensorDesc};

use crate::{CaseParseError, Layout};

/// The enum as it stands, and the list of its variants, which cannot miss one.
macro_rules! with_list {
    ($(#[$attribute:meta])* pub enum $Enum:ident { $($(#[$on_variant:meta])* $Variant:ident,)+ }) => {
        $(#[$attribute])*
        pub enum $Enum {
            $($(#[$on_variant])* $Variant,)+
        }

        impl $Enum {
            /// Every one of them.
            pub const ALL: &[Self] = &[$(Self::$Variant),+];
        }
    };
}

with_list! {
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
    /// Every number of [`EXTREMES`](crate::EXTREMES); in the first two operands every pair of them.
    Extremes,
    /// The last id is one too large.
    IdTooLarge,
    /// The first id is negative.
    IdNegative,
    /// All ids are the same.
    IdsEqual,
    /// The first operand is zeros of both signs, ones, infinities and NaN: everything that sorts in a way of its own.
    Specials,
    /// The first operand is all NaN.
    Nans,
    /// All elements of the first operand are equal.
    Equal,
    /// The first operand comes near the largest f32: squares overflow.
    Huge,
    /// The first operand is subnormal: squares vanish.
    Tiny,
    /// The first operand is small differences to a large number.
    Offset,
    /// Every element of operands 0 and 2 (sinks) is minus infinity.
    MaskedSinks,
    /// One NaN in operand 2 (sinks).
    NanSink,
    /// One infinity in operand 2 (sinks).
    InfiniteSink,
}
}

impl Fill {
    /// The fill that prints like this.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|fill| format!("{fill:?}") == name)
    }
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
    /// How a result with memory of its own lies there. Planned results are packed.
    pub result: Layout,
    /// What operands are filled with.
    pub fill: Fill,
}

impl Case {
    /// A case with plain numbers and a result of its own.
    #[must_use]
    pub fn new(op: Op, operands: Vec<CaseOperand>) -> Self {
        Self { op, operands, in_place: None, result: Layout::Contiguous, fill: Fill::Plain }
    }

    /// Whether the op's rules allow it.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.check().is_ok()
    }

    /// What is wrong with it, if anything is.
    pub(super) fn check(&self) -> Result<(), CaseParseError> {
        let row = self.op.row();
        let result = self.op.result(&self.descs())?;
        // What is written must not repeat itself.
        if let Some(written) = row.writes
            && self.operands[written].layout == Layout::Broadcast
        {
            return Err(CaseParseError::WritesBroadcast { operand: row.operands[written].name });
        }
        if self.result == Layout::Broadcast {
            return Err(CaseParseError::WritesBroadcast { operand: "result" });
        }
        if self.result != Layout::Contiguous && (self.in_place.or(row.writes)).is_some() {
            return Err(CaseParseError::TwoResults);
        }
        if self.result.apply(result.desc.dtype, result.desc.shape).is_none() {
            let (dtype, shape, layout) = (result.desc.dtype, result.desc.shape, self.result);
            return Err(CaseParseError::Impossible { dtype, shape, layout });
        }
        match self.in_place {
            Some(index)
                if !row.overwrites.contains(&index)
                    || self.operands.get(index).is_none_or(|operand| operand.desc != result.desc) =>
            {
                Err(CaseParseError::InPlace { text: index.to_string() })
            }
            _ => Ok(()),
        }
    }

    /// The operands' descriptions.
    #[must_use]
    pub fn descs(&self) -> Vec<TensorDesc> {
        self.operands.iter().map(|o| o.desc).collect()
    }

    /// What tells cases apart: two with the same key are the same to every backend.
    pub(super) fn key(&self) -> Vec<u64> {
        let mut key = vec![self.fill as u64, self.result as u64, self.in_place.map_or(0, |index| index as u64 + 1)];
        self.op.key(&mut key);
        for operand in &self.operands {
            key.push(operand.desc.dtype as u64);
            key.extend(operand.desc.shape.0);
            key.extend(operand.desc.strides.0);
        }
        key
    }

    /// The result.
    ///
    /// # Panics
    /// Panics unless the case is valid.
    #[must_use]
    pub fn output(&self) -> TensorDesc {
        let desc = self.op.result(&self.descs()).expect("cases of the suite are valid").desc;
        match self.result {
            // The rule's own description: for writers, the target's strides.
            Layout::Contiguous => desc,
            layout => layout.apply(desc.dtype, desc.shape).expect("cases of the suite are valid"),
        }
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
        if self.result != Layout::Contiguous {
            write!(f, " result={}", self.result)?;
        }
        if self.fill != Fill::Plain {
            write!(f, " fill={:?}", self.fill)?;
        }
        Ok(())
    }
}
