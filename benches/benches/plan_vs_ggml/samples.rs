//! Times of one thing, taken several times.

use std::time::Duration;

/// Times of one thing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Samples(Vec<Duration>);

impl Samples {
    pub(crate) fn push(&mut self, time: Duration) {
        self.0.push(time);
    }

    pub(crate) fn min_ns(&self) -> f64 {
        self.0.iter().min().map_or(f64::NAN, |d| d.as_nanos() as f64)
    }

    pub(crate) fn median_ns(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).map_or(f64::NAN, |d| d.as_nanos() as f64)
    }

    /// The least and the middle, per node.
    pub(crate) fn per_node(&self, nodes: usize) -> String {
        if self.0.is_empty() {
            return "-".into();
        }
        let nodes = nodes as f64;
        format!("{:.0} / {:.0}", self.min_ns() / nodes, self.median_ns() / nodes)
    }

    /// How often longer these are than the others, by least and by middle.
    pub(crate) fn ratio(&self, others: &Self) -> String {
        format!("{:.2} / {:.2}", self.min_ns() / others.min_ns(), self.median_ns() / others.median_ns())
    }
}
