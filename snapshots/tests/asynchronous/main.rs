//! Work that is under way while the host goes on: on simulated devices, whose queues run late and in the order that a seed likes.
//!
//! Every schedule's bytes are compared with those of one host, and every timeline is proved free of races, whatever it showed.

mod cancelling;
mod copying;
mod losing;
mod machine;
mod overlapping;
mod pipelining;
mod removed_waits;
