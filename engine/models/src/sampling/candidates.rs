//! The tokens that may still be picked, and the cuts that make them fewer.
//!
//! No cut takes the likeliest token away, so that there is always one to pick. Probabilities are relative to it: a weight is
//! `exp(logit - largest)`, and sums of weights take the place of 1.

use std::cmp::Ordering;

/// A token that may be picked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Candidate {
    pub(super) logit: f32,
    pub(super) token: u32,
}

impl Candidate {
    /// The larger logit first, then the lower id: a total order, as logits are never NaN here.
    fn order(&self, other: &Self) -> Ordering {
        other.logit.total_cmp(&self.logit).then(self.token.cmp(&other.token))
    }

    fn weight(&self, largest: f32) -> f64 {
        (f64::from(self.logit) - f64::from(largest)).exp()
    }
}

/// Tokens in one order or another; the memory is kept between calls.
#[derive(Clone, Debug, Default)]
pub(super) struct Candidates {
    list: Vec<Candidate>,
    largest: f32,
}

impl Candidates {
    /// Starts again with all tokens, of which `largest` is the largest logit.
    pub(super) fn fill(&mut self, logits: &[f32], largest: f32) {
        self.largest = largest;
        self.list.clear();
        self.list.extend(logits.iter().zip(0u32..).map(|(&logit, token)| Candidate {
            // Zeros of both signs are equal logits, and the order must see them so.
            logit: logit + 0.0,
            token,
        }));
    }

    #[cfg(test)]
    pub(super) fn as_slice(&self) -> &[Candidate] {
        &self.list
    }

    /// The so many likeliest stay; 0 keeps all.
    pub(super) fn keep_top_k(&mut self, top_k: u32) {
        let top_k = top_k as usize;
        if (1..self.list.len()).contains(&top_k) {
            self.list.select_nth_unstable_by(top_k - 1, Candidate::order);
            self.list.truncate(top_k);
            // Sums must not depend on the order that the selection left.
            self.list.sort_unstable_by(Candidate::order);
        }
    }

    /// The tokens before the curve of sorted probabilities flattens stay; 1 keeps all.
    ///
    /// The curvature at the `i`-th likeliest token is `abs(p[i] - 2 p[i+1] + p[i+2])`. A token stays if the curvature before it is
    /// at most `z` of the curvature of all.
    pub(super) fn keep_tail_free(&mut self, z: f32) {
        if z >= 1.0 || self.list.len() <= 2 {
            return;
        }
        self.list.sort_unstable_by(Candidate::order);
        let largest = self.largest;
        let curvature = |window: &[Candidate]| match window {
            [a, b, c] => (a.weight(largest) - 2.0 * b.weight(largest) + c.weight(largest)).abs(),
            _ => 0.0,
        };
        let wanted = f64::from(z) * self.list.windows(3).map(curvature).sum::<f64>();
        let mut collected = 0.0;
        let tail = self.list.windows(3).position(|window| {
            collected += curvature(window);
            collected > wanted
        });
        if let Some(last) = tail {
            self.list.truncate(last + 1);
        }
    }

    /// The fewest likeliest that together have `top_p` of the probability stay; 1 keeps all.
    pub(super) fn keep_top_p(&mut self, top_p: f32) {
        if top_p >= 1.0 {
            return;
        }
        let largest = self.largest;
        let wanted = f64::from(top_p) * self.list.iter().map(|candidate| candidate.weight(largest)).sum::<f64>();
        let mut collected = 0.0;
        let mut sorted = 0;
        // Mostly a few tokens have nearly all probability: sort a head that grows until it has enough.
        let mut head = 64;
        while sorted < self.list.len() {
            let rest = &mut self.list[sorted..];
            if head < rest.len() {
                rest.select_nth_unstable_by(head - 1, Candidate::order);
            }
            let take = head.min(rest.len());
            rest[..take].sort_unstable_by(Candidate::order);
            for candidate in &rest[..take] {
                collected += candidate.weight(largest);
                sorted += 1;
                if collected >= wanted {
                    self.list.truncate(sorted);
                    return;
                }
            }
            head *= 4;
        }
    }

    /// The tokens that are at least `min_p` times as likely as the likeliest stay; 0 keeps all.
    pub(super) fn keep_min_p(&mut self, min_p: f32) {
        if min_p > 0.0 {
            let largest = self.largest;
            self.list.retain(|candidate| candidate.weight(largest) >= f64::from(min_p));
        }
    }

    /// Draws a token with `unit`, from 0 to below 1. `best` is the likeliest.
    pub(super) fn draw(&self, temperature: f32, unit: f64, best: u32) -> u32 {
        let weight = |candidate: &Candidate| {
            ((f64::from(candidate.logit) - f64::from(self.largest)) / f64::from(temperature)).exp()
        };
        let total: f64 = self.list.iter().map(weight).sum();
        let mut left = unit * total;
        let mut last = best;
        for candidate in &self.list {
            let weight = weight(candidate);
            if weight > 0.0 {
                last = candidate.token;
                left -= weight;
                if left < 0.0 {
                    break;
                }
            }
        }
        // Rounding may leave a rest after the last candidate; it belongs to the last one that was possible.
        last
    }
}
