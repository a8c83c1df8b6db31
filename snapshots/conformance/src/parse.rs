//! A case from its line: the reverse of how a case prints.

use std::str::FromStr;

use entensor_components::{DType, OpError, OpKind, OpParam, ParamError, Shape, TensorDesc};

use crate::{Case, CaseOperand, Fill, Layout};

/// Why a line is no case.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CaseParseError {
    /// Nothing but blanks.
    #[error("the line is empty; write an op and its operands, as `scale by=2.0 x=f32[7,5]:sliced`")]
    Empty,
    /// The first word is no op that computes.
    #[error("`{name}` is no op that computes something")]
    UnknownOp {
        /// The word.
        name: String,
    },
    /// A word without `=`.
    #[error("`{word}` is no `name=value`")]
    Word {
        /// The word.
        word: String,
    },
    /// A name that stands twice.
    #[error("`{name}` is given twice")]
    Repeated {
        /// The name.
        name: String,
    },
    /// A name that is neither an operand nor a parameter, or a parameter's value that does not parse.
    #[error("neither an operand ({operands}), nor `in_place`, `result` or `fill`, nor a parameter: {source}")]
    Param {
        /// The operands' names.
        operands: String,
        /// What is wrong with it as a parameter.
        source: ParamError,
    },
    /// An operand that is not written as dtype, shape and layout.
    #[error("`{text}` is no operand; write a dtype, a shape and a layout, as `f32[7,5]:sliced`")]
    Operand {
        /// The text.
        text: String,
    },
    /// A dtype that the table does not have.
    #[error("`{name}` is no dtype")]
    UnknownDType {
        /// The word.
        name: String,
    },
    /// A layout that there is not.
    #[error("`{name}` is no layout; there are {known}", known = known_layouts())]
    UnknownLayout {
        /// The word.
        name: String,
    },
    /// The dtype has no tensor of that shape in that layout.
    #[error("there is no {layout} {dtype} tensor of shape {shape}")]
    Impossible {
        /// The dtype.
        dtype: DType,
        /// The shape.
        shape: Shape,
        /// The layout.
        layout: Layout,
    },
    /// Operands that do not go with the op or with each other.
    #[error(transparent)]
    Op(#[from] OpError),
    /// What an op writes must not repeat itself.
    #[error("operand `{operand}` is written, so it cannot be broadcast")]
    WritesBroadcast {
        /// The operand.
        operand: &'static str,
    },
    /// An operand whose memory the result cannot take over.
    #[error(
        "the result cannot take over the memory of operand `{text}`; it must be one that the op's row names, and like the result"
    )]
    InPlace {
        /// The text after `in_place=`.
        text: String,
    },
    /// A layout for a result that lies in an operand's memory.
    #[error("the result lies in an operand's memory as the operand does; leave `result=` out")]
    TwoResults,
    /// Tensors that no test should ask memory for.
    #[error("the case is too large: above {MAX_CASE_BYTES} bytes")]
    TooLarge,
    /// A fill that there is not.
    #[error("`{name}` is no fill; there are {known}", known = known_fills())]
    UnknownFill {
        /// The word.
        name: String,
    },
}

/// Memory of a case that is pasted back, at most; the suite's own are far below.
const MAX_CASE_BYTES: u64 = 1 << 30;

/// Whether its tensors, holes of the strides included, are small enough; empty axes count as one element.
fn is_small(case: &Case) -> bool {
    let bytes = |desc: &TensorDesc| {
        let elements = desc.shape.0.iter().try_fold(1_u64, |n, &d| n.checked_mul(d.max(1)))?;
        elements.checked_mul(4)?.checked_add(desc.span_bytes()?)
    };
    let descs = case.descs().into_iter().chain([case.output()]);
    let total = descs.map(|desc| bytes(&desc)).try_fold(0_u64, |sum, bytes| sum.checked_add(bytes?));
    total.is_some_and(|total| total <= MAX_CASE_BYTES)
}

fn known_layouts() -> String {
    Layout::ALL.map(|layout| layout.to_string()).join(", ")
}

fn known_fills() -> String {
    Fill::ALL.iter().map(|fill| format!("{fill:?}")).collect::<Vec<_>>().join(", ")
}

impl FromStr for Case {
    type Err = CaseParseError;

    fn from_str(line: &str) -> Result<Self, CaseParseError> {
        let mut words = line.split_whitespace();
        let name = words.next().ok_or(CaseParseError::Empty)?;
        let kind = OpKind::from_name(name)
            .filter(|kind| kind.row().computes())
            .ok_or_else(|| CaseParseError::UnknownOp { name: name.into() })?;
        let row = kind.row();
        let mut op = kind.default_op();
        let mut operands = vec![None; row.operands.len()];
        let (mut in_place, mut result, mut fill) = (None, Layout::Contiguous, Fill::Plain);
        let mut seen = Vec::new();
        for word in words {
            let (key, text) = word.split_once('=').ok_or_else(|| CaseParseError::Word { word: word.into() })?;
            if seen.contains(&key) {
                return Err(CaseParseError::Repeated { name: key.into() });
            }
            seen.push(key);
            if let Some(index) = row.operands.iter().position(|operand| operand.name == key) {
                operands[index] = Some(text.parse::<CaseOperand>()?);
            } else if key == "in_place" {
                let index = text.parse::<usize>().map_err(|_| CaseParseError::InPlace { text: text.into() })?;
                in_place = Some(index);
            } else if key == "result" {
                result = layout(text)?;
            } else if key == "fill" {
                fill = Fill::from_name(text).ok_or_else(|| CaseParseError::UnknownFill { name: text.into() })?;
            } else {
                let operands = || row.operands.iter().map(|o| o.name).collect::<Vec<_>>().join(", ");
                op.set_param(key, text).map_err(|source| CaseParseError::Param { operands: operands(), source })?;
            }
        }
        let operands = op.given_operands(operands)?;
        let case = Self { op, operands, in_place, result, fill };
        case.check()?;
        if is_small(&case) { Ok(case) } else { Err(CaseParseError::TooLarge) }
    }
}

fn layout(name: &str) -> Result<Layout, CaseParseError> {
    Layout::from_name(name).ok_or_else(|| CaseParseError::UnknownLayout { name: name.into() })
}

impl FromStr for CaseOperand {
    type Err = CaseParseError;

    fn from_str(text: &str) -> Result<Self, CaseParseError> {
        let malformed = || CaseParseError::Operand { text: text.into() };
        let (tensor, layout) = text.split_once(':').ok_or_else(malformed)?;
        let (dtype, shape) = tensor.split_at(tensor.find('[').ok_or_else(malformed)?);
        let dtype = DType::from_name(dtype).ok_or_else(|| CaseParseError::UnknownDType { name: dtype.into() })?;
        let shape = <Shape as OpParam>::parse(shape).ok_or_else(malformed)?;
        let layout = Layout::from_name(layout).ok_or_else(|| CaseParseError::UnknownLayout { name: layout.into() })?;
        Self::new(dtype, shape, layout).ok_or(CaseParseError::Impossible { dtype, shape, layout })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(line: &str) -> CaseParseError {
        line.parse::<Case>().expect_err(line)
    }

    #[test]
    fn every_case_of_the_suite_can_be_pasted_back() {
        for case in crate::cases() {
            let line = case.to_string();
            let back = line.parse::<Case>().unwrap_or_else(|error| panic!("{line}: {error}"));
            assert_eq!(back, case, "{line}");
            assert_eq!(back.to_string(), line);
        }
    }

    #[test]
    fn no_name_of_a_row_means_two_things_in_a_line() {
        for row in entensor_components::OPS {
            let mut names = vec!["in_place", "result", "fill"];
            names.extend(row.operands.iter().map(|operand| operand.name));
            row.kind.default_op().visit_params(&mut |name, _| names.push(name));
            let count = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), count, "{}: {names:?}", row.name);
        }
    }

    #[test]
    fn what_is_wrong_with_a_line_is_said() {
        use CaseParseError as E;
        assert_eq!(error("  "), E::Empty);
        assert_eq!(error("scael x=f32[7]:sliced"), E::UnknownOp { name: "scael".into() });
        assert!(matches!(error("view x=f32[7]:sliced"), E::UnknownOp { .. }), "views compute nothing");
        assert!(matches!(error("scale x"), E::Word { .. }));
        assert!(matches!(error("scale x=f32[7]:sliced x=f32[7]:sliced"), E::Repeated { .. }));
        assert!(matches!(error("scale by=big x=f32[7]:sliced"), E::Param { source: ParamError::Value { .. }, .. }));
        assert!(matches!(error("scale y=f32[7]:sliced"), E::Param { source: ParamError::Unknown { .. }, .. }));
        for text in ["f32", "f32[7]", "[7", "f32[]:sliced", "f32[1,2,3,4,5]:sliced", "f32[-1]:sliced", ":", "f32[7"] {
            assert!(matches!(error(&format!("scale x={text}")), E::Operand { .. }), "{text}");
        }
        assert!(matches!(error("scale x=f99[7]:sliced"), E::UnknownDType { .. }));
        assert!(matches!(error("scale x=f32[7]:slcied"), E::UnknownLayout { .. }));
        assert!(matches!(error("cont x=q4_1[33]:contiguous"), E::Impossible { .. }));
        assert!(matches!(error("cont x=f32[4611686018427387904,4]:contiguous"), E::Impossible { .. }));
        assert!(matches!(error("cont x=f32[1099511627776,1,1,1099511627776]:sliced"), E::Impossible { .. }));
        assert_eq!(error("cont x=f32[1048576,1048576]:contiguous"), E::TooLarge);
        assert_eq!(error("cont x=f32[0,1099511627776]:contiguous"), E::TooLarge);
        assert_eq!(error("repeat shape=[1048576,1048576] x=f32[1]:contiguous"), E::TooLarge);
        assert!(matches!(error("add a=f32[7]:contiguous"), E::Op(OpError::Arity { .. })));
        assert!(matches!(error("add b=f32[7]:contiguous"), E::Op(OpError::OperandGap { .. })));
        assert!(matches!(error("scale x=i32[7]:contiguous"), E::Op(OpError::DType { .. })));
        assert!(matches!(error("add a=f32[7]:contiguous b=f32[3]:contiguous"), E::Op(OpError::Shape { .. })));
        let written = error("cpy source=f32[7,2]:contiguous target=f32[7,2]:broadcast");
        assert_eq!(written, E::WritesBroadcast { operand: "target" });
        for place in ["in_place=1", "in_place=x", "in_place=99"] {
            assert!(matches!(error(&format!("scale x=f32[7]:contiguous {place}")), E::InPlace { .. }), "{place}");
        }
        assert!(matches!(error("scale x=f32[7,2]:sliced in_place=0"), E::InPlace { .. }), "the result is packed");
        assert!(matches!(error("scale x=f32[7]:contiguous result=no"), E::UnknownLayout { .. }));
        assert!(matches!(error("scale x=f32[7]:contiguous result=broadcast"), E::WritesBroadcast { .. }));
        assert_eq!(error("scale x=f32[7]:contiguous in_place=0 result=sliced"), E::TwoResults);
        let strided = "scale by=2.0 x=f32[7,3]:contiguous result=sliced";
        assert_eq!(strided.parse::<Case>().map(|case| case.to_string()), Ok(strided.into()));
        assert!(matches!(error("scale x=f32[7]:contiguous fill=Nman"), E::UnknownFill { .. }));
    }
}
