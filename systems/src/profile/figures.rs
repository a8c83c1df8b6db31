//! Times of one kind as statistics of fixed size.

use hdrhistogram::Histogram;

/// Longer times count as this long, but for sum and maximum: a hundred seconds.
const MOST_NS: u64 = 100_000_000_000;

/// What is known of times of one kind. All in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// How many times were taken.
    pub count: u64,
    /// Their sum.
    pub total_ns: u64,
    /// Their mean.
    pub mean_ns: f64,
    /// Half of them are no longer, as exact as [`Timing`] says.
    pub p50_ns: u64,
    /// 99 of 100 are no longer.
    pub p99_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

/// Times as they are gathered. Count, sum and maximum are exact; the histogram's values are within 1 % ([`Timing::fine`], 16 KiB) or 7 %
/// ([`Timing::coarse`], 2 KiB). Recording allocates nothing.
#[derive(Clone, Debug)]
pub struct Timing {
    count: u64,
    total_ns: u64,
    max_ns: u64,
    values: Histogram<u32>,
}

impl Timing {
    /// For few kinds that matter.
    #[must_use]
    pub fn fine() -> Self {
        Self::with_digits(2)
    }

    /// For many kinds.
    #[must_use]
    pub fn coarse() -> Self {
        Self::with_digits(1)
    }

    fn with_digits(digits: u8) -> Self {
        let values = Histogram::new_with_bounds(1, MOST_NS, digits).expect("the bounds are those of a histogram");
        Self { count: 0, total_ns: 0, max_ns: 0, values }
    }

    /// Adds a time.
    pub fn record(&mut self, ns: u64) {
        self.count += 1;
        self.total_ns = self.total_ns.saturating_add(ns);
        self.max_ns = self.max_ns.max(ns);
        self.values.saturating_record(ns);
    }

    /// Forgets all times.
    pub fn reset(&mut self) {
        (self.count, self.total_ns, self.max_ns) = (0, 0, 0);
        self.values.reset();
    }

    /// What is known so far.
    #[must_use]
    pub fn figures(&self) -> Figures {
        if self.count == 0 {
            return Figures::default();
        }
        // A bucket's upper end may lie above everything that is in it.
        let quantile = |q: f64| self.values.value_at_quantile(q).min(self.max_ns);
        Figures {
            count: self.count,
            total_ns: self.total_ns,
            mean_ns: self.total_ns as f64 / self.count as f64,
            p50_ns: quantile(0.5),
            p99_ns: quantile(0.99),
            max_ns: self.max_ns,
        }
    }

    pub(crate) fn mean_ns(&self) -> u64 {
        self.total_ns.checked_div(self.count).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_those_of_the_times() {
        for (mut timing, tolerance) in [(Timing::fine(), 0.01), (Timing::coarse(), 0.07)] {
            assert_eq!(timing.figures(), Figures::default());
            (1..=1000).rev().for_each(|n| timing.record(n * 1_000));
            let figures = timing.figures();
            assert_eq!((figures.count, figures.total_ns, figures.max_ns), (1000, 500_500_000, 1_000_000));
            assert_eq!(figures.mean_ns, 500_500.0);
            for (found, exact) in [(figures.p50_ns, 500_000.0), (figures.p99_ns, 990_000.0)] {
                assert!((found as f64 / exact - 1.0).abs() <= tolerance, "{found} is not {exact}");
            }
            timing.reset();
            assert_eq!(timing.figures(), Figures::default());
        }
    }

    #[test]
    fn times_of_any_length_are_taken() {
        let mut timing = Timing::fine();
        timing.record(0);
        timing.record(u64::MAX);
        timing.record(u64::MAX);
        let figures = timing.figures();
        assert_eq!((figures.count, figures.total_ns, figures.max_ns), (3, u64::MAX, u64::MAX));
        assert!(figures.p50_ns >= MOST_NS / 2);
    }
}
