//! **assign**: what pins, existing memory, inputs and weights decide, in that order.
//!
//! Reads: node columns, masks, backends. Writes: `BackendId` and `Cause` of the nodes it decides; clears all others.
//! Invariants: a decided computing node has its support bit set; a pin on a view is a pin on its root; a root without memory
//! and its writers are decided together or not at all.
//! Cost: linear. Source: DESIGN "assign"; ggml's `ggml_backend_sched_backend_id_from_cur`.

use std::{borrow::Cow, sync::Arc};

use bevy_ecs::{prelude::*, system::SystemParam};
use entensor_components::{Cause, Usage};

use crate::{
    columns::{
        Backends, ExistingBuffer, ExistingPlace, MemoryReach, NOWHERE, NodeFlags, NodeMemory, Nodes, OffloadMasks,
        PaddedBytes, Placements, Refusals, SupportMasks, WriterFamilies, index_u32,
    },
    error::PlanError,
    expand::place,
    status::PassResult,
};

/// What the rules look at.
#[derive(SystemParam)]
pub struct AssignInputs<'w> {
    backends: Res<'w, Backends>,
    nodes: Res<'w, Nodes>,
    flags: Res<'w, NodeFlags>,
    memory: Res<'w, NodeMemory>,
    reach: Res<'w, MemoryReach>,
    support: Res<'w, SupportMasks>,
    offload: Res<'w, OffloadMasks>,
    padded: Res<'w, PaddedBytes>,
    refusals: Res<'w, Refusals>,
    families: Res<'w, WriterFamilies>,
}

/// The pass.
pub fn assign(inputs: AssignInputs<'_>, mut placements: Placements<'_, '_>) -> PassResult {
    placements.clear();
    let pins = inputs.root_pins()?;
    let mut decided = 0;
    for node in 0..inputs.nodes.len() {
        // Rules 1 to 3 speak of roots, so each member of a family comes to the same answer by itself.
        let answer = match pins.as_ref().map(|pins| pins[inputs.nodes.roots.of(node)]) {
            Some(backend) if backend != NOWHERE => Some((inputs.checked_pin(node, backend as usize)?, Cause::Pin)),
            _ => inputs.by_memory(node)?.or_else(|| inputs.by_input(node)),
        };
        if let Some((backend, cause)) = answer {
            decided += usize::from(placements.set(node, backend, cause));
        } else if let Some((backend, cause)) = inputs.by_anchor(node) {
            decided += place(node, backend, cause, &inputs.nodes, &inputs.families, &mut placements);
        }
    }
    placements.push();
    Ok(decided)
}

impl AssignInputs<'_> {
    fn computes(&self, node: usize) -> bool {
        self.nodes.traits[node].computes()
    }

    fn name(&self, node: usize) -> Arc<str> {
        Arc::clone(&self.nodes.names[node])
    }

    fn backend_name(&self, backend: usize) -> Arc<str> {
        self.backends.0[backend].name().into()
    }

    /// The existing buffer of a root, with its place.
    fn existing(&self, root: usize) -> Option<(&ExistingBuffer, ExistingPlace)> {
        let place = self.memory.place(root)?;
        Some((&self.memory.buffers[place.buffer as usize], place))
    }

    /// One wish per root: pins on views and writers are pins on the memory they are about. `None` where nobody wishes anything.
    fn root_pins(&self) -> Result<Option<Vec<u32>>, PlanError> {
        if self.nodes.pins.iter().all(Option::is_none) {
            return Ok(None);
        }
        let count = self.backends.0.len();
        let mut pins = vec![NOWHERE; self.nodes.len()];
        for node in 0..self.nodes.len() {
            let Some(pin) = self.nodes.pins[node] else { continue };
            let backend = pin.0 as usize;
            if backend >= count {
                return Err(PlanError::PinUnknown { tensor: self.name(node), index: pin.0, count });
            }
            let root = self.nodes.roots.of(node);
            match pins[root] {
                other if other != NOWHERE && other as usize != backend => {
                    let conflict = format!(
                        "its memory, `{}`, is pinned to `{}`",
                        self.nodes.names[root],
                        self.backends.0[other as usize].name()
                    );
                    let backend = self.backend_name(backend);
                    return Err(PlanError::PinConflict { tensor: self.name(node), backend, conflict });
                }
                _ => pins[root] = index_u32(backend),
            }
            if let Some((buffer, place)) = self.existing(root)
                && !self.reach.existing(backend, place.buffer)
            {
                let conflict = format!("it lies in buffer `{}` on {} memory", buffer.name, buffer.kind);
                return Err(PlanError::PinConflict {
                    tensor: self.name(node),
                    backend: self.backend_name(backend),
                    conflict,
                });
            }
        }
        Ok(Some(pins))
    }

    /// Rule 1: the user's wish, checked.
    fn checked_pin(&self, node: usize, backend: usize) -> Result<usize, PlanError> {
        if self.computes(node) && !self.support.0.get(node, backend) {
            return Err(PlanError::PinUnsupported {
                node: self.name(node),
                op: self.nodes.ops[node].kind().name(),
                backend: self.backend_name(backend),
                reason: self.refusals.reason(node, backend),
            });
        }
        Ok(backend)
    }

    /// Rule 2: the tensor, or the root it views or writes, has memory.
    fn by_memory(&self, node: usize) -> Result<Option<(usize, Cause)>, PlanError> {
        let root = self.nodes.roots.of(node);
        let Some((buffer, place)) = self.existing(root) else { return Ok(None) };
        let mut users = (0..self.backends.0.len()).filter(|&b| self.reach.existing(b, place.buffer)).peekable();
        if users.peek().is_none() {
            return Err(PlanError::UnknownDevice {
                tensor: self.name(root),
                buffer: Arc::clone(&buffer.name),
                device: Arc::clone(&buffer.kind.0),
            });
        }
        match users.find(|&b| self.support.0.get(node, b)) {
            Some(backend) => Ok(Some((backend, Cause::Memory))),
            None => Err(self.immovable(node, root, buffer, place)),
        }
    }

    fn immovable(&self, node: usize, root: usize, buffer: &ExistingBuffer, place: ExistingPlace) -> PlanError {
        let mut refusals = self.refusals.all(node, &self.backends);
        for (b, refusal) in refusals.iter_mut().enumerate() {
            if !self.reach.existing(b, place.buffer) {
                refusal.reason = Cow::Owned(format!("it cannot use {} memory", buffer.kind));
            }
        }
        PlanError::Immovable {
            node: self.name(node),
            op: self.nodes.ops[node].kind().name(),
            tensor: self.name(root),
            buffer: Arc::clone(&buffer.name),
            refusals,
        }
    }

    /// Rule 3: inputs are written by the user, so they are on the host.
    fn by_input(&self, node: usize) -> Option<(usize, Cause)> {
        let root = self.nodes.roots.of(node);
        // A writer into an input runs where the input is; other nodes are no inputs themselves.
        let concerned = root == node || self.nodes.traits[node].writes();
        let last = self.backends.0.len() - 1;
        (concerned && self.flags.0[root].input && self.support.0.get(node, last)).then_some((last, Cause::Input))
    }

    /// Rule 4: the anchor operand lies in existing memory.
    fn by_anchor(&self, node: usize) -> Option<(usize, Cause)> {
        let anchor = self.nodes.sources.of(node)[self.nodes.traits[node].anchor()?] as usize;
        let root = self.nodes.roots.of(anchor);
        let (buffer, place) = self.existing(root)?;
        let last = self.backends.0.len() - 1;
        let backend = (0..=last).find(|&b| self.reach.existing(b, place.buffer) && self.support.0.get(node, b))?;
        if backend == last && buffer.kind.is_host() && !buffer.opaque {
            let upload_fits = |b: usize| {
                self.padded.of(self.nodes.layouts.of(anchor), b) <= self.backends.0[b].capabilities().max_buffer_bytes
                    && self.nodes.descs[anchor].span_bytes().is_some()
            };
            let taker =
                (0..last).find(|&b| self.support.0.get(node, b) && self.offload.0.get(node, b) && upload_fits(b));
            if let Some(taker) = taker {
                return Some((taker, Cause::Offload));
            }
        }
        let cause = if buffer.usage == Usage::Weights { Cause::Weights } else { Cause::Cache };
        Some((backend, cause))
    }
}
