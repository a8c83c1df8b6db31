//! A proved plan or a typed error, and the same one every time.

use std::sync::Arc;

use bevy_ecs::prelude::*;
use entensor::graph_text::GraphText;
use entensor_systems::{
    GraphPlan, Pass, Plan, PlanCounters, PlanError, PlanSalt, PlanStatus, Planning, Recording, plan_schedule,
    text::PassTexts, verify,
};

use super::Summary;

/// A graph in a world of its own.
pub(super) struct Planner {
    pub(super) world: World,
    pub(super) graph: Entity,
    schedule: Schedule,
}

impl Planner {
    pub(super) fn new(world: World, graph: Entity, recording: Recording) -> Self {
        Self { world, graph, schedule: plan_schedule(recording) }
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

/// Plans a pair in two fresh worlds, and in one of them again and from the cache.
pub(super) fn check(source: &str, summary: &mut Summary) -> Result<(), String> {
    let text = parse(source)?;
    if parse(&text.to_string())? != text {
        return Err(format!("reading what was printed gives another graph:\n{text}"));
    }
    let fresh = || {
        let mut world = World::new();
        let graph = text.spawn(&mut world).ok()?;
        Some(Planner::new(world, graph, Recording::On))
    };
    let Some(mut planner) = fresh() else {
        *summary.refused.entry("memory").or_default() += 1;
        return if fresh().is_none() { Ok(()) } else { Err("memory fits the second time".into()) };
    };
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
    let mut second = fresh().ok_or("memory fits only once")?;
    let same = |text: String, how: &str| {
        if text == first { Ok(()) } else { Err(format!("{how} gives another text\n{first}\n--- and then\n{text}")) }
    };
    // An error is the status's; its text is compared.
    drop(second.plan());
    same(second.text(), "a second fresh world")?;
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
