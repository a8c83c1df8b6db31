//! The scheduler of Entensor: the passes as bevy systems in public sets, the [`Plan`] they make, and the verifier that
//! proves it.
//!
//! One run of the schedule plans one graph, the one in [`Planning`], and computes it if asked to. Contents, in the order
//! of the passes: [`index`](mod@index), [`probe`](mod@probe), [`assign`](mod@assign), [`expand`](mod@expand),
//! [`upgrade`](mod@upgrade), [`inherit`](mod@inherit), [`split`](mod@split), [`liveness`](mod@liveness),
//! [`allocate`](mod@allocate), [`publish`](mod@publish), [`compute`](mod@compute).
#![forbid(unsafe_code)]

pub mod allocate;
pub mod assign;
mod cache;
mod columns;
pub mod compute;
mod error;
pub mod expand;
mod fallback;
pub mod index;
pub mod inherit;
pub mod liveness;
mod plan;
pub mod probe;
mod profile;
pub mod publish;
mod schedule;
pub mod split;
mod status;
pub mod text;
pub mod upgrade;
mod verify;

pub use cache::{DEFAULT_PLAN_BYTES, PlanCache};
pub use columns::*;
pub use compute::{GraphRuns, Mode, RunLimits, RunState, run_plan};
pub use error::*;
pub use fallback::{CopiesFallback, FellBack, PlannedCopies};
pub use plan::*;
pub use profile::{
    CopyProfile, Figures, GraphProfile, NodeProfile, OpProfile, Profile, ProfileConfig, Recorder, SplitProfile, Timing,
};
pub use publish::{Arena, ArenaBuffer, GraphPlan, OwnArena, Seen, UsesArena};
pub use schedule::*;
pub use status::{GraphStatus, Pass, PassResult, PassTiming, PassTimings, PlanCounters, PlanReason, PlanStatus};
pub use verify::{Violation, verify, verify_given};
