//! The passes as one bevy schedule, chained: their order is declared, never incidental.

use bevy_ecs::{
    prelude::*,
    schedule::{ScheduleLabel, SystemSet},
};
use entensor_components::SharedGeneration;

use crate::{
    allocate::{Allocated, allocate},
    assign::assign,
    cache::PlanCache,
    columns::{
        Backends, NodeDescs, NodeFlags, NodeMemory, NodeNames, NodeOps, NodeOrder, NodePins, NodeRoots, NodeSources,
        OffloadMasks, PaddedBytes, PlanSalt, Refusals, SupportMasks, WriterFamilies,
    },
    compute::compute,
    expand::expand,
    index::index,
    inherit::inherit,
    liveness::{Live, liveness},
    probe::probe,
    publish::publish,
    split::{Copies, NodeBackends, Splits, split},
    status::{Pass, PassTimings, PlanCounters, PlanStatus, timed},
    text::{PassTexts, record_text},
    upgrade::upgrade,
};

/// The schedule that plans and computes one graph.
#[derive(ScheduleLabel, Clone, Debug, PartialEq, Eq, Hash)]
pub struct PlanSchedule;

/// What users' own systems order themselves against. Chained in this order.
#[derive(SystemSet, Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PlanSystems {
    /// `index`, `probe` and `assign`.
    Assign,
    /// `expand`.
    Expand,
    /// `upgrade` and `inherit`.
    Upgrade,
    /// `split`.
    Split,
    /// `liveness`, `allocate` and `publish`.
    Allocate,
    /// `compute`.
    Compute,
}

/// Whether passes record their canonical text, for tests and tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recording {
    /// No text.
    Off,
    /// Each pass is followed by a system that renders what it changed into [`PassTexts`].
    On,
}

/// A run condition for users' systems between passes: a graph is being planned, and nothing has failed.
#[must_use]
pub fn planning(status: Res<'_, PlanStatus>) -> bool {
    matches!(*status, PlanStatus::Planning)
}

fn planning_or_cached(status: Res<'_, PlanStatus>) -> bool {
    matches!(*status, PlanStatus::Planning | PlanStatus::Cached(_))
}

fn computing(status: Res<'_, PlanStatus>) -> bool {
    matches!(*status, PlanStatus::Computing)
}

/// Adds the passes to a schedule, chained.
pub fn add_plan_systems(schedule: &mut Schedule, recording: Recording) {
    schedule.configure_sets(
        (
            PlanSystems::Assign,
            PlanSystems::Expand,
            PlanSystems::Upgrade,
            PlanSystems::Split,
            PlanSystems::Allocate,
            PlanSystems::Compute,
        )
            .chain(),
    );
    macro_rules! pass {
        ($pass:ident, $system:expr, $condition:expr) => {{
            let pass = timed(Pass::$pass, $system).run_if($condition);
            match recording {
                Recording::Off => pass,
                Recording::On => (pass, record_text(Pass::$pass)).chain(),
            }
        }};
    }
    schedule.add_systems((
        (pass!(Index, index, planning), pass!(Probe, probe, planning), pass!(Assign, assign, planning))
            .chain()
            .in_set(PlanSystems::Assign),
        pass!(Expand, expand, planning).in_set(PlanSystems::Expand),
        (pass!(Upgrade, upgrade, planning), pass!(Inherit, inherit, planning)).chain().in_set(PlanSystems::Upgrade),
        pass!(Split, split, planning).in_set(PlanSystems::Split),
        (
            pass!(Liveness, liveness, planning),
            pass!(Allocate, allocate, planning),
            pass!(Publish, publish, planning_or_cached),
        )
            .chain()
            .in_set(PlanSystems::Allocate),
        pass!(Compute, compute, computing).in_set(PlanSystems::Compute),
    ));
}

/// The schedule of the passes, single-threaded: passes depend on each other, so threads would only wait.
#[must_use]
pub fn plan_schedule(recording: Recording) -> Schedule {
    let mut schedule = Schedule::new(PlanSchedule);
    schedule.set_executor(bevy_ecs::schedule::SingleThreadedExecutor::new());
    add_plan_systems(&mut schedule, recording);
    schedule
}

/// Gives a world every resource that the passes use. Keeps those that exist.
pub fn init_resources(world: &mut World) {
    world.init_resource::<Backends>();
    world.init_resource::<SharedGeneration>();
    world.init_resource::<PlanSalt>();
    world.init_resource::<PlanStatus>();
    world.init_resource::<PlanCache>();
    world.init_resource::<PlanCounters>();
    world.init_resource::<PassTimings>();
    world.init_resource::<PassTexts>();
    world.init_resource::<NodeOrder>();
    world.init_resource::<NodeNames>();
    world.init_resource::<NodeDescs>();
    world.init_resource::<NodeOps>();
    world.init_resource::<NodeSources>();
    world.init_resource::<NodeRoots>();
    world.init_resource::<NodeFlags>();
    world.init_resource::<NodePins>();
    world.init_resource::<NodeMemory>();
    world.init_resource::<SupportMasks>();
    world.init_resource::<OffloadMasks>();
    world.init_resource::<PaddedBytes>();
    world.init_resource::<Refusals>();
    world.init_resource::<WriterFamilies>();
    world.init_resource::<NodeBackends>();
    world.init_resource::<Splits>();
    world.init_resource::<Copies>();
    world.init_resource::<Live>();
    world.init_resource::<Allocated>();
}
