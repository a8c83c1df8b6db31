//! How rows become the enum, the table and what works on both; and how another crate gets at the rows.

/// Hands every row of the op table to a macro: `with_ops!(callback)`. The callback must be in scope by name.
#[doc(hidden)]
#[macro_export]
macro_rules! with_ops {
    ($callback:ident) => {
        $crate::next_ops! {
            [elementwise_ops reduction_ops product_ops attention_ops recurrent_ops indexing_ops movement_ops spatial_ops view_ops]
            $callback
        }
    };
}

/// One family's rows after the other; then the callback.
#[doc(hidden)]
#[macro_export]
macro_rules! next_ops {
    ([] $callback:ident $($rows:tt)*) => { $callback! { $($rows)* } };
    ([$next:ident $($later:ident)*] $callback:ident $($rows:tt)*) => {
        $crate::$next! { [$($later)*] $callback $($rows)* }
    };
}

macro_rules! is_optional {
    (One) => {
        false
    };
    (Maybe) => {
        true
    };
}

macro_rules! content {
    () => {
        Content::Data
    };
    ($content:ident) => {
        Content::$content
    };
}

macro_rules! declare_ops {
    ($($(#[doc = $doc:literal])+ $op_name:ident $Kind:ident
        ($($operand:ident: $holder:ident<$dtypes:ident $(, $content:ident)?>),*)
        { $($param:ident: $ty:ty = $default:expr),* } => $base:ident { $($field:tt)* })+) => {
        /// Which op, without parameters.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum OpKind {
            /// A leaf: no computation.
            None,
            $($(#[doc = $doc])+ $Kind,)+
        }

        /// An op with its typed parameters; [`Op::None`] for leaves.
        #[derive(Component, Clone, Debug, PartialEq)]
        #[component(immutable, on_insert = bump_generation, on_remove = bump_generation)]
        pub enum Op {
            /// A leaf: no computation.
            None {},
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
            OpRow { name: "none", doc: "A leaf: no computation.", source: "GGML_OP_NONE", ..ROW },
            $(OpRow {
                kind: OpKind::$Kind,
                name: stringify!($op_name),
                doc: concat!($($doc, "\n"),+),
                operands: &[$(OperandRow {
                    name: stringify!($operand),
                    dtypes: $dtypes,
                    optional: is_optional!($holder),
                    content: content!($($content)?),
                }),*],
                $($field)*
                ..$base
            },)+
        ];

        impl OpKind {
            /// The op with default parameters.
            #[must_use]
            pub fn default_op(self) -> Op {
                match self {
                    Self::None => Op::None {},
                    $(Self::$Kind => Op::$Kind { $($param: $default),* },)+
                }
            }
        }

        impl Op {
            /// Which op this is.
            #[must_use]
            #[inline]
            pub fn kind(&self) -> OpKind {
                match self {
                    Self::None {} => OpKind::None,
                    $(Self::$Kind { .. } => OpKind::$Kind,)+
                }
            }

            /// Calls `visit` with each parameter's name and value, in table order.
            pub fn visit_params(&self, visit: &mut dyn FnMut(&'static str, &dyn ParamValue)) {
                let _ = &visit;
                match self {
                    Self::None {} => {}
                    $(Self::$Kind { $($param),* } => { $(visit(stringify!($param), $param);)* })+
                }
            }

            /// Sets a parameter from its text form.
            ///
            /// # Errors
            /// When the op has no such parameter, or the text is no value of its type.
            pub fn set_param(&mut self, param_name: &str, text: &str) -> Result<(), ParamError> {
                let op = self.kind().name();
                let known: &[&str] = match self {
                    Self::None {} => &[],
                    $(Self::$Kind { $($param),* } => {
                        $(if param_name == stringify!($param) {
                            *$param = <$ty as OpParam>::parse(text).ok_or_else(|| ParamError::Value {
                                op,
                                name: stringify!($param),
                                text: text.into(),
                                expected: <$ty as OpParam>::FORM,
                            })?;
                            return Ok(());
                        })*
                        &[$(stringify!($param)),*]
                    })+
                };
                let known = if known.is_empty() { "none".into() } else { known.join(", ") };
                Err(ParamError::Unknown { op, name: param_name.into(), known })
            }
        }
    };
}
