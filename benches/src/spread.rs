//! Samples of a measurement in three figures.

use std::fmt;

/// The least, the middle and the largest of some samples.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spread {
    /// The least.
    pub least: f64,
    /// The median.
    pub middle: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The largest.
    pub most: f64,
}

impl Spread {
    /// All of them times a factor.
    #[must_use]
    pub fn scaled(self, by: f64) -> Self {
        Self { least: self.least * by, middle: self.middle * by, p99: self.p99 * by, most: self.most * by }
    }
}

/// What some samples come to; zeros for none.
#[must_use]
pub fn spread(mut samples: Vec<f64>) -> Spread {
    samples.sort_by(f64::total_cmp);
    let at = |share: f64| {
        let last = samples.len().saturating_sub(1);
        samples.get((last as f64 * share).round() as usize).copied().unwrap_or(0.0)
    };
    Spread { least: at(0.0), middle: at(0.5), p99: at(0.99), most: at(1.0) }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { least, middle, most, .. } = self;
        write!(f, "{least:8.3} {middle:8.3} {most:8.3}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_in_three_figures() {
        let of = spread((0..=100).rev().map(f64::from).collect());
        assert_eq!(of, Spread { least: 0.0, middle: 50.0, p99: 99.0, most: 100.0 });
        assert_eq!(spread(vec![2.0]).scaled(2.0).p99, 4.0);
        assert_eq!(spread(Vec::new()), Spread::default());
    }
}
