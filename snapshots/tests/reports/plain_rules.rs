//! The rules of placement in their plainest form, for graphs of weights, inputs and computing nodes: what the planner's answer
//! is measured against. Written from the rules, over the text, without the planner's columns and masks.

use std::collections::{BTreeMap, BTreeSet};

use entensor::graph_text::{BackendText, GraphText, Origin};
use entensor_components::{OpDesc, OpKind, TensorDesc};

/// What a placement costs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plain {
    pub(crate) backends: Vec<usize>,
    pub(crate) splits: usize,
    pub(crate) copied_bytes: u64,
}

struct Rules<'a> {
    text: &'a GraphText,
    placed: Vec<Option<usize>>,
}

/// Where the plain rules put the tensors of a text without views, writers, pins and opaque memory.
pub(crate) fn plain(text: &GraphText) -> Option<Plain> {
    let mut rules = Rules { text, placed: vec![None; text.tensors().len()] };
    rules.assign();
    rules.expand();
    rules.upgrade()?;
    Some(rules.cost())
}

impl Rules<'_> {
    fn machine(&self) -> &[BackendText] {
        self.text.machine()
    }

    fn host(&self) -> usize {
        self.machine().len() - 1
    }

    fn operands(&self, tensor: usize) -> &[usize] {
        match &self.text.tensors()[tensor].origin {
            Origin::Node { operands, .. } => operands,
            _ => &[],
        }
    }

    fn kind(&self, tensor: usize) -> OpKind {
        match &self.text.tensors()[tensor].origin {
            Origin::Node { op, .. } => op.kind(),
            _ => OpKind::None,
        }
    }

    fn computing(&self) -> Vec<usize> {
        (0..self.placed.len()).filter(|&t| self.kind(t) != OpKind::None).collect()
    }

    fn supports(&self, backend: usize, tensor: usize) -> bool {
        !self.machine()[backend].refused_ops.contains(&self.kind(tensor))
    }

    /// The backend whose memory a weight lies in.
    fn home(&self, tensor: usize) -> Option<usize> {
        match self.text.tensors()[tensor].origin {
            Origin::Weight { backend } => Some(backend),
            _ => None,
        }
    }

    fn reads(&self, backend: usize, of: usize) -> bool {
        self.machine()[backend].capabilities.reads.contains(&self.machine()[of].capabilities.memory)
    }

    fn batch(&self, tensor: usize) -> u64 {
        let Origin::Node { op, operands } = &self.text.tensors()[tensor].origin else { return 0 };
        let operands: Vec<TensorDesc> = operands.iter().map(|&o| self.text.tensors()[o].desc).collect();
        OpDesc { op, output: self.text.tensors()[tensor].desc, operands: &operands }.batch()
    }

    fn assign(&mut self) {
        for tensor in 0..self.placed.len() {
            self.placed[tensor] = match self.text.tensors()[tensor].origin {
                Origin::Input => Some(self.host()),
                Origin::Weight { backend } => (0..=self.host()).find(|&b| self.reads(b, backend)),
                _ => self.by_weights(tensor),
            };
        }
    }

    fn by_weights(&self, tensor: usize) -> Option<usize> {
        let anchor = *self.operands(tensor).get(self.kind(tensor).row().anchor?)?;
        let home = self.home(anchor)?;
        let backend = (0..=self.host()).find(|&b| self.reads(b, home) && self.supports(b, tensor))?;
        if backend == self.host() && self.machine()[home].capabilities.memory.is_host() {
            let takes = |&b: &usize| {
                let threshold = self.machine()[b].capabilities.offload_batch;
                self.supports(b, tensor) && threshold.is_some_and(|threshold| self.batch(tensor) >= threshold)
            };
            return (0..backend).find(takes).or(Some(backend));
        }
        Some(backend)
    }

    fn expand(&mut self) {
        for (backwards, with_host) in [(false, false), (true, false), (false, true), (true, true)] {
            let mut order = self.computing();
            if backwards {
                order.reverse();
            }
            let mut carried = None;
            for node in order {
                match (self.placed[node], carried) {
                    (Some(at), _) => carried = (with_host || at != self.host()).then_some(at),
                    (None, Some(backend)) if self.supports(backend, node) => self.placed[node] = carried,
                    _ => {}
                }
            }
        }
    }

    fn readable(&self, backend: usize, operand: usize) -> bool {
        let at = self.home(operand).or(self.placed[operand]);
        at.is_none_or(|at| self.reads(backend, at))
    }

    fn upgrade(&mut self) -> Option<()> {
        for node in self.computing() {
            let backend = match self.placed[node] {
                Some(now) => {
                    let now_at = &self.machine()[now].capabilities;
                    let better = (0..now).find(|&b| {
                        let there = &self.machine()[b].capabilities;
                        there.buffer_type == now_at.buffer_type
                            && there.memory == now_at.memory
                            && self.supports(b, node)
                            && self.operands(node).iter().all(|&o| self.readable(b, o))
                    });
                    better.unwrap_or(now)
                }
                None => {
                    let able: Vec<usize> = (0..=self.host()).filter(|&b| self.supports(b, node)).collect();
                    let most = |b: &usize| self.operands(node).iter().filter(|&&o| self.readable(*b, o)).count();
                    let best = able.iter().map(most).max()?;
                    able.into_iter().find(|b| most(b) == best)?
                }
            };
            self.placed[node] = Some(backend);
        }
        Some(())
    }

    fn cost(&self) -> Plain {
        let mut copied: BTreeSet<(usize, usize)> = BTreeSet::new();
        let mut plain = Plain { backends: Vec::new(), splits: 0, copied_bytes: 0 };
        // Backend and inputs of the run so far.
        let mut run: Option<(usize, u64)> = None;
        for node in self.computing() {
            let backend = self.placed[node].expect("every node is placed");
            let mut missing: BTreeMap<usize, bool> = BTreeMap::new();
            for &operand in self.operands(node) {
                if !self.readable(backend, operand) && !copied.contains(&(operand, backend)) {
                    missing.insert(operand, self.home(operand).is_some());
                }
            }
            let limit = self.machine()[backend].capabilities.max_inputs.unwrap_or(u64::MAX);
            let cut = run.is_none_or(|(at, inputs)| {
                at != backend
                    || (inputs > 0 && missing.values().any(|&weight| weight))
                    || (!missing.is_empty() && inputs + missing.len() as u64 > limit)
            });
            if cut {
                plain.splits += 1;
                run = Some((backend, 0));
            }
            run = run.map(|(at, inputs)| (at, inputs + missing.len() as u64));
            for &operand in missing.keys() {
                copied.insert((operand, backend));
                plain.copied_bytes += self.text.tensors()[operand].desc.size_bytes();
            }
        }
        plain.backends = self.placed.iter().map(|at| at.expect("every tensor is placed")).collect();
        plain
    }
}
