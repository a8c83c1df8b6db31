//! A constructor for every row of the op table: operands in ggml's order, then parameters in the table's.

use entensor_components::{
    DType, MAX_DIMS, Op, OpParam, PoolOp, RopeMode, Shape, SortOrder, Strides, UpscaleMode, with_ops,
};

use super::{GraphBuilder, Tensor};
use crate::error::BuildError;

macro_rules! operand_type {
    (One) => { Tensor };
    (Maybe) => { Option<Tensor> };
}

macro_rules! constructors {
    ($($(#[doc = $doc:literal])+ $op_name:ident $Kind:ident
        ($($operand:ident: $holder:ident<$dtypes:ident $(, $content:ident)?>),*)
        { $($param:ident: $ty:ty = $default:expr),* } => $base:ident { $($field:tt)* })+) => {
        /// A constructor for every op of the table. Each fails as [`GraphBuilder::op`] does; operands that may be left
        /// out are `Option`s.
        impl GraphBuilder {
            $(
                $(#[doc = $doc])+
                ///
                /// # Errors
                /// When the op does not fit its operands.
                pub fn $op_name(
                    &mut self,
                    $($operand: operand_type!($holder),)*
                    $($param: <$ty as OpParam>::Arg,)*
                ) -> Result<Tensor, BuildError> {
                    let op = Op::$Kind { $($param: OpParam::from_arg($param)),* };
                    self.given(op, [$(Option::<Tensor>::from($operand)),*])
                }
            )+
        }
    };
}

with_ops!(constructors);
