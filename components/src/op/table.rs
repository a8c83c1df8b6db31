//! The op table itself. A row here, an oracle line and a line in each backend make an op; everything else is derived.

use crate::{
    dtype::{DType, DTypeSet},
    op::{
        OpParam, ParamError, RopeMode,
        row::{BatchRule, Content, OpRow, OperandRow, Tolerance},
        rules, samples,
    },
    shape::{MAX_DIMS, Shape, Strides},
};
use bevy_ecs::prelude::*;

use crate::generation::bump_generation;

const F32: DTypeSet = DTypeSet::of(&[DType::F32]);
const FLOATS: DTypeSet = DTypeSet::FLOATS;
const I32: DTypeSet = DTypeSet::of(&[DType::I32]);
/// Everything that stands for real numbers.
const REALS: DTypeSet = DTypeSet::REALS;

const fn data(name: &'static str, dtypes: DTypeSet) -> OperandRow {
    OperandRow { name, dtypes, optional: false, content: Content::Data }
}

const fn operand(name: &'static str, dtypes: DTypeSet, content: Content) -> OperandRow {
    OperandRow { name, dtypes, optional: false, content }
}

const fn optional(name: &'static str, dtypes: DTypeSet, content: Content) -> OperandRow {
    OperandRow { name, dtypes, optional: true, content }
}

/// What rows leave unsaid.
const ROW: OpRow = OpRow {
    kind: OpKind::None,
    name: "",
    operands: &[],
    view: false,
    writes: None,
    anchor: None,
    overwrites: &[],
    batch: BatchRule::Rows,
    result: rules::leaf,
    flops: |_, _| 0,
    tolerance: Tolerance::Exact,
    samples: samples::none,
    doc: "",
    source: "",
};

macro_rules! op_table {
    ($($(#[doc = $doc:literal])+ $Kind:ident $name:literal { $($param:ident: $ty:ty = $default:expr),* } => { $($row:tt)* })+) => {
        /// Which op, without parameters.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum OpKind {
            $($(#[doc = $doc])+ $Kind,)+
        }

        /// An op with its typed parameters; [`Op::None`] for leaves.
        #[derive(Component, Clone, Debug, PartialEq)]
        #[component(immutable, on_insert = bump_generation, on_remove = bump_generation)]
        pub enum Op {
            $(
                $(#[doc = $doc])+
                $Kind {
                    $(
                        #[doc = concat!("Parameter `", stringify!($param), "`, by default `", stringify!($default), "`.")]
                        $param: $ty,
                    )*
                },
            )+
        }

        /// Every op, in table order.
        pub static OPS: &[OpRow] = &[
            $(OpRow { kind: OpKind::$Kind, name: $name, doc: concat!($($doc, "\n"),+), $($row)* ..ROW },)+
        ];

        impl OpKind {
            /// The op with default parameters.
            #[must_use]
            pub fn default_op(self) -> Op {
                match self {
                    $(Self::$Kind => Op::$Kind { $($param: $default),* },)+
                }
            }
        }

        impl Op {
            /// Which op this is.
            #[must_use]
            pub fn kind(&self) -> OpKind {
                match self {
                    $(Self::$Kind { .. } => OpKind::$Kind,)+
                }
            }

            /// Calls `visit` with each parameter's name and value, in table order.
            pub fn visit_params(&self, visit: &mut dyn FnMut(&'static str, &dyn ParamValue)) {
                let _ = &visit;
                match self {
                    $(Self::$Kind { $($param),* } => { $(visit(stringify!($param), $param);)* })+
                }
            }

            /// Sets a parameter from its text form.
            ///
            /// # Errors
            /// When the op has no such parameter, or the text is no value of its type.
            pub fn set_param(&mut self, param_name: &str, text: &str) -> Result<(), ParamError> {
                let _ = text;
                match self {
                    $(Self::$Kind { $($param),* } => {
                        $(if param_name == stringify!($param) {
                            *$param = <$ty as OpParam>::parse(text).ok_or_else(|| ParamError::Value {
                                op: $name,
                                name: stringify!($param),
                                text: text.into(),
                                expected: stringify!($ty),
                            })?;
                            return Ok(());
                        })*
                        let known: &[&str] = &[$(stringify!($param)),*];
                        Err(ParamError::Unknown {
                            op: $name,
                            name: param_name.into(),
                            known: if known.is_empty() { "none".into() } else { known.join(", ") },
                        })
                    })+
                }
            }
        }
    };
}

/// A parameter value behind a reference: what printing and plan keys need.
pub trait ParamValue {
    /// The text form; `None` for an absent optional value.
    fn text(&self) -> Option<String>;
    /// Appends what identifies the value to a plan key.
    fn key(&self, key: &mut Vec<u64>);
}

impl<T: OpParam> ParamValue for T {
    fn text(&self) -> Option<String> {
        OpParam::text(self)
    }

    fn key(&self, key: &mut Vec<u64>) {
        OpParam::key(self, key);
    }
}

impl Op {
    /// Appends the op and its parameters to a plan key.
    pub fn key(&self, key: &mut Vec<u64>) {
        key.push(self.kind() as u64);
        self.visit_params(&mut |_, value| value.key(key));
    }
}

op_table! {
    /// A leaf: no computation.
    None "none" {} => { source: "GGML_OP_NONE", }

    /// `a + b`, with `b` repeated over the axes of `a`. Computed in f32, rounded once to the dtype of `a`.
    Add "add" {} => {
        operands: &[data("a", FLOATS), data("b", FLOATS)],
        overwrites: &[0, 1],
        result: rules::broadcast_second,
        flops: |_, out| out.shape.elements().unwrap_or(0),
        tolerance: Tolerance::Rounding,
        samples: || samples::binary(&Op::Add {}),
        source: "ggml_add",
    }

    /// `a · b`, with `b` repeated over the axes of `a`. Computed in f32, rounded once to the dtype of `a`.
    Mul "mul" {} => {
        operands: &[data("a", FLOATS), data("b", FLOATS)],
        overwrites: &[0, 1],
        result: rules::broadcast_second,
        flops: |_, out| out.shape.elements().unwrap_or(0),
        tolerance: Tolerance::Rounding,
        samples: || samples::binary(&Op::Mul {}),
        source: "ggml_mul",
    }

    /// `x · by`, computed in f32.
    Scale "scale" { by: f32 = 1.0 } => {
        operands: &[data("x", FLOATS)],
        overwrites: &[0],
        result: rules::like_first,
        flops: |_, out| out.shape.elements().unwrap_or(0),
        tolerance: Tolerance::Rounding,
        samples: || samples::unary(&Op::Scale { by: 0.125 }),
        source: "ggml_scale",
    }

    /// `max(x, 0)`; NaN becomes 0.
    Relu "relu" {} => {
        operands: &[data("x", FLOATS)],
        overwrites: &[0],
        result: rules::like_first,
        flops: |_, out| out.shape.elements().unwrap_or(0),
        tolerance: Tolerance::Exact,
        samples: || samples::unary(&Op::Relu {}),
        source: "ggml_relu; Nair and Hinton 2010",
    }

    /// `x / (1 + exp(-x))`, computed in f32. Minus infinity gives 0 or NaN, infinity gives infinity.
    Silu "silu" {} => {
        operands: &[data("x", FLOATS)],
        overwrites: &[0],
        result: rules::like_first,
        flops: |_, out| 5 * out.shape.elements().unwrap_or(0),
        tolerance: Tolerance::Sum,
        samples: || samples::unary(&Op::Silu {}),
        source: "ggml_silu; Elfwing et al. 2017",
    }

    /// `silu(gate) · value`: gate and value are two operands, or the first and second half of each row of one.
    Swiglu "swiglu" {} => {
        operands: &[data("gate", FLOATS), optional("value", FLOATS, Content::Data)],
        overwrites: &[0, 1],
        result: rules::gated,
        flops: |_, out| 6 * out.shape.elements().unwrap_or(0),
        tolerance: Tolerance::Sum,
        samples: || samples::gated(&Op::Swiglu {}),
        source: "ggml_swiglu, ggml_swiglu_split; Shazeer 2020, arXiv:2002.05202",
    }

    /// Each row divided by the root of its mean square: `x / sqrt(mean(x²) + eps)`. The sum is accumulated wider than f32.
    RmsNorm "rms_norm" { eps: f32 = 1e-5 } => {
        operands: &[data("x", F32)],
        overwrites: &[0],
        result: rules::rms_norm,
        flops: |_, out| 4 * out.shape.elements().unwrap_or(0),
        tolerance: Tolerance::Sum,
        samples: || samples::unary(&Op::RmsNorm { eps: 1e-5 }),
        source: "ggml_rms_norm; Zhang and Sennrich 2019, arXiv:1910.07467",
    }

    /// Softmax of each row of `x · scale + mask`. The mask is repeated over the outer axes. A row that is
    /// all minus infinity gives zeros, not NaN.
    SoftMax "soft_max" { scale: f32 = 1.0 } => {
        operands: &[data("x", F32), optional("mask", FLOATS, Content::Mask)],
        overwrites: &[0],
        result: rules::soft_max,
        flops: |_, out| 5 * out.shape.elements().unwrap_or(0),
        tolerance: Tolerance::Sum,
        samples: samples::soft_max,
        source: "ggml_soft_max_ext",
    }

    /// Matrix product `[k,m] × [k,n] → [m,n]`: element (i, j) is the dot product of row i of `weights` with row j of
    /// `x`. Outer axes of `weights` serve groups of neighbours: plane p of `x` uses plane `p / (x planes / weights planes)`, as
    /// grouped-query attention needs it (`add` and its kind repeat by remainder instead). Accumulated in f32. With block
    /// weights the rows of `x` may be rounded to 8-bit blocks first, and a row of `x` that is not finite may give NaN
    /// throughout.
    MulMat "mul_mat" {} => {
        operands: &[data("weights", REALS), data("x", FLOATS)],
        anchor: Some(0),
        batch: BatchRule::Axis1,
        result: rules::mul_mat,
        flops: |operands, out| 2 * operands[0].shape.0[0] * out.shape.elements().unwrap_or(0),
        tolerance: Tolerance::QuantizedProduct,
        samples: samples::mul_mat,
        source: "ggml_mul_mat",
    }

    /// Rows of `table` by index, decoded to f32 (integers stay integers). An index outside the table is an error at
    /// run time, before memory is touched.
    GetRows "get_rows" {} => {
        operands: &[data("table", DTypeSet::ALL), operand("ids", I32, Content::Indices)],
        anchor: Some(0),
        batch: BatchRule::Zero,
        result: rules::get_rows,
        samples: samples::get_rows,
        source: "ggml_get_rows",
    }

    /// Writes `rows` into `target` at the rows that `ids` name, encoding to its dtype; the result is the target. When an
    /// id occurs twice, the last row wins. An id outside the target is an error at run time, before memory is touched.
    SetRows "set_rows" {} => {
        operands: &[data("target", REALS), data("rows", F32), operand("ids", I32, Content::Indices)],
        writes: Some(0),
        result: rules::set_rows,
        samples: samples::set_rows,
        source: "ggml_set_rows",
    }

    /// Copies `source` into `target`, converting the dtype, elements in order of their linear index; the result is the target.
    Cpy "cpy" {} => {
        operands: &[data("source", DTypeSet::ALL), data("target", DTypeSet::ALL)],
        writes: Some(1),
        result: rules::cpy,
        samples: samples::cpy,
        source: "ggml_cpy",
    }

    /// A packed copy of `x`.
    Cont "cont" {} => {
        operands: &[data("x", DTypeSet::ALL)],
        result: rules::like_first,
        samples: || samples::unary(&Op::Cont {}),
        source: "ggml_cont",
    }

    /// A window of `x`: `offset` bytes from its first element, with its own shape and strides (packed by default).
    View "view" { offset: u64 = 0, shape: Shape = Shape([1; MAX_DIMS]), strides: Option<Strides> = None } => {
        operands: &[data("x", DTypeSet::ALL)],
        view: true,
        result: rules::view,
        samples: samples::view,
        source: "ggml_view_4d",
    }

    /// The memory of a packed `x` under another shape.
    Reshape "reshape" { shape: Shape = Shape([1; MAX_DIMS]) } => {
        operands: &[data("x", DTypeSet::ALL)],
        view: true,
        result: rules::reshape,
        samples: samples::reshape,
        source: "ggml_reshape_4d",
    }

    /// `x` with its axes reordered: axis i becomes axis `axes[i]`.
    Permute "permute" { axes: [u32; MAX_DIMS] = [0, 1, 2, 3] } => {
        operands: &[data("x", DTypeSet::ALL)],
        view: true,
        result: rules::permute,
        samples: samples::permute,
        source: "ggml_permute",
    }

    /// `x` with axes 0 and 1 swapped.
    Transpose "transpose" {} => {
        operands: &[data("x", DTypeSet::ALL)],
        view: true,
        result: rules::transpose,
        samples: samples::transpose,
        source: "ggml_transpose",
    }

    /// Rotary position embedding: the first `n_dims` elements of each row of `x` `[width, heads, tokens, batch]` (all, if
    /// 0) are rotated in pairs by `position · freq_scale · base^(-2i/n_dims) / factor[i]`; the rest is copied. Angles
    /// are computed in f64, the rotation in f32.
    Rope "rope" { mode: RopeMode = RopeMode::Normal, n_dims: u32 = 0, base: f32 = 10000.0, freq_scale: f32 = 1.0 } => {
        operands: &[
            data("x", FLOATS),
            operand("positions", I32, Content::Positions),
            optional("factors", F32, Content::Factors),
        ],
        overwrites: &[0],
        batch: BatchRule::Axis2,
        result: rules::rope,
        flops: |_, out| 4 * out.shape.elements().unwrap_or(0),
        tolerance: Tolerance::Sum,
        samples: samples::rope,
        source: "ggml_rope_ext; Su et al. 2021, arXiv:2104.09864",
    }

    /// `x` repeated along every axis to `shape`.
    Repeat "repeat" { shape: Shape = Shape([1; MAX_DIMS]) } => {
        operands: &[data("x", FLOATS.with(DType::I32))],
        result: rules::repeat,
        samples: samples::repeat,
        source: "ggml_repeat",
    }

    /// The sum of each row, accumulated wider than f32.
    SumRows "sum_rows" {} => {
        operands: &[data("x", F32)],
        result: rules::sum_rows,
        flops: |operands, _| operands[0].shape.elements().unwrap_or(0),
        tolerance: Tolerance::Sum,
        samples: || samples::unary(&Op::SumRows {}),
        source: "ggml_sum_rows",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_in_enum_order_and_documented() {
        for (i, row) in OPS.iter().enumerate() {
            assert_eq!(row.kind as usize, i);
            assert_eq!(OpKind::from_name(row.name), Some(row.kind));
            assert!(!row.doc.is_empty() && !row.source.is_empty(), "{}", row.name);
            assert!(row.kind == OpKind::None || !(row.samples)().is_empty(), "{} has no samples", row.name);
        }
    }

    #[test]
    fn params_round_trip_through_text() {
        for row in OPS {
            for sample in (row.samples)() {
                let mut back = row.kind.default_op();
                sample.op.visit_params(&mut |name, value| {
                    if let Some(text) = value.text() {
                        back.set_param(name, &text).expect("printed text parses");
                    }
                });
                assert_eq!(back, sample.op);
            }
        }
    }
}
