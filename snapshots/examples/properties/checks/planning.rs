//! A proved plan or a typed error, and the same one every time.

use std::sync::Arc;

use bevy_ecs::{prelude::*, resource::IsResource};
use entensor::graph_text::{GraphError, GraphText};
use entensor_components::Backend;
use entensor_systems::{
    GraphPlan, Pass, Plan, PlanCache, PlanCounters, PlanError, PlanSalt, PlanStatus, Planning, Recording,
    plan_schedule, text::PassTexts, verify,
};

use super::{Summary, Tools};

/// A world that plans one graph after the other.
pub(super) struct Planner {
    pub(super) world: World,
    pub(super) graph: Entity,
    schedule: Schedule,
}

impl Planner {
    pub(super) fn new(recording: Recording) -> Self {
        Self { world: World::new(), graph: Entity::PLACEHOLDER, schedule: plan_schedule(recording) }
    }

    /// Takes another graph. Of the last one stays what no plan may depend on: columns, scratch memory of the passes.
    pub(super) fn spawn(&mut self, text: &GraphText, backends: Vec<Arc<dyn Backend>>) -> Result<(), GraphError> {
        let world = &mut self.world;
        let old: Vec<Entity> = world.query_filtered::<Entity, Without<IsResource>>().iter(world).collect();
        for entity in old {
            // Some go with others.
            world.try_despawn(entity).ok();
        }
        world.insert_resource(PlanCache::default());
        world.insert_resource(PlanCounters::default());
        world.insert_resource(PlanSalt::default());
        world.insert_resource(PassTexts::default());
        self.graph = text.spawn_on(world, backends)?;
        Ok(())
    }

    /// Plans (again).
    pub(super) fn plan(&mut self) -> Result<Arc<Plan>, PlanError> {
        self.world.insert_resource(Planning(self.graph));
        self.world.insert_resource(PlanStatus::Planning);
        self.schedule.run(&mut self.world);
        match self.world.resource::<PlanStatus>() {
            PlanStatus::Ready => Ok(Arc::clone(&self.world.get::<GraphPlan>(self.graph).expect("it is ready").plan)),
            PlanStatus::Failed { error, .. } => Err(error.clone()),
            status => panic!("planning ended as {status:?}"),
        }
    }

    /// How many plans came from the cache.
    pub(super) fn cached(&self) -> u64 {
        self.world.resource::<PlanCounters>().cached
    }

    /// The text of every pass, and of the error.
    fn text(&self) -> String {
        let mut text = self.world.resource::<PassTexts>().render(Pass::Publish);
        if let PlanStatus::Failed { pass, error } = self.world.resource::<PlanStatus>() {
            text += &format!("\n# {} failed\n{}: {error}\n", pass.name(), error.kind());
        }
        text
    }
}

/// Reads a text; that of a seed has no faults.
pub(super) fn parse(source: &str) -> Result<GraphText, String> {
    GraphText::parse("case.graph", source).map_err(|error| error.to_string())
}

/// The kind of an error that a graph may have.
pub(super) fn typed(error: &PlanError) -> Result<&'static str, String> {
    match error {
        PlanError::Misplaced { .. } | PlanError::Unplaced { .. } | PlanError::Run { .. } => {
            Err(format!("no system stands between the passes, and nothing ran: {error}"))
        }
        error if error.to_string().len() < 20 => Err(format!("an error without words: {error}")),
        error => Ok(error.kind()),
    }
}

/// A plan's proof, and what else every plan has.
pub(super) fn proved(plan: &Plan) -> Result<(), String> {
    verify(plan).map_err(|violations| format!("the plan is wrong: {violations:?}"))?;
    if plan.planned_bytes() < plan.lower_bound_bytes {
        return Err(format!("{} bytes planned, but {} are live", plan.planned_bytes(), plan.lower_bound_bytes));
    }
    Ok(())
}

/// Plans a pair in two worlds, and in one of them again and from the cache.
pub(super) fn check(source: &str, tools: &mut Tools, summary: &mut Summary) -> Result<(), String> {
    let text = parse(source)?;
    if parse(&text.to_string())? != text {
        return Err(format!("reading what was printed gives another graph:\n{text}"));
    }
    let Tools { planner, second, .. } = tools;
    if planner.spawn(&text, text.backends()).is_err() {
        *summary.refused.entry("memory").or_default() += 1;
        return Ok(());
    }
    let outcome = planner.plan();
    let first = planner.text();
    let with_text = |message: String| format!("{message}\n{first}");
    match &outcome {
        Ok(plan) => {
            proved(plan).map_err(with_text)?;
            if let Some(node) = (0..plan.node_count()).find(|&node| plan.why(node).is_empty()) {
                return Err(with_text(format!("node {node} does not say why")));
            }
            summary.planned += 1;
        }
        Err(error) => *summary.refused.entry(typed(error).map_err(with_text)?).or_default() += 1,
    }
    let same = |text: String, how: &str| {
        if text == first { Ok(()) } else { Err(format!("{how} gives another text\n{first}\n--- and then\n{text}")) }
    };
    second.spawn(&text, text.backends()).map_err(|error| format!("memory fits only once: {error}"))?;
    // An error is the status's; its text is compared.
    drop(second.plan());
    same(second.text(), "another world")?;
    planner.world.insert_resource(PlanSalt(1));
    drop(planner.plan());
    same(planner.text(), "planning again in one world")?;
    planner.world.insert_resource(PlanSalt(0));
    let again = planner.plan();
    match (&outcome, again) {
        (Ok(plan), Ok(again)) if Arc::ptr_eq(plan, &again) && planner.cached() == 1 => Ok(()),
        (Err(error), Err(again)) if *error == again => Ok(()),
        (_, again) => Err(with_text(format!("what was planned before is not found again: {again:?}"))),
    }
}
