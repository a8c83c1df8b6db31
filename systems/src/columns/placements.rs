//! The placement answers: a column while the passes work on it, and components for everybody else.
//!
//! The components are the contract with users' systems between the passes. Writing and reading one costs ten times what a
//! column costs, so a pass does it only where somebody may look: see [`PlacementSync`].

use std::sync::Arc;

use bevy_ecs::{change_detection::ContiguousMut, entity::Entities, prelude::*, system::SystemParam};
use entensor_components::{BackendId, BackendIndex, Cause};
use smallvec::SmallVec;

use super::{Backends, MemoryReach, NodeMemory, NodeOrder, Nodes, index_u32};
use crate::error::PlanError;

/// Where nobody has put a node yet.
pub(crate) const NOWHERE: u32 = u32::MAX;

/// Tensors that are in more tables are looked up one by one.
const MOST_TABLES: usize = 32;

/// Where each node is so far, and why.
#[derive(Resource, Clone, Debug, Default)]
pub struct NodePlacements {
    /// Backend of each node; `u32::MAX` while undecided.
    pub(crate) backends: Vec<u32>,
    /// Why.
    pub(crate) causes: Vec<Cause>,
}

impl NodePlacements {
    /// Where a node is, if decided.
    #[must_use]
    pub fn get(&self, node: usize) -> Option<usize> {
        self.backends.get(node).filter(|&&b| b != NOWHERE).map(|&b| b as usize)
    }

    /// Why a node is where it is.
    #[must_use]
    pub fn cause(&self, node: usize) -> Cause {
        self.causes.get(node).copied().unwrap_or_default()
    }

    /// What the component of a node says.
    fn answer(&self, node: usize) -> BackendId {
        let backend = self.backends[node];
        BackendId((backend != NOWHERE).then_some(BackendIndex(backend)))
    }

    /// Makes all of so many nodes undecided.
    pub(crate) fn reset(&mut self, nodes: usize) {
        self.backends.clear();
        self.backends.resize(nodes, NOWHERE);
        self.causes.clear();
        self.causes.resize(nodes, Cause::Undecided);
    }
}

/// Whether the passes write `BackendId` and `Cause` at the end of each and read them at the start of the next. Without, they
/// are written once, by the last pass that decides. On unless whoever runs the schedule knows that nobody looks in between:
/// the engine does, when no system but the passes is in it.
#[derive(Resource, Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacementSync(pub bool);

impl Default for PlacementSync {
    fn default() -> Self {
        Self(true)
    }
}

/// The placement answers of the graph being planned, by node index.
///
/// A pass starts with [`Self::pull`] (`assign` with [`Self::clear`]) and ends with [`Self::push`]: what it does not push, the next
/// one that pulls does not see.
#[derive(SystemParam)]
pub struct Placements<'w, 's> {
    order: Res<'w, NodeOrder>,
    backends: Res<'w, Backends>,
    nodes: Res<'w, Nodes>,
    memory: Res<'w, NodeMemory>,
    reach: Res<'w, MemoryReach>,
    sync: Res<'w, PlacementSync>,
    column: ResMut<'w, NodePlacements>,
    locations: &'w Entities,
    answers: Query<'w, 's, (Entity, &'static mut BackendId, &'static mut Cause)>,
}

impl Placements<'_, '_> {
    /// Takes in what systems between the passes have changed. A backend that does not exist decides nothing. Who moves a node
    /// without giving a cause of their own is the cause.
    pub fn pull(&mut self) {
        if !self.sync.0 {
            return;
        }
        // Whoever took the place of `assign` may have written components only.
        if self.column.backends.len() != self.order.entities.len() {
            self.clear();
        }
        for (node, &entity) in self.order.entities.iter().enumerate() {
            let Ok((_, id, cause)) = self.answers.get(entity) else { continue };
            let backend = id.0.map(|b| b.0).filter(|&b| (b as usize) < self.backends.0.len()).unwrap_or(NOWHERE);
            let moved = backend != self.column.backends[node];
            let explained = *cause != self.column.causes[node];
            self.column.backends[node] = backend;
            self.column.causes[node] = if moved && !explained { Cause::User } else { *cause };
        }
    }

    /// Where a node is, if decided.
    #[must_use]
    pub fn get(&self, node: usize) -> Option<usize> {
        self.column.get(node)
    }

    /// Why a node is where it is.
    #[must_use]
    pub fn cause(&self, node: usize) -> Cause {
        self.column.cause(node)
    }

    /// Decides a node. Returns whether that changed anything.
    pub fn set(&mut self, node: usize, backend: usize, cause: Cause) -> bool {
        let backend = index_u32(backend);
        self.column.causes[node] = cause;
        std::mem::replace(&mut self.column.backends[node], backend) != backend
    }

    /// Makes every node undecided.
    pub fn clear(&mut self) {
        self.column.reset(self.order.entities.len());
    }

    /// Shows the answers to systems between the passes.
    pub fn push(&mut self) {
        if self.sync.0 {
            self.write();
        }
    }

    /// Ends the passes that decide: takes in the last changes, or shows the answers for the first time.
    pub fn settle(&mut self) {
        self.pull();
        if self.sync.0 {
            self.follow_roots();
        }
        self.write();
    }

    /// Views of memory that is planned are where it is, also if it was moved after `inherit`.
    fn follow_roots(&mut self) {
        for node in self.nodes.leaves..self.nodes.len() {
            let root = self.nodes.roots.of(node);
            let follows = root != node && !self.nodes.traits[node].computes() && self.memory.place(root).is_none();
            if follows && self.column.backends[node] != self.column.backends[root] {
                self.column.backends[node] = self.column.backends[root];
                self.column.causes[node] = Cause::InheritView;
            }
        }
    }

    /// Writes the answers into the components. What has not changed is not touched.
    ///
    /// A graph's tensors mostly lie one behind the other in one table, so rows are followed, and looked up only where they break.
    fn write(&mut self) {
        let Ok(tables) = self.answers.contiguous_iter_mut() else { return self.write_each() };
        let mut tables: SmallVec<[_; 8]> = tables.collect();
        if tables.len() > MOST_TABLES {
            drop(tables);
            return self.write_each();
        }
        let column = &*self.column;
        let (mut table, mut row) = (0, 0);
        for (node, &entity) in self.order.entities.iter().enumerate() {
            if tables.get(table).and_then(|(entities, ..)| entities.get(row)) != Some(&entity) {
                // Whoever has been despawned has no answer.
                let Ok(location) = self.locations.get_spawned(entity) else { continue };
                row = location.table_row.index();
                let Some(at) = tables.iter().position(|(entities, ..)| entities.get(row) == Some(&entity)) else {
                    continue;
                };
                table = at;
            }
            let (_, ids, causes) = &mut tables[table];
            set_row(ids, row, column.answer(node));
            set_row(causes, row, column.causes[node]);
            row += 1;
        }
    }

    /// The same where tensors are scattered.
    fn write_each(&mut self) {
        let column = &*self.column;
        let mut nodes = 0..self.order.entities.len();
        let mut answers = self.answers.iter_many_mut(self.order.entities.iter());
        while let (Some(answer), Some(node)) = (answers.fetch_next(), nodes.next()) {
            let Ok((_, mut id, mut cause)) = answer else { continue };
            id.set_if_neq(column.answer(node));
            cause.set_if_neq(column.causes[node]);
        }
    }

    /// Whether every node has a place where it may be, wherever systems between the passes have moved it. Whether the backend
    /// can run it, `split` asks.
    ///
    /// # Errors
    /// [`PlanError::Unplaced`] or [`PlanError::Misplaced`] naming the node.
    pub fn check_all(&self, nodes: &Nodes) -> Result<(), PlanError> {
        let name = |node: usize| Arc::clone(&nodes.names[node]);
        if let Some(node) = self.column.backends.iter().position(|&b| b == NOWHERE) {
            return Err(PlanError::Unplaced { node: name(node) });
        }
        if !self.sync.0 {
            return Ok(());
        }
        for (node, &backend) in self.column.backends.iter().enumerate() {
            if let Some(reason) = self.refusal(node, backend) {
                let backend = self.backends.0[backend as usize].name().into();
                return Err(PlanError::Misplaced { node: name(node), backend, reason: reason.into() });
            }
        }
        Ok(())
    }

    /// What the passes never do, and a system between them may have done.
    fn refusal(&self, node: usize, backend: u32) -> Option<String> {
        let root = self.nodes.roots.of(node);
        if let Some(pin) = self.nodes.pins[node].filter(|pin| pin.0 != backend) {
            let pinned = self.backends.0.get(pin.0 as usize).map_or("another", |b| b.name());
            return Some(format!("it is pinned to `{pinned}`"));
        }
        match self.memory.place(root) {
            Some(place) => {
                let buffer = &self.memory.buffers[place.buffer as usize];
                let can_use = self.reach.existing(backend as usize, place.buffer);
                (!can_use).then(|| format!("it lies in buffer `{}` on {} memory", buffer.name, buffer.kind))
            }
            None => {
                let apart = self.nodes.traits[node].writes() && self.column.backends[root] != backend;
                apart.then(|| format!("it writes `{}`, which is elsewhere; move both", self.nodes.names[root]))
            }
        }
    }
}

fn set_row<T: PartialEq>(column: &mut ContiguousMut<'_, T>, row: usize, value: T) {
    if column.bypass_change_detection()[row] != value {
        column.bypass_change_detection()[row] = value;
        let now = column.this_run_tick();
        column.changed_ticks_slice_mut()[row] = now;
    }
}
