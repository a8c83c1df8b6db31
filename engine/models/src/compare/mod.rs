//! How far apart two models' expectations are, over the same tokens.
//!
//! At every position a model gives a logit for each token of the vocabulary; its log-probability is the logit minus the logarithm
//! of the sum of exponentials of all logits of that position. From the log-probabilities `a` and `b` of two models:
//!
//! | figure | is |
//! |---|---|
//! | mean difference | the mean of `abs(a - b)` over all pairs of a position and a token of the vocabulary |
//! | worst difference | the largest `abs(a - b)`, and where it is |
//! | mean KL | the mean over positions of `sum over tokens of exp(a) * (a - b)`, in nats: what is lost by taking `b` for `a` |
//! | same top | the positions where both have the largest logit at one token (the lowest id of equals) |
//! | perplexity | `exp` of the mean of minus the log-probability of the token that follows, over positions that one follows |
//!
//! A text longer than the context is cut into parts of as many tokens as fit, each read from an empty context; no token follows the
//! last of a part. Unlikely tokens count as much as likely ones in the differences; the KL weighs them by their probability.
//!
//! **Recorded truth.** A [`RecordedCase`] has the logits of the likeliest tokens only. Differences are then over these. The KL
//! takes all other tokens as one, which makes it a lower bound of the full one, and the perplexity of the record is known
//! only if every token that follows is among those recorded.
//!
//! **Cost.** Logits of at most [`CHUNK_BYTES`] are kept, whatever the length of the text. All sums are in f64 and in a fixed order.

mod nodes;
mod recorded;
mod run;

pub use nodes::compare_nodes;
pub use recorded::{RecordedCase, RecordedPosition};
pub use run::{compare_models, compare_recorded};

use crate::tokenizer::Tokenizer;

/// The most logits that are kept at once (of one position at least).
pub const CHUNK_BYTES: usize = 32 << 20;

/// Why two models cannot be compared.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompareError {
    /// Vocabularies of different sizes.
    #[error("the vocabularies have {a} and {b} tokens; only models with one vocabulary can be compared")]
    VocabularySize {
        /// Tokens of the first.
        a: u32,
        /// Tokens of the second.
        b: u32,
    },
    /// Vocabularies of different tokens.
    #[error(
        "token {id} is {a:?} in one vocabulary and {b:?} in the other; only models with one vocabulary can be compared"
    )]
    VocabularyToken {
        /// The token.
        id: u32,
        /// How the first spells it.
        a: String,
        /// How the second spells it.
        b: String,
    },
    /// A record that is no JSON of the right form.
    #[error(
        "the record cannot be read: {0}; it must be what `entensor logits --json` prints, or {{\"cases\": [of those]}}"
    )]
    Json(#[from] serde_json::Error),
    /// A record of nothing.
    #[error("the record has no tokens to compare")]
    NothingRecorded,
    /// A record that contradicts itself, or another vocabulary's.
    #[error("case {case}, position {position} of the record: {rule}; it is damaged, or of another model")]
    Recorded {
        /// The case, counted from 0.
        case: usize,
        /// The position in it.
        position: usize,
        /// What must hold.
        rule: &'static str,
    },
}

/// Checks that token ids mean the same to both.
///
/// # Errors
/// [`CompareError::VocabularySize`] or [`CompareError::VocabularyToken`].
pub fn check_vocabularies(a: &Tokenizer, b: &Tokenizer) -> Result<(), CompareError> {
    if a.len() != b.len() {
        return Err(CompareError::VocabularySize { a: a.len(), b: b.len() });
    }
    let differs = |&id: &u32| (a.token_spelling(id), a.token_kind(id)) != (b.token_spelling(id), b.token_kind(id));
    match (0..a.len()).find(differs) {
        None => Ok(()),
        Some(id) => {
            let spelling = |tokenizer: &Tokenizer| {
                let kind = tokenizer.token_kind(id).map_or_else(String::new, |kind| format!(" ({kind:?})"));
                crate::gguf::excerpt(tokenizer.token_spelling(id).unwrap_or_default()) + &kind
            };
            Err(CompareError::VocabularyToken { id, a: spelling(a), b: spelling(b) })
        }
    }
}

/// ln Σ exp(x), in f64 and without overflow.
#[must_use]
pub fn log_sum_exp(logits: &[f32]) -> f64 {
    let largest = logits.iter().fold(f64::NEG_INFINITY, |largest, &x| largest.max(x.into()));
    if largest.is_infinite() {
        return largest;
    }
    largest + logits.iter().map(|&x| (f64::from(x) - largest).exp()).sum::<f64>().ln()
}

/// The token of the largest logit, the lowest id of equals.
fn top(logits: &[f32]) -> u32 {
    let mut best = (f32::NEG_INFINITY, 0);
    for (&logit, token) in logits.iter().zip(0_u32..) {
        if logit > best.0 {
            best = (logit, token);
        }
    }
    best.1
}

/// The largest difference, and where it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WorstDifference {
    /// The difference of the log-probabilities.
    pub difference: f64,
    /// The position, counted over all parts or cases.
    pub position: u64,
    /// The token.
    pub token: u32,
}

/// Collects rows of logits of the same position from two models. See the [module](self) for what the figures mean.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    positions: u64,
    pairs: u64,
    sum: f64,
    worst: Option<WorstDifference>,
    kl: f64,
    same_top: u64,
    surprise_a: Surprise,
    surprise_b: Surprise,
}

/// Minus the log-probabilities of tokens that followed.
#[derive(Clone, Copy, Debug, Default)]
struct Surprise {
    sum: f64,
    known: u64,
    unknown: u64,
}

impl Surprise {
    fn add(&mut self, log_probability: Option<f64>) {
        match log_probability {
            Some(value) => (self.sum, self.known) = (self.sum - value, self.known + 1),
            None => self.unknown += 1,
        }
    }

    /// None where no token followed, or the probability of one is not known.
    fn perplexity(self) -> Option<f64> {
        (self.known > 0 && self.unknown == 0).then(|| (self.sum / self.known as f64).exp())
    }
}

impl Comparison {
    /// Adds a position: the logits of both models, and the token that follows, if one does.
    pub fn add(&mut self, a: &[f32], b: &[f32], next: Option<u32>) {
        let (sum_a, sum_b) = (log_sum_exp(a), log_sum_exp(b));
        for ((&a, &b), token) in a.iter().zip(b).zip(0_u32..) {
            let a = f64::from(a) - sum_a;
            let b = f64::from(b) - sum_b;
            self.kl += self.pair(a, b, token);
        }
        self.same_top += u64::from(top(a) == top(b));
        if let Some(next) = next {
            let of = |logits: &[f32], sum: f64| logits.get(next as usize).map(|&logit| f64::from(logit) - sum);
            self.surprise_a.add(of(a, sum_a));
            self.surprise_b.add(of(b, sum_b));
        }
        self.positions += 1;
    }

    /// Adds a position of which one side is recorded.
    pub fn add_recorded(&mut self, a: &RecordedPosition, b: &[f32], next: Option<u32>) {
        let sum_b = log_sum_exp(b);
        let (mut rest_a, mut rest_b) = (1.0, 1.0);
        for &(token, logit) in &a.top {
            let Some(&b) = b.get(token as usize) else { continue };
            let (a, b) = (logit - a.logsumexp, f64::from(b) - sum_b);
            self.kl += self.pair(a, b, token);
            rest_a -= a.exp();
            rest_b -= b.exp();
        }
        // Rounding may leave less than nothing for the others; they are too few to count then.
        if rest_a > 0.0 && rest_b > 0.0 {
            self.kl += rest_a * (rest_a.ln() - rest_b.ln());
        }
        let largest = a.top.iter().fold(None, |best: Option<&(u32, f64)>, entry| match best {
            Some(best) if (best.1, entry.0) >= (entry.1, best.0) => Some(best),
            _ => Some(entry),
        });
        self.same_top += u64::from(largest.is_some_and(|&(token, _)| token == top(b)));
        if let Some(next) = next {
            let recorded = a.top.iter().find(|(token, _)| *token == next);
            self.surprise_a.add(recorded.map(|(_, logit)| logit - a.logsumexp));
            self.surprise_b.add(b.get(next as usize).map(|&logit| f64::from(logit) - sum_b));
        }
        self.positions += 1;
    }

    /// Adds a pair of log-probabilities; gives its part of the KL.
    fn pair(&mut self, a: f64, b: f64, token: u32) -> f64 {
        // Two impossible tokens are no different.
        let signed = if a == b { 0.0 } else { a - b };
        let difference = signed.abs();
        self.pairs += 1;
        self.sum += difference;
        // Written so that NaN is the worst and stays it.
        if !self.worst.is_some_and(|worst| difference <= worst.difference || worst.difference.is_nan()) {
            self.worst = Some(WorstDifference { difference, position: self.positions, token });
        }
        let probability = a.exp();
        if probability == 0.0 { 0.0 } else { probability * signed }
    }

    /// Positions so far.
    #[must_use]
    pub fn positions(&self) -> u64 {
        self.positions
    }

    /// Pairs of a position and a token that were compared.
    #[must_use]
    pub fn pairs(&self) -> u64 {
        self.pairs
    }

    /// The mean difference of log-probabilities; none before the first position.
    #[must_use]
    pub fn mean_difference(&self) -> Option<f64> {
        (self.pairs > 0).then(|| self.sum / self.pairs as f64)
    }

    /// The worst difference of log-probabilities.
    #[must_use]
    pub fn worst_difference(&self) -> Option<WorstDifference> {
        self.worst
    }

    /// The mean KL divergence of the second from the first, in nats.
    #[must_use]
    pub fn mean_kl(&self) -> Option<f64> {
        (self.positions > 0).then(|| self.kl / self.positions as f64)
    }

    /// Positions where both expect the same token most.
    #[must_use]
    pub fn same_top(&self) -> u64 {
        self.same_top
    }

    /// The perplexity of the first; none where it is not known.
    #[must_use]
    pub fn perplexity_a(&self) -> Option<f64> {
        self.surprise_a.perplexity()
    }

    /// The perplexity of the second.
    #[must_use]
    pub fn perplexity_b(&self) -> Option<f64> {
        self.surprise_b.perplexity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(found: Option<f64>, expected: f64) {
        assert!(found.is_some_and(|found| (found - expected).abs() < 1e-9), "{found:?} instead of {expected}");
    }

    /// Logits are logarithms of probabilities plus a constant that must not matter.
    fn logits(probabilities: &[f64], shift: f64) -> Vec<f32> {
        probabilities.iter().map(|p| (p.ln() + shift) as f32).collect()
    }

    #[test]
    fn sums_of_exponentials_do_not_overflow() {
        assert!((log_sum_exp(&[1000.0, 1000.0]) - (1000.0 + 2_f64.ln())).abs() < 1e-9);
        assert!((log_sum_exp(&[-1000.0, f32::NEG_INFINITY]) + 1000.0).abs() < 1e-9);
        assert_eq!(log_sum_exp(&[f32::NEG_INFINITY]), f64::NEG_INFINITY);
        assert_eq!(log_sum_exp(&[]), f64::NEG_INFINITY);
        assert!(log_sum_exp(&[f32::NAN, 1.0]).is_nan());
    }

    #[test]
    fn figures_are_those_computed_by_hand() {
        // p = (1/2, 1/4, 1/4), q = (1/4, 1/2, 1/4): differences ln 2, ln 2, 0; KL = ln(2)/2 - ln(2)/4.
        let mut comparison = Comparison::default();
        let (a, b) = ([0.5, 0.25, 0.25], [0.25, 0.5, 0.25]);
        // In f32 the logits are rounded: powers of two keep the figures exact to 1e-7 or so.
        comparison.add(&logits(&a, 0.0), &logits(&b, 0.0), Some(0));
        comparison.add(&logits(&a, 0.0), &logits(&a, 0.0), None);
        let ln2 = 2_f64.ln();
        let near = |found: Option<f64>, expected: f64| {
            assert!(found.is_some_and(|found| (found - expected).abs() < 1e-6), "{found:?} {expected}");
        };
        assert_eq!((comparison.positions(), comparison.pairs(), comparison.same_top()), (2, 6, 1));
        near(comparison.mean_difference(), 2.0 * ln2 / 6.0);
        near(comparison.mean_kl(), ln2 / 4.0 / 2.0);
        near(comparison.perplexity_a(), 2.0);
        near(comparison.perplexity_b(), 4.0);
        let worst = comparison.worst_difference().expect("positions");
        assert!((worst.difference - ln2).abs() < 1e-6 && worst.position == 0 && worst.token < 2);
    }

    #[test]
    fn equal_rows_have_no_difference_whatever_the_shift_and_masked_tokens() {
        let mut comparison = Comparison::default();
        let row = [1.5, f32::NEG_INFINITY, 0.25, 1.5];
        comparison.add(&row, &row, Some(3));
        // A constant that f32 adds without rounding.
        comparison.add(&row, &row.map(|logit| logit + 8.0), None);
        close(comparison.mean_difference(), 0.0);
        close(comparison.mean_kl(), 0.0);
        assert_eq!(comparison.same_top(), 2);
        assert_eq!(comparison.perplexity_a(), comparison.perplexity_b());
        let mut masked = Comparison::default();
        masked.add(&[0.0, 0.0], &[0.0, f32::NEG_INFINITY], Some(1));
        assert_eq!(masked.mean_kl(), Some(f64::INFINITY));
        assert_eq!(masked.perplexity_b(), Some(f64::INFINITY));
    }

    #[test]
    fn nothing_has_no_figures() {
        let nothing = Comparison::default();
        assert_eq!((nothing.mean_difference(), nothing.mean_kl(), nothing.perplexity_a()), (None, None, None));
        let mut one = Comparison::default();
        one.add(&[0.0, 1.0], &[0.0, 1.0], None);
        assert_eq!(one.perplexity_b(), None, "no token followed");
    }

    #[test]
    fn records_take_the_other_tokens_as_one() {
        // a = (1/2, 1/4, 1/8, 1/8) of which two are recorded, b uniform over four.
        let recorded = RecordedPosition { top: vec![(2, 0.5_f64.ln()), (0, 0.25_f64.ln())], logsumexp: 0.0 };
        let mut comparison = Comparison::default();
        comparison.add_recorded(&recorded, &[0.0; 4], Some(0));
        let ln2 = 2_f64.ln();
        assert_eq!(comparison.pairs(), 2);
        close(comparison.mean_difference(), ln2 / 2.0);
        close(comparison.mean_kl(), 0.5 * ln2 + 0.25 * 0.0 + 0.25 * (0.25_f64.ln() - 0.5_f64.ln()));
        close(comparison.perplexity_a(), 4.0);
        close(comparison.perplexity_b(), 4.0);
        assert_eq!(comparison.same_top(), 0, "the lowest of equals is 0");
        comparison.add_recorded(&recorded, &[0.0; 4], Some(3));
        assert_eq!(comparison.perplexity_a(), None, "token 3 is not recorded");
        close(comparison.perplexity_b(), 4.0);
    }

    #[test]
    fn a_record_of_everything_gives_the_full_figures() {
        let (a, b): (Vec<f32>, Vec<f32>) =
            (0..50).map(|i| ((i as f32).sin() * 3.0, (i as f32 * 1.1).cos() * 2.0)).unzip();
        let recorded = RecordedPosition {
            top: a.iter().zip(0_u32..).map(|(&logit, token)| (token, logit.into())).collect(),
            logsumexp: log_sum_exp(&a),
        };
        let (mut full, mut from_record) = (Comparison::default(), Comparison::default());
        full.add(&a, &b, Some(7));
        from_record.add_recorded(&recorded, &b, Some(7));
        close(from_record.mean_difference(), full.mean_difference().expect("one"));
        close(from_record.mean_kl(), full.mean_kl().expect("one"));
        assert_eq!(from_record.worst_difference().map(|w| w.token), full.worst_difference().map(|w| w.token));
        assert_eq!(from_record.same_top(), full.same_top());
        close(from_record.perplexity_a(), full.perplexity_a().expect("one"));
        assert!(full.mean_kl() > Some(0.0));
    }
}
