//! Rows: gated recurrent steps.

#[doc(hidden)]
#[macro_export]
macro_rules! recurrent_ops {
    ($next:tt $callback:ident $($rows:tt)*) => { $crate::next_ops! { $next $callback $($rows)*



    } };
}
