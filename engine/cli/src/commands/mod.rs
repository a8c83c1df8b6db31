//! The subcommands, one a file.

pub(crate) mod backends;
pub(crate) mod bench;
pub(crate) mod compare;
pub(crate) mod compare_logits;
pub(crate) mod explain;
pub(crate) mod inspect;
pub(crate) mod logits;
pub(crate) mod plan;
pub(crate) mod quantize;
pub(crate) mod run;
pub(crate) mod tokenize;
