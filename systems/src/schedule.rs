//! The passes as one bevy schedule, chained: their order is declared, never incidental.

use std::any::TypeId;

use bevy_ecs::{
    prelude::*,
    schedule::{ScheduleConfigs, ScheduleLabel, SystemSet},
    system::ScheduleSystem,
};
use entensor_components::SharedGeneration;

use crate::{
    allocate::{Allocated, allocate},
    assign::assign,
    cache::PlanCache,
    columns::{
        Backends, MemoryReach, NodeFlags, NodeMemory, NodeOrder, NodePlacements, Nodes, OffloadMasks, PaddedBytes,
        PlacementSync, PlanSalt, Planning, Refusals, SupportMasks, WriterFamilies,
    },
    compute::compute,
    expand::expand,
    fallback,
    index::{Gathered, index},
    inherit::inherit,
    liveness::{Live, liveness},
    probe::probe,
    publish::{self, GraphPlan},
    split::{Copies, Splits, split},
    status::{Pass, PassResult, PassTimings, PlanCounters, PlanStatus, timed},
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

/// A system in a pass's place: in its set, run when the pass would be, timed, and its error noted as the pass's. The passes are
/// made of it, and what replaces one of them should be.
///
/// Whoever replaces a pass writes all that the pass writes; see the page of its module.
pub fn pass_system<M>(
    pass: Pass,
    system: impl IntoSystem<(), PassResult, M> + 'static,
) -> ScheduleConfigs<ScheduleSystem> {
    let system = timed(pass, system).in_set(pass);
    match pass {
        Pass::Publish => system.run_if(planning_or_cached),
        Pass::Compute => system.run_if(computing),
        _ => system.run_if(planning),
    }
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
    // The sets are in order, not the systems: what takes a pass's place has its order.
    for (index, &pass) in Pass::ALL.iter().enumerate() {
        schedule.configure_sets(pass.in_set(set_of(pass)));
        if let Some(&next) = Pass::ALL.get(index + 1) {
            schedule.configure_sets(pass.before(next));
        }
    }
    schedule.add_systems((
        pass_system(Pass::Index, index),
        pass_system(Pass::Probe, probe),
        pass_system(Pass::Assign, assign),
        pass_system(Pass::Expand, expand),
        pass_system(Pass::Upgrade, upgrade),
        pass_system(Pass::Inherit, inherit),
        pass_system(Pass::Split, split),
        pass_system(Pass::Liveness, liveness),
        pass_system(Pass::Allocate, allocate),
        pass_system(Pass::Publish, publish_gathered),
        pass_system(Pass::Compute, compute),
    ));
    if recording == Recording::On {
        for (index, &pass) in Pass::ALL.iter().enumerate() {
            let text = record_text(pass).in_set(set_of(pass)).after(pass);
            schedule.add_systems(match Pass::ALL.get(index + 1) {
                Some(&next) => text.before(next),
                None => text,
            });
        }
    }
}

/// `publish`, with what systems between the passes edited left for the next look: the plan is of what `index` gathered.
fn publish_gathered(world: &mut World) -> PassResult {
    let graph = world.resource::<Planning>().0;
    let gathered = &world.resource::<Gathered>().0;
    let (generation, shared) = (gathered.generation, gathered.shared_generation);
    let now = publish::seen(world, graph);
    let changed = publish::publish(world)?;
    let is_edited = (now.generation, now.shared) != (generation, shared);
    if is_edited
        && matches!(world.resource::<PlanStatus>(), PlanStatus::Ready)
        && let Some(mut plan) = world.get_mut::<GraphPlan>(graph)
    {
        (plan.seen.generation, plan.seen.shared) = (generation, shared);
    }
    Ok(changed)
}

/// The public set that a pass belongs to.
fn set_of(pass: Pass) -> PlanSystems {
    match pass {
        Pass::Index | Pass::Probe | Pass::Assign => PlanSystems::Assign,
        Pass::Expand => PlanSystems::Expand,
        Pass::Upgrade | Pass::Inherit => PlanSystems::Upgrade,
        Pass::Split => PlanSystems::Split,
        Pass::Liveness | Pass::Allocate | Pass::Publish => PlanSystems::Allocate,
        Pass::Compute => PlanSystems::Compute,
    }
}

/// The schedule of the passes, single-threaded: passes depend on each other, so threads would only wait.
#[must_use]
pub fn plan_schedule(recording: Recording) -> Schedule {
    let mut schedule = Schedule::new(PlanSchedule);
    schedule.set_executor(bevy_ecs::schedule::SingleThreadedExecutor::new());
    add_plan_systems(&mut schedule, recording);
    schedule
}

/// Systems that were added to the plan schedule, or their orders, do not fit together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the plan schedule cannot be built: {reason}; check the systems and orders that were added to `PlanSchedule`")]
pub struct InvalidSchedule {
    /// What bevy says.
    pub reason: String,
}

fn initialize(schedule: &mut Schedule, world: &mut World) -> Result<(), InvalidSchedule> {
    let result = schedule.initialize(world);
    result.map(drop).map_err(|error| InvalidSchedule { reason: error.to_string(schedule.graph(), world) })
}

/// The systems of the plan schedule that are ours, in order. By type, since keys tell systems of one schedule apart only.
#[derive(Resource, Default)]
struct OwnSystems(Vec<TypeId>);

fn system_types(schedule: &Schedule) -> impl Iterator<Item = TypeId> + '_ {
    schedule.systems().into_iter().flatten().map(|(_, system)| (**system).system_type())
}

/// Adds the plan schedule to a world, and notes which systems in it are ours.
///
/// # Errors
/// Never for the passes alone: their order is declared.
pub fn install_plan_schedule(world: &mut World, recording: Recording) -> Result<(), InvalidSchedule> {
    let mut schedule = plan_schedule(recording);
    initialize(&mut schedule, world)?;
    world.insert_resource(OwnSystems(system_types(&schedule).collect()));
    world.add_schedule(schedule);
    Ok(())
}

/// Every pass has a system: what one of them does not write would be what it wrote for another graph.
fn check_passes(schedule: &Schedule) -> Result<(), InvalidSchedule> {
    let is_missing = |pass: &Pass| {
        schedule.graph().systems_in_set(pass.intern()).is_ok_and(|systems| systems.iter().next().is_none())
    };
    match Pass::ALL.iter().find(|pass| is_missing(pass)) {
        Some(pass) => Err(InvalidSchedule {
            reason: format!(
                "no system is in the set `Pass::{pass:?}`; add one with `pass_system`, if only an empty one"
            ),
        }),
        None => Ok(()),
    }
}

/// Runs the plan schedule, and once more where memory did not suffice for several pipelined slots. Placements are shown as
/// components between the passes only if there are systems that could look.
///
/// # Errors
/// What users' systems and orders did to the schedule, before anything runs: cycles, sets that do not exist, ambiguities where
/// they count as errors, a pass that was taken out and not replaced; a world whose plan schedule is not there, or runs already.
pub fn run_plan_schedule(world: &mut World) -> Result<(), InvalidSchedule> {
    let ran = world.try_schedule_scope(PlanSchedule, |world, schedule| {
        initialize(schedule, world)?;
        let own = world.get_resource::<OwnSystems>().map_or(&[][..], |own| &own.0);
        let alone = system_types(schedule).eq(own.iter().copied());
        if !alone {
            check_passes(schedule)?;
        }
        world.insert_resource(PlacementSync(!alone));
        let run = |world: &mut World, schedule: &mut Schedule| {
            if !alone {
                // Components are compared with what the passes of this run said, not with the last graph's answers.
                world.resource_mut::<NodePlacements>().reset(0);
            }
            schedule.run(world);
        };
        run(world, schedule);
        // One slot cannot fall back any further.
        if matches!(world.resource::<PlanStatus>(), PlanStatus::Retry) {
            *world.resource_mut::<PlanStatus>() = PlanStatus::Planning;
            run(world, schedule);
        }
        Ok(())
    });
    ran.unwrap_or_else(|_| Err(InvalidSchedule { reason: "it was not installed in this world, or is running".into() }))
}

/// Gives a world every resource that the passes use. Keeps those that exist.
pub fn init_resources(world: &mut World) {
    fallback::init(world);
    world.init_resource::<Backends>();
    world.init_resource::<SharedGeneration>();
    world.init_resource::<PlanSalt>();
    world.init_resource::<PlanStatus>();
    world.init_resource::<PlanCache>();
    world.init_resource::<PlanCounters>();
    world.init_resource::<PassTimings>();
    world.init_resource::<PassTexts>();
    world.init_resource::<Nodes>();
    world.init_resource::<NodeOrder>();
    world.init_resource::<Gathered>();
    world.init_resource::<NodePlacements>();
    world.init_resource::<PlacementSync>();
    world.init_resource::<MemoryReach>();
    world.init_resource::<NodeFlags>();
    world.init_resource::<NodeMemory>();
    world.init_resource::<SupportMasks>();
    world.init_resource::<OffloadMasks>();
    world.init_resource::<PaddedBytes>();
    world.init_resource::<Refusals>();
    world.init_resource::<WriterFamilies>();
    world.init_resource::<Splits>();
    world.init_resource::<Copies>();
    world.init_resource::<Live>();
    world.init_resource::<Allocated>();
}
