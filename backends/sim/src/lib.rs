//! Devices that do not exist: the results of another backend, behind queues that run as late and in as odd an order as their
//! seed likes, on a virtual clock.
//!
//! A [`SimWorld`] holds devices, their queues and one clock. Nothing that is submitted runs before somebody waits, polls or
//! reads; then a seeded schedule picks among everything that queue order and events allow. So a wait that is missing gives wrong
//! bytes under some seed, and [`check`] proves from the recorded [`Timeline`] alone that none is missing, whatever the
//! seed. Times are computed from the configured speeds and never measured: a timeline is the same on every machine.
//!
//! Devices run out of memory, fail at the n-th call and are lost for good when told to ([`SimBackend::fail`]).
//!
//! ```
//! use std::sync::Arc;
//! use entensor_components::{Backend, Ticket, Usage};
//! use entensor_oracle::OracleBackend;
//! use entensor_sim::{SimConfig, SimWorld};
//!
//! let world = SimWorld::new(7);
//! let device = world.device(SimConfig::device("device0", Arc::new(OracleBackend::new("inner"))));
//! let key = device.create_buffer(4, Usage::Any)?;
//! let memory = device.memory(key)?;
//! let ticket = device.write_async(&memory, 0, &[1, 2, 3, 4])?;
//! assert_eq!(world.pending(), 1);
//! assert!(device.wait_for(ticket, None)?);
//! let mut back = [0; 4];
//! device.read(&memory, 0, &mut back)?;
//! assert_eq!(back, [1, 2, 3, 4]);
//! # Ok::<(), entensor_components::BackendError>(())
//! ```
//!
//! **Threads.** All methods may be called from any thread. One lock holds a world together, and work runs under it: this is a
//! tool to find faults, not a fast one.
#![forbid(unsafe_code)]

mod backend;
mod check;
mod config;
mod fault;
mod job;
mod memory;
mod random;
mod split;
mod timeline;
mod world;

pub use backend::SimBackend;
pub use check::{Race, RaceKind, check};
pub use config::{Pieces, SimConfig, Speed};
pub use fault::{Call, Fault};
pub use timeline::{Access, Lane, Outcome, Timeline, TimelineEntry, Work};
pub use world::SimWorld;
