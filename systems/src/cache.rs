//! Plans kept by everything that is baked into them.

use std::{collections::HashMap, sync::Arc};

use bevy_ecs::prelude::*;

use crate::{
    columns::{Backends, PlanSalt},
    index::ColumnsView,
    plan::Plan,
};

/// Most plans that are kept; the one not used for longest goes first.
const MAX_PLANS: usize = 64;

/// What identifies a plan: compared in full, so two graphs never share one by accident.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct PlanKey(Vec<u64>);

struct Kept {
    plan: Arc<Plan>,
    used: u64,
}

/// The plans made so far.
#[derive(Resource, Default)]
pub struct PlanCache {
    plans: HashMap<PlanKey, Kept>,
    clock: u64,
    /// The key of the graph being planned, for the plan that `publish` makes.
    pending: PlanKey,
}

impl PlanCache {
    /// The plan of this key; otherwise remembers the key for the plan that is about to be made.
    pub(crate) fn find(&mut self, key: PlanKey) -> Option<Arc<Plan>> {
        self.clock += 1;
        if let Some(kept) = self.plans.get_mut(&key) {
            kept.used = self.clock;
            return Some(Arc::clone(&kept.plan));
        }
        self.pending = key;
        None
    }

    /// Keeps the plan that was made for the pending key.
    pub(crate) fn insert(&mut self, plan: &Arc<Plan>) {
        if self.plans.len() >= MAX_PLANS
            && let Some(oldest) = self.plans.iter().min_by_key(|(_, kept)| kept.used).map(|(key, _)| key.clone())
        {
            self.plans.remove(&oldest);
        }
        let key = std::mem::take(&mut self.pending);
        self.plans.insert(key, Kept { plan: Arc::clone(plan), used: self.clock });
    }

    /// How many plans are kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.plans.len()
    }

    /// Whether no plan is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.plans.is_empty()
    }

    /// Forgets every plan.
    pub fn clear(&mut self) {
        self.plans.clear();
    }
}

/// Everything baked into a plan, as numbers. Names are part of it, since errors and explanations speak of them.
pub(crate) fn plan_key(columns: &ColumnsView<'_>, backends: &Backends, salt: PlanSalt, copies: u32) -> PlanKey {
    let mut key = vec![salt.0, u64::from(copies), backends.0.len() as u64, columns.names.0.len() as u64];
    // A plan holds its backends, so an address is not reused while the plan is kept.
    key.extend(backends.0.iter().map(|b| Arc::as_ptr(b).cast::<u8>().addr() as u64));
    for node in 0..columns.names.0.len() {
        push_text(&mut key, &columns.names.0[node]);
        let desc = columns.descs.0[node];
        key.push(desc.dtype as u64);
        key.extend(desc.shape.0);
        key.extend(desc.strides.0);
        columns.ops.0[node].key(&mut key);
        let sources = columns.sources.of(node);
        key.push(sources.len() as u64);
        key.extend(sources.iter().map(|&s| u64::from(s)));
        key.push(u64::from(columns.roots.root[node]));
        key.push(columns.roots.offset_bytes[node]);
        let flags = columns.flags.0[node];
        key.push(u64::from(flags.input) | u64::from(flags.output) << 1);
        key.push(columns.pins.0[node].map_or(u64::MAX, |b| u64::from(b.0)));
        match columns.memory.place[node] {
            Some(place) => key.extend([u64::from(place.buffer), place.offset_bytes]),
            None => key.push(u64::MAX),
        }
    }
    key.push(columns.memory.buffers.len() as u64);
    for buffer in &columns.memory.buffers {
        push_text(&mut key, &buffer.name);
        push_text(&mut key, &buffer.kind.0);
        push_text(&mut key, &buffer.buffer_type);
        key.push(u64::from(buffer.opaque) | u64::from(buffer.memory.is_read_only()) << 1);
        key.extend([buffer.usage as u64, buffer.memory.size_bytes()]);
    }
    PlanKey(key)
}

fn push_text(key: &mut Vec<u64>, text: &str) {
    key.push(text.len() as u64);
    for chunk in text.as_bytes().chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        key.push(u64::from_le_bytes(word));
    }
}
