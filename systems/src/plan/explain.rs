//! Why each node is where it is, in a sentence for people: what decided, by name, and what kept it from higher backends.
//!
//! A sentence is made from the finished plan alone. The neighbours that a run grew from are found by walking to them: over all
//! nodes that is linear in the plan for each backend.

use entensor_components::{BatchRule, Cause, OpDesc, TensorDesc, Usage};

use super::{Plan, PlanExisting, PlanNode};

impl Plan {
    /// One sentence on why a node is where it is.
    #[must_use]
    pub fn why(&self, node: usize) -> String {
        let n = self.node(node);
        let here = self.backend_name(n.backend as usize);
        let root = self.node(n.root as usize);
        let is_writer = n.op.row().writes.is_some();
        match n.cause {
            Cause::Undecided => "no pass decided".into(),
            Cause::Pin => why_pinned(node, &n, &root, here),
            Cause::User => format!("a system that the user added between the passes placed it on {here}"),
            Cause::Memory => self.why_memory(node, &n, &root),
            Cause::Input if is_writer => {
                format!("writes the input `{}`, and inputs are on the host, {here}", root.name)
            }
            Cause::Input => format!("an input, which is written on the host, {here}"),
            Cause::InheritView => format!("a view of `{}`, which is on {here}", root.name),
            Cause::InheritUser => match self.first_user(node, false) {
                Some(user) => format!("scratch memory, first used by `{user}` on {here}"),
                None => format!("scratch memory that nothing computes on, so it is on the host, {here}"),
            },
            // What writes into planned memory was decided together with it.
            _ if is_writer => format!("writes `{}`, which is on {here}", root.name),
            _ if !n.op.row().computes() => match self.first_user(node, true) {
                Some(writer) => format!("scratch memory, which `{writer}` writes on {here}"),
                None => format!("scratch memory that is written on {here}"),
            },
            Cause::Weights | Cause::Cache => self.why_anchored(&n),
            Cause::Offload => self.why_offloaded(&n, here),
            _ if self.backends.len() == 1 => format!("{here} is the only backend"),
            Cause::ExpandDown => format!("continues the run on {here}{}", self.neighbour("after", node, false)),
            Cause::ExpandUp => format!("joins the run on {here}{}", self.neighbour("before", node, true)),
            Cause::RestDown => {
                format!("continues on {here}{}{}", self.neighbour("after", node, false), self.not_higher(&n))
            }
            Cause::RestUp => format!("starts on {here}{}{}", self.neighbour("before", node, true), self.not_higher(&n)),
            Cause::Upgrade => self.why_upgraded(&n, here),
            Cause::Best => self.why_best(&n, here),
        }
    }

    fn backend_name(&self, backend: usize) -> &str {
        &self.backends[backend].name
    }

    fn buffer_of(&self, root: &PlanNode<'_>) -> Option<&PlanExisting> {
        root.existing.map(|(buffer, _)| &self.existing[buffer as usize])
    }

    fn why_memory(&self, node: usize, n: &PlanNode<'_>, root: &PlanNode<'_>) -> String {
        let place = self.buffer_of(root).map_or_else(|| "in memory that exists".into(), place_text);
        let refused = self.refused_by_users(n, self.buffer_of(root));
        if n.op.row().writes.is_some() {
            format!("writes `{}`, which lies {place}{refused}", root.name)
        } else if n.root as usize == node {
            format!("lies {place}")
        } else {
            format!("a view of `{}`, which lies {place}", root.name)
        }
    }

    /// The operand whose memory decided, and where it lies.
    fn anchor(&self, n: &PlanNode<'_>) -> Option<(PlanNode<'_>, PlanNode<'_>, &PlanExisting)> {
        let anchor = self.node(*n.sources.get(n.op.row().anchor?)? as usize);
        let root = self.node(anchor.root as usize);
        let buffer = self.buffer_of(&root)?;
        Some((anchor, root, buffer))
    }

    /// ``weights `w` lie in `model` (host memory)``.
    fn anchor_text(&self, n: &PlanNode<'_>) -> String {
        let Some((anchor, root, buffer)) = self.anchor(n) else { return "what it reads has memory already".into() };
        let (what, lies) = if buffer.usage == Usage::Weights { ("weights ", "lie") } else { ("", "lies") };
        let through =
            if anchor.name == root.name { String::new() } else { format!(" (read through `{}`)", anchor.name) };
        format!("{what}`{}`{through} {lies} {}", root.name, place_text(buffer))
    }

    fn why_anchored(&self, n: &PlanNode<'_>) -> String {
        let mut text = self.anchor_text(n);
        let Some((anchor, _, buffer)) = self.anchor(n) else { return text };
        text += &self.refused_by_users(n, Some(buffer));
        // Only work that is left on the host might have been taken away from it.
        if n.backend as usize + 1 != self.backends.len() || !buffer.kind.is_host() || buffer.opaque {
            return text;
        }
        for b in (0..n.backend as usize).filter(|&b| !self.can_use_buffer(b, buffer)) {
            text += &self.not_offloaded(n, &anchor, b);
        }
        text
    }

    fn can_use_buffer(&self, backend: usize, buffer: &PlanExisting) -> bool {
        let capabilities = self.backends[backend].handle.capabilities();
        capabilities.can_use(&buffer.kind, buffer.opaque, &buffer.buffer_type)
    }

    /// Why a higher backend left work on host memory to the host.
    fn not_offloaded(&self, n: &PlanNode<'_>, anchor: &PlanNode<'_>, backend: usize) -> String {
        let (name, handle) = (self.backend_name(backend), &self.backends[backend].handle);
        if let Some(reason) = self.refusal(n, backend) {
            return format!("; {name} refuses it ({reason})");
        }
        let batch = self.batch(n);
        let (size_bytes, max_bytes) = (handle.allocation_bytes(&anchor.desc), handle.capabilities().max_buffer_bytes);
        match handle.offload_batch(n.op.kind()) {
            None => format!("; {name} takes no work from the host (it has no offload threshold)"),
            Some(threshold) if batch < threshold && n.op.row().batch == BatchRule::Zero => {
                format!("; looking up rows is never worth an upload to {name}")
            }
            Some(threshold) if batch < threshold => {
                format!("; batch {batch} below offload threshold {threshold} of {name}")
            }
            Some(_) if size_bytes > max_bytes => {
                format!("; {size_bytes} bytes are above the largest buffer of {name}, {max_bytes}")
            }
            Some(_) => format!("; {name} does not want to take it from the host"),
        }
    }

    fn why_offloaded(&self, n: &PlanNode<'_>, here: &str) -> String {
        let (batch, weights) = (self.batch(n), self.anchor_text(n));
        match self.backends[n.backend as usize].handle.offload_batch(n.op.kind()) {
            Some(threshold) if batch >= threshold => {
                format!("batch {batch} reaches offload threshold {threshold} of {here}, although {weights}")
            }
            _ => format!("{here} wants to take it, although {weights}"),
        }
    }

    /// How many rows an upload of the anchor would serve.
    fn batch(&self, n: &PlanNode<'_>) -> u64 {
        let operands: Vec<TensorDesc> = n.sources.iter().map(|&s| self.node(s as usize).desc).collect();
        OpDesc { op: n.op, output: n.desc, operands: &operands }.batch()
    }

    fn refusal(&self, n: &PlanNode<'_>, backend: usize) -> Option<&str> {
        let refusals = self.refusals.of(n.index as usize);
        refusals.iter().find(|(_, b, _)| *b as usize == backend).map(|(.., reason)| &**reason)
    }

    /// The refusals of higher backends that could use the memory that decides.
    fn refused_by_users(&self, n: &PlanNode<'_>, buffer: Option<&PlanExisting>) -> String {
        let users = (0..n.backend as usize).filter(|&b| buffer.is_some_and(|buffer| self.can_use_buffer(b, buffer)));
        let refusals = users.filter_map(|b| Some((b, self.refusal(n, b)?)));
        refusals.map(|(b, reason)| format!("; {} refuses it ({reason})", self.backend_name(b))).collect()
    }

    /// Why no higher backend has it, although nothing ties it to this one.
    fn not_higher(&self, n: &PlanNode<'_>) -> String {
        let (mut text, mut unreached) = (String::new(), Vec::new());
        for b in 0..n.backend as usize {
            match self.refusal(n, b) {
                Some(reason) => text += &format!("; {} refuses it ({reason})", self.backend_name(b)),
                None => unreached.push(self.backend_name(b)),
            }
        }
        if !unreached.is_empty() {
            text += &format!("; no run on {} reaches it", unreached.join(" or "));
        }
        text
    }

    /// The nearest node that computes on the same backend.
    fn neighbour(&self, word: &str, node: usize, is_later: bool) -> String {
        let backend = self.node(node).backend;
        let fits = |&i: &usize| self.node(i).backend == backend && self.node(i).op.row().computes();
        let found = if is_later { (node + 1..self.node_count()).find(fits) } else { (0..node).rev().find(fits) };
        found.map_or_else(String::new, |i| format!(" {word} `{}`", self.node(i).name))
    }

    /// The first node that computes with a leaf, or with a view of it, or that writes it.
    fn first_user(&self, leaf: usize, writes: bool) -> Option<&str> {
        let uses = |n: &PlanNode<'_>| {
            let is_leaf = |&s: &u32| self.node(s as usize).root as usize == leaf;
            let fits = n.op.row().computes() && n.sources.iter().any(is_leaf);
            fits && (!writes || n.root as usize == leaf)
        };
        self.nodes().skip(self.leaves()).find(uses).map(|n| &**n.name)
    }

    fn why_upgraded(&self, n: &PlanNode<'_>, here: &str) -> String {
        let own = self.backends[n.backend as usize].handle.capabilities();
        let lower = self.backends.iter().skip(n.backend as usize + 1).filter(|b| {
            let other = b.handle.capabilities();
            other.buffer_type == own.buffer_type && other.memory == own.memory
        });
        let lower: Vec<&str> = lower.map(|b| &*b.name).collect();
        format!("{here} uses the same memory as {} ({}), can run it, and ranks higher", lower.join(" and "), own.memory)
    }

    fn why_best(&self, n: &PlanNode<'_>, here: &str) -> String {
        let able: Vec<&str> =
            (0..self.backends.len()).filter(|&b| self.refusal(n, b).is_none()).map(|b| self.backend_name(b)).collect();
        if able.len() < 2 {
            let refused = self.refusals.of(n.index as usize).iter();
            let refused = refused.map(|(_, b, reason)| (self.backend_name(*b as usize), reason));
            let refused: String = refused.map(|(name, reason)| format!("; {name} refuses it ({reason})")).collect();
            return format!("only {here} can run it{refused}");
        }
        let able = able.join(", ");
        if n.sources.is_empty() {
            return format!("no run reaches it; {here} is the highest of those that can run it ({able})");
        }
        format!("no run reaches it; {here} can use as many operands where they are as any that can run it ({able})")
    }
}

fn why_pinned(node: usize, n: &PlanNode<'_>, root: &PlanNode<'_>, here: &str) -> String {
    if n.pin.is_some() {
        format!("the user pinned it to {here}")
    } else if root.pin.is_some() && n.root as usize != node {
        format!("shares the memory of `{}`, which the user pinned to {here}", root.name)
    } else {
        format!("shares memory with a tensor that the user pinned to {here}")
    }
}

/// ``in `kv_cache` (host memory)``.
fn place_text(buffer: &PlanExisting) -> String {
    let layout = if buffer.opaque { ", private layout" } else { "" };
    format!("in `{}` ({} memory{layout})", buffer.name, buffer.kind)
}
