//! What became of the plan, how long each pass took, and why plans are made: data, not spans only.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use bevy_ecs::{
    prelude::*,
    schedule::ScheduleConfigs,
    system::{CombinatorSystem, Combine, RunSystemError, ScheduleSystem, SystemIn},
};

use crate::{columns::Planning, error::PlanError, plan::Plan, profile::Profile};

/// The passes in order. A pass keeps one word everywhere: file, system, timer, golden, bench.
///
/// Each is a system set of its own too, inside one of [`crate::PlanSystems`]: to take a pass out and put another in.
#[derive(SystemSet, Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Pass {
    /// Puts the wanted nodes and what they need in order.
    Index,
    /// Asks every backend about every node.
    Probe,
    /// Places what pins, memory, inputs and weights decide.
    Assign,
    /// Lets runs grow over undecided nodes.
    Expand,
    /// Moves nodes to better backends on the same memory; places the rest.
    Upgrade,
    /// Places views with their roots and scratch with its users.
    Inherit,
    /// Cuts the order into runs and decides copies.
    Split,
    /// Finds when each planned tensor is alive, and what is computed in place.
    Liveness,
    /// Gives each planned tensor its bytes.
    Allocate,
    /// Writes the plan and its entities.
    Publish,
    /// Walks the plan.
    Compute,
}

impl Pass {
    /// Every pass, in order.
    pub const ALL: [Self; 11] = [
        Self::Index,
        Self::Probe,
        Self::Assign,
        Self::Expand,
        Self::Upgrade,
        Self::Inherit,
        Self::Split,
        Self::Liveness,
        Self::Allocate,
        Self::Publish,
        Self::Compute,
    ];

    /// The pass's word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Index => "index",
            Self::Probe => "probe",
            Self::Assign => "assign",
            Self::Expand => "expand",
            Self::Upgrade => "upgrade",
            Self::Inherit => "inherit",
            Self::Split => "split",
            Self::Liveness => "liveness",
            Self::Allocate => "allocate",
            Self::Publish => "publish",
            Self::Compute => "compute",
        }
    }

    /// The pass of this word.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|pass| pass.name() == name)
    }
}

/// How far the graph in [`crate::Planning`] is.
#[derive(Resource, Clone, Debug, Default)]
pub enum PlanStatus {
    /// Nothing was asked.
    #[default]
    Idle,
    /// Passes are to run.
    Planning,
    /// An earlier plan fits; only `publish` is to run.
    Cached(Arc<Plan>),
    /// There is a plan.
    Ready,
    /// Memory did not suffice for several pipelined slots: the schedule is to run again, and plans one.
    Retry,
    /// There is a plan, and `compute` is to walk it.
    Computing,
    /// A pass failed; later ones are skipped.
    Failed {
        /// The pass.
        pass: Pass,
        /// Why.
        error: PlanError,
    },
}

/// On a graph: what became of its last planning or run, for tools and games to query.
#[derive(Component, Clone, Debug, Default, PartialEq)]
pub enum GraphStatus {
    /// It has not been planned yet.
    #[default]
    Unplanned,
    /// It has a plan.
    Planned,
    /// A pass failed; other graphs go on.
    Failed {
        /// The pass.
        pass: Pass,
        /// Why.
        error: PlanError,
    },
    /// A device that its plan used is lost. It is planned again without it before its next run.
    DeviceLost {
        /// The backend.
        backend: Arc<str>,
        /// What the driver said.
        reason: Arc<str>,
    },
}

/// One pass's figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassTiming {
    /// How often it ran.
    pub calls: u64,
    /// Nanoseconds of all runs.
    pub total_ns: u64,
    /// Nanoseconds of the last run.
    pub last_ns: u64,
    /// What the last run changed: rows, splits, tensors.
    pub last_changed: u64,
}

/// Figures of every pass, in a form that tools and overlays read.
#[derive(Resource, Clone, Copy, Debug, Default)]
pub struct PassTimings([PassTiming; Pass::ALL.len()]);

impl PassTimings {
    /// Figures of one pass.
    #[must_use]
    pub fn get(&self, pass: Pass) -> PassTiming {
        self.0[pass as usize]
    }

    /// Every pass with its figures, in order.
    pub fn iter(&self) -> impl Iterator<Item = (Pass, PassTiming)> + '_ {
        Pass::ALL.into_iter().map(|pass| (pass, self.get(pass)))
    }

    /// Sets all figures to zero.
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    /// Adds a call of a pass, for who does its work outside the schedule.
    pub fn record(&mut self, pass: Pass, ns: u64, changed: u64) {
        let timing = &mut self.0[pass as usize];
        timing.calls += 1;
        timing.total_ns += ns;
        timing.last_ns = ns;
        timing.last_changed = changed;
    }
}

/// Why a graph was planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PlanReason {
    /// It had no plan yet.
    First,
    /// Something in the graph changed.
    Graph,
    /// A shared leaf, a buffer or the set of backends changed.
    Shared,
    /// A user's system changed the salt.
    Salt,
}

impl PlanReason {
    /// The word in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Graph => "graph changed",
            Self::Shared => "shared leaf, buffer or backend changed",
            Self::Salt => "salt changed",
        }
    }
}

/// Counts what the plan cache did.
#[derive(Resource, Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanCounters {
    /// Runs whose graph was unchanged: nothing was planned, nothing looked up.
    pub unchanged: u64,
    /// Graphs that fitted a plan made earlier.
    pub cached: u64,
    /// Plans made.
    pub planned: u64,
    /// Plans with several pipelined slots that were given up for one with a single slot.
    pub fallbacks: u64,
    /// Why graphs were looked at again, cached or planned.
    pub reasons: BTreeMap<PlanReason, u64>,
}

/// What a pass returns: how much it changed.
pub type PassResult = Result<usize, PlanError>;

struct Timed;

impl<A, B> Combine<A, B> for Timed
where
    A: System<In = (), Out = PassResult>,
    B: System<In = In<(u64, PassResult)>, Out = ()>,
{
    type In = ();
    type Out = ();

    fn combine<T>(
        _input: (),
        data: &mut T,
        pass: impl FnOnce(SystemIn<'_, A>, &mut T) -> Result<A::Out, RunSystemError>,
        record: impl FnOnce(SystemIn<'_, B>, &mut T) -> Result<B::Out, RunSystemError>,
    ) -> Result<(), RunSystemError> {
        let start = Instant::now();
        let result = pass((), data)?;
        let ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        record((ns, result), data)
    }
}

/// Wraps a pass so that its time and outcome are recorded by the same system.
pub(crate) fn timed<M>(
    pass: Pass,
    system: impl IntoSystem<(), PassResult, M> + 'static,
) -> ScheduleConfigs<ScheduleSystem> {
    let record = move |In((ns, result)): In<(u64, PassResult)>,
                       planning: Res<'_, Planning>,
                       mut graphs: Query<'_, '_, &mut GraphStatus>,
                       mut status: ResMut<'_, PlanStatus>,
                       mut timings: ResMut<'_, PassTimings>,
                       profile: Option<ResMut<'_, Profile>>| {
        if let Some(mut profile) = profile {
            profile.record_pass(pass, ns);
        }
        match result {
            Ok(changed) => {
                timings.record(pass, ns, changed as u64);
                if pass == Pass::Compute
                    && let Ok(mut graph) = graphs.get_mut(planning.0)
                {
                    graph.set_if_neq(GraphStatus::Planned);
                }
            }
            Err(error) => {
                timings.record(pass, ns, 0);
                if let Ok(mut graph) = graphs.get_mut(planning.0) {
                    *graph = GraphStatus::Failed { pass, error: error.clone() };
                }
                *status = PlanStatus::Failed { pass, error };
            }
        }
    };
    let combined: CombinatorSystem<Timed, _, _> =
        CombinatorSystem::new(IntoSystem::into_system(system), IntoSystem::into_system(record), pass.name().into());
    combined.into_configs()
}
