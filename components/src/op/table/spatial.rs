//! Rows: convolutions and pooling.

#[doc(hidden)]
#[macro_export]
macro_rules! spatial_ops {
    ($next:tt $callback:ident $($rows:tt)*) => { $crate::next_ops! { $next $callback $($rows)*



    } };
}
