//! Plans kept by everything that is baked into them, under a byte budget.

use std::{collections::HashMap, hash::Hasher, sync::Arc};

use bevy_ecs::prelude::*;
use entensor_components::TensorFlags;
use rustc_hash::{FxBuildHasher, FxHasher};

use crate::{
    columns::{Backends, NodeMemory, NodeTable},
    plan::{Plan, PlanExisting},
};

/// What plans may take together unless the user says otherwise: some hundred plans of a language model.
pub const DEFAULT_PLAN_BYTES: usize = 64 << 20;

/// What identifies a plan: compared in full, so two graphs never share one by accident.
pub(crate) struct PlanKey<'a> {
    pub(crate) nodes: &'a Arc<NodeTable>,
    pub(crate) flags: &'a [TensorFlags],
    pub(crate) memory: &'a NodeMemory,
    pub(crate) backends: &'a Backends,
    pub(crate) salt: u64,
    pub(crate) copies: u32,
}

impl PlanKey<'_> {
    fn hash(&self) -> u64 {
        let mut hasher = FxHasher::default();
        hasher.write_u64(self.nodes.hash());
        hasher.write_u64(self.salt);
        hasher.write_u32(self.copies);
        hasher.write_usize(self.backends.0.len());
        hasher.write_usize(self.memory.buffers.len());
        hasher.finish()
    }

    /// Whether a plan was made for all this. A plan holds its backends, so an address is not reused while it is kept.
    fn is_of(&self, plan: &Plan) -> bool {
        plan.salt == self.salt
            && plan.asked_copies == self.copies
            && plan.backends.len() == self.backends.0.len()
            && plan.backends.iter().zip(&self.backends.0).all(|(a, b)| Arc::ptr_eq(&a.handle, b))
            && plan.flags == self.flags
            && (Arc::ptr_eq(&plan.table, self.nodes) || plan.table == *self.nodes)
            && plan.memory.same_places(self.memory)
            && plan.existing.len() == self.memory.buffers.len()
            && plan.existing.iter().zip(&self.memory.buffers).all(|(a, b)| *a == PlanExisting::of(b))
    }
}

struct Kept {
    plan: Arc<Plan>,
    size_bytes: usize,
    used: u64,
}

/// The plans made so far. When they take more than the budget, the one not used for longest goes first; the newest always stays.
#[derive(Resource)]
pub struct PlanCache {
    plans: HashMap<u64, Vec<Kept>, FxBuildHasher>,
    clock: u64,
    budget_bytes: usize,
    size_bytes: usize,
    evicted: u64,
    /// The hash of the graph being planned, for the plan that `publish` makes.
    pending: u64,
}

impl Default for PlanCache {
    fn default() -> Self {
        Self::with_budget(DEFAULT_PLAN_BYTES)
    }
}

impl PlanCache {
    /// An empty cache whose plans take at most so many bytes together.
    #[must_use]
    pub fn with_budget(budget_bytes: usize) -> Self {
        Self { plans: HashMap::default(), clock: 0, budget_bytes, size_bytes: 0, evicted: 0, pending: 0 }
    }

    /// The plan of this key; otherwise remembers the key for the plan that is about to be made.
    pub(crate) fn find(&mut self, key: &PlanKey<'_>) -> Option<Arc<Plan>> {
        self.clock += 1;
        self.pending = key.hash();
        let kept = self.plans.get_mut(&self.pending)?.iter_mut().find(|kept| key.is_of(&kept.plan))?;
        kept.used = self.clock;
        Some(Arc::clone(&kept.plan))
    }

    /// Keeps the plan that was made for the pending key.
    pub(crate) fn insert(&mut self, plan: &Arc<Plan>) {
        let size_bytes = plan.size_bytes();
        self.size_bytes += size_bytes;
        let kept = Kept { plan: Arc::clone(plan), size_bytes, used: self.clock };
        self.plans.entry(self.pending).or_default().push(kept);
        self.shrink();
    }

    /// Forgets a plan that turned out to be of no use.
    pub fn remove(&mut self, plan: &Arc<Plan>) {
        for kept in self.plans.values_mut() {
            if let Some(found) = kept.iter().position(|kept| Arc::ptr_eq(&kept.plan, plan)) {
                self.size_bytes -= kept.swap_remove(found).size_bytes;
            }
        }
    }

    fn shrink(&mut self) {
        while self.size_bytes > self.budget_bytes && self.len() > 1 {
            let all = self.plans.iter().flat_map(|(&hash, kept)| kept.iter().map(move |kept| (kept.used, hash)));
            let Some((used, hash)) = all.min() else { return };
            let Some(kept) = self.plans.get_mut(&hash) else { return };
            let Some(oldest) = kept.iter().position(|kept| kept.used == used) else { return };
            self.size_bytes -= kept.swap_remove(oldest).size_bytes;
            if kept.is_empty() {
                self.plans.remove(&hash);
            }
            self.evicted += 1;
        }
    }

    /// How many plans are kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.plans.values().map(Vec::len).sum()
    }

    /// Whether no plan is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of the plans that are kept. What their backends keep for prepared splits is in the backends' reports.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// Bytes that the plans may take together.
    #[must_use]
    pub fn budget_bytes(&self) -> usize {
        self.budget_bytes
    }

    /// How many plans had to go for others.
    #[must_use]
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Says how many bytes the plans may take together. Those above it go now.
    pub fn set_budget(&mut self, budget_bytes: usize) {
        self.budget_bytes = budget_bytes;
        self.shrink();
    }

    /// Forgets every plan.
    pub fn clear(&mut self) {
        self.plans.clear();
        self.size_bytes = 0;
    }
}
