//! What the tests of the planner share: fixtures, and a world that plans one of them.
#![allow(dead_code, reason = "each test file uses a part")]

use std::{fs, path::PathBuf, sync::Arc};

use bevy_ecs::prelude::*;
use entensor::graph_text::GraphText;
use entensor_systems::{
    GraphPlan, Plan, PlanError, PlanStatus, Planning, Recording, Step, plan_schedule, text::PassTexts,
};

/// A folder of this crate.
pub(crate) fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Name and text of every fixture, by name.
pub(crate) fn fixtures() -> Vec<(String, String)> {
    let mut fixtures: Vec<(String, String)> = fs::read_dir(folder("fixtures"))
        .expect("the fixtures are there")
        .map(|entry| {
            let path = entry.expect("readable").path();
            assert_eq!(path.extension().and_then(|e| e.to_str()), Some("graph"), "{path:?} is no fixture");
            let name = path.file_stem().and_then(|n| n.to_str()).expect("UTF-8 names").to_owned();
            (name, fs::read_to_string(&path).expect("readable"))
        })
        .collect();
    fixtures.sort();
    fixtures
}

/// A parsed fixture.
pub(crate) fn fixture(name: &str) -> GraphText {
    let text = fs::read_to_string(folder("fixtures").join(format!("{name}.graph"))).expect("the fixture is there");
    parse(name, &text)
}

/// A text that has to be right.
pub(crate) fn parse(name: &str, text: &str) -> GraphText {
    GraphText::parse(&format!("{name}.graph"), text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// The index of the allocation of this name.
pub(crate) fn allocation(plan: &Plan, name: &str) -> usize {
    let found = plan.allocations.iter().position(|allocation| &*plan.allocation_name(allocation) == name);
    found.unwrap_or_else(|| panic!("no allocation {name}"))
}

/// Makes the copies of every run go from where their sources are allocated to where they are.
pub(crate) fn place_copies(plan: &mut Plan) {
    let mut programs = std::mem::take(&mut plan.programs);
    for (slot, program) in (0..).zip(&mut programs) {
        for step in &mut program.steps {
            if let Step::Copy { copy, from, to, .. } = step {
                let source = plan.copies[*copy as usize].source as usize;
                *from = plan.locate(source, slot).expect("it is allocated");
                *to = plan.locate_copy(*copy, slot).expect("it is allocated");
            }
        }
    }
    plan.programs = programs;
}

/// A world with one planned graph, or the error of the pass that failed.
pub(crate) struct Planned {
    pub(crate) world: World,
    pub(crate) graph: Entity,
    pub(crate) schedule: Schedule,
}

impl Planned {
    /// Spawns a graph and plans it.
    pub(crate) fn new(text: &GraphText) -> Self {
        Self::with_schedule(text, plan_schedule(Recording::On))
    }

    /// The same with a schedule of the test's own.
    pub(crate) fn with_schedule(text: &GraphText, schedule: Schedule) -> Self {
        let mut world = World::new();
        let graph = text.spawn(&mut world).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let mut planned = Self { world, graph, schedule };
        planned.plan();
        planned
    }

    /// Plans (again).
    pub(crate) fn plan(&mut self) {
        self.world.insert_resource(Planning(self.graph));
        self.world.insert_resource(PlanStatus::Planning);
        self.schedule.run(&mut self.world);
    }

    /// The plan, or why there is none.
    pub(crate) fn result(&self) -> Result<Arc<Plan>, PlanError> {
        match self.world.resource::<PlanStatus>() {
            PlanStatus::Ready => Ok(Arc::clone(&self.world.get::<GraphPlan>(self.graph).expect("it is ready").plan)),
            PlanStatus::Failed { error, .. } => Err(error.clone()),
            status => panic!("planning ended as {status:?}"),
        }
    }

    /// The plan of a graph that can be planned.
    pub(crate) fn expect(&self) -> Arc<Plan> {
        self.result().unwrap_or_else(|error| panic!("{}: {error}", error.kind()))
    }

    /// The text of every pass, and the error if one failed.
    pub(crate) fn text(&self) -> String {
        let mut text = self.world.resource::<PassTexts>().render(entensor_systems::Pass::Publish);
        if let PlanStatus::Failed { pass, error } = self.world.resource::<PlanStatus>() {
            text += &format!("\n# {} failed\n{}: {error}\n", pass.name(), error.kind());
        }
        text
    }
}
