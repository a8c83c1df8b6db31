//! Why each node is where it is, in a sentence for people.

use entensor_components::{Cause, OpDesc, TensorDesc};

use super::{Plan, PlanNode};

impl Plan {
    /// One sentence on why a node is where it is.
    #[must_use]
    pub fn why(&self, node: usize) -> String {
        let n = self.node(node);
        let here = &self.backends[n.backend as usize].name;
        let root = self.node(n.root as usize);
        if n.op.row().writes.is_some() && root.existing.is_none() && !matches!(n.cause, Cause::Pin | Cause::User) {
            return format!("writes `{}`, which is on {here}", root.name);
        }
        match n.cause {
            Cause::Undecided => "no pass decided".into(),
            Cause::Pin => format!("pinned to {here}"),
            Cause::Memory => {
                let buffer = root.existing.map_or("its buffer", |(b, _)| &*self.existing[b as usize].name);
                if n.op.row().writes.is_some() {
                    format!("writes `{}`, which lies in {buffer}", root.name)
                } else {
                    format!("lies in {buffer}")
                }
            }
            Cause::Input => "inputs are written on the host".into(),
            Cause::Weights => format!("weights {} are there{}", self.anchor(&n), self.below_threshold(node)),
            Cause::Cache => format!("cache {} is there{}", self.anchor(&n), self.below_threshold(node)),
            Cause::Offload => {
                format!("{here} takes batch {} although weights {} are on the host", self.batch(node), self.anchor(&n))
            }
            Cause::ExpandDown => format!("continues the run on {here} from above"),
            Cause::ExpandUp => format!("joins the run on {here} that follows"),
            Cause::RestDown => format!("continues on {here}; no accelerator run reaches it{}", self.refused(&n)),
            Cause::RestUp => format!("joins {here}, which follows; no accelerator run reaches it{}", self.refused(&n)),
            Cause::Upgrade => format!("{here} uses the same memory and ranks higher"),
            Cause::Best => format!("nothing decided; {here} can use most of its operands where they are"),
            Cause::InheritView => format!("a view of `{}`", root.name),
            Cause::InheritUser => format!("scratch memory, used first on {here}"),
            Cause::User => "a system between the passes placed it".into(),
        }
    }

    fn anchor(&self, node: &PlanNode<'_>) -> String {
        let anchor = node.op.row().anchor.and_then(|a| node.sources.get(a));
        anchor.map_or_else(String::new, |&a| format!("`{}`", self.table.names[a as usize]))
    }

    fn batch(&self, node: usize) -> u64 {
        let n = self.node(node);
        let operands: Vec<TensorDesc> = n.sources.iter().map(|&s| self.table.descs[s as usize]).collect();
        OpDesc { op: n.op, output: n.desc, operands: &operands }.batch()
    }

    /// Why no higher backend took a node whose weights are on the host.
    fn below_threshold(&self, node: usize) -> String {
        let n = self.node(node);
        let batch = self.batch(node);
        let higher = self.backends[..n.backend as usize].iter().enumerate();
        let mut reasons = String::new();
        for (b, backend) in higher {
            let refusal = self.refusals.of(node).iter().find(|(_, r, _)| *r as usize == b);
            match (refusal, backend.handle.capabilities().offload_batch) {
                (Some((.., reason)), _) => reasons += &format!("; {} cannot: {reason}", backend.name),
                (None, Some(threshold)) if batch < threshold => {
                    reasons += &format!("; batch {batch} below offload threshold {threshold} of {}", backend.name);
                }
                _ => {}
            }
        }
        reasons
    }

    fn refused(&self, node: &PlanNode<'_>) -> String {
        let refused = self.refusals.of(node.index as usize);
        let reasons =
            refused.iter().map(|(_, b, reason)| format!("; {} cannot: {reason}", self.backends[*b as usize].name));
        reasons.collect()
    }
}
