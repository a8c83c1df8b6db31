//! Picking the next token from a row of logits.
//!
//! The chain is `top_k`, then `top_p`, then temperature, then one draw: the cuts look at the model's own
//! distribution, and temperature reshapes what is left. Temperature 0 takes the largest logit, the lowest id of equals.
//!
//! **Determinism.** The same logits, settings and seed give the same tokens, call by call. Ties are ordered by id, sums run in one
//! fixed order in double precision, and the generator is part of this module. A clone continues like its original, which is how a
//! simulation that is rolled back gets the same words again.
//!
//! **Cost.** Greedy: one pass. Otherwise one pass and a partial sort of what survives; with `top_k` 0 and `top_p` below 1 the sort
//! stops as soon as enough probability is collected. Nothing is allocated after the first call with a vocabulary of that size.

use std::cmp::Ordering;

/// How to pick tokens. The default is greedy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplerConfig {
    /// 0 takes the largest logit; 1 keeps the model's distribution; more flattens it.
    pub temperature: f32,
    /// Only the so many largest logits stay; 0 keeps all.
    pub top_k: u32,
    /// Only the fewest largest logits stay that together have this probability; 1 keeps all.
    pub top_p: f32,
    /// Where the random sequence starts.
    pub seed: u64,
}

impl Default for SamplerConfig {
    fn default() -> Self {
        Self { temperature: 0.0, top_k: 0, top_p: 1.0, seed: 0 }
    }
}

/// Why a sampler could not be built or could not pick.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SamplingError {
    /// A temperature that is negative or not finite.
    #[error("temperature is {temperature}; it must be a finite number, 0 or more")]
    InvalidTemperature {
        /// The setting.
        temperature: f32,
    },
    /// A `top_p` that is no probability.
    #[error("top_p is {top_p}; it must be above 0 and at most 1 (1 keeps all tokens)")]
    InvalidTopP {
        /// The setting.
        top_p: f32,
    },
    /// No logits at all.
    #[error("there are no logits to pick from")]
    Empty,
    /// More logits than ids can number.
    #[error("{logits} logits are more than 32-bit token ids can number")]
    TooMany {
        /// The number of logits.
        logits: usize,
    },
    /// A logit that is NaN or +∞: the model has failed before.
    #[error("the logit of token {token} is {logit}; the model's output is broken, check its weights and inputs")]
    BrokenLogit {
        /// The token.
        token: u32,
        /// Its logit.
        logit: f32,
    },
    /// All logits are −∞: every token is forbidden.
    #[error("all {logits} logits are -inf: every token is masked out")]
    AllMasked {
        /// The number of logits.
        logits: usize,
    },
}

/// Picks tokens. See the [module](self).
#[derive(Clone, Debug)]
pub struct Sampler {
    config: SamplerConfig,
    random: SplitMix64,
    candidates: Vec<Candidate>,
}

#[derive(Clone, Copy, Debug)]
struct Candidate {
    logit: f32,
    token: u32,
}

impl Candidate {
    /// The larger logit first, then the lower id: a total order, as logits are never NaN here.
    fn order(&self, other: &Self) -> Ordering {
        other.logit.total_cmp(&self.logit).then(self.token.cmp(&other.token))
    }
}

impl Sampler {
    /// A sampler with these settings, at the start of its random sequence.
    ///
    /// # Errors
    /// [`SamplingError::InvalidTemperature`] or [`SamplingError::InvalidTopP`].
    pub fn new(config: SamplerConfig) -> Result<Self, SamplingError> {
        let SamplerConfig { temperature, top_p, seed, .. } = config;
        if !temperature.is_finite() || temperature < 0.0 {
            return Err(SamplingError::InvalidTemperature { temperature });
        }
        // Written so that NaN fails.
        if !(top_p > 0.0 && top_p <= 1.0) {
            return Err(SamplingError::InvalidTopP { top_p });
        }
        Ok(Self { config, random: SplitMix64(seed), candidates: Vec::new() })
    }

    /// The settings.
    #[must_use]
    pub fn config(&self) -> &SamplerConfig {
        &self.config
    }

    /// Goes back to the start of the random sequence.
    pub fn restart(&mut self) {
        self.random = SplitMix64(self.config.seed);
    }

    /// Picks a token. One random number is drawn per call that succeeds with a temperature above 0.
    ///
    /// # Errors
    /// Logits that are empty, NaN, +∞ or all −∞. The random sequence does not move on.
    pub fn sample(&mut self, logits: &[f32]) -> Result<u32, SamplingError> {
        let best = greedy(logits)?;
        if self.config.temperature == 0.0 {
            return Ok(best.token);
        }
        self.candidates.clear();
        self.candidates.extend(logits.iter().zip(0u32..).map(|(&logit, token)| Candidate {
            // Zeros of both signs are equal logits, and the order must see them so.
            logit: logit + 0.0,
            token,
        }));
        self.keep_top_k();
        self.keep_top_p(best.logit);
        Ok(self.draw(best))
    }

    fn keep_top_k(&mut self) {
        let top_k = self.config.top_k as usize;
        if (1..self.candidates.len()).contains(&top_k) {
            self.candidates.select_nth_unstable_by(top_k - 1, Candidate::order);
            self.candidates.truncate(top_k);
            // Sums must not depend on the order that the selection left.
            self.candidates.sort_unstable_by(Candidate::order);
        }
    }

    /// Cuts the candidates to the fewest that have `top_p` of their probability.
    fn keep_top_p(&mut self, largest: f32) {
        if self.config.top_p >= 1.0 {
            return;
        }
        let weight = |candidate: &Candidate| (f64::from(candidate.logit) - f64::from(largest)).exp();
        let wanted = f64::from(self.config.top_p) * self.candidates.iter().map(weight).sum::<f64>();
        let mut collected = 0.0;
        let mut sorted = 0;
        // Mostly a few tokens have nearly all probability: sort a head that grows until it has enough.
        let mut head = 64;
        while sorted < self.candidates.len() {
            let rest = &mut self.candidates[sorted..];
            if head < rest.len() {
                rest.select_nth_unstable_by(head - 1, Candidate::order);
            }
            let take = head.min(rest.len());
            rest[..take].sort_unstable_by(Candidate::order);
            for candidate in &rest[..take] {
                collected += weight(candidate);
                sorted += 1;
                if collected >= wanted {
                    self.candidates.truncate(sorted);
                    return;
                }
            }
            head *= 4;
        }
    }

    fn draw(&mut self, best: Candidate) -> u32 {
        let temperature = f64::from(self.config.temperature);
        let weight = |candidate: &Candidate| ((f64::from(candidate.logit) - f64::from(best.logit)) / temperature).exp();
        let total: f64 = self.candidates.iter().map(weight).sum();
        let mut left = self.random.unit() * total;
        let mut last = best.token;
        for candidate in &self.candidates {
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

/// The largest logit, the lowest id of equals, after all were checked.
fn greedy(logits: &[f32]) -> Result<Candidate, SamplingError> {
    if logits.is_empty() {
        return Err(SamplingError::Empty);
    }
    if u32::try_from(logits.len()).is_err() {
        return Err(SamplingError::TooMany { logits: logits.len() });
    }
    let mut best = Candidate { logit: f32::NEG_INFINITY, token: 0 };
    for (&logit, token) in logits.iter().zip(0u32..) {
        if logit.is_nan() || logit == f32::INFINITY {
            return Err(SamplingError::BrokenLogit { token, logit });
        }
        if logit > best.logit {
            best = Candidate { logit, token };
        }
    }
    if best.logit == f32::NEG_INFINITY {
        return Err(SamplingError::AllMasked { logits: logits.len() });
    }
    Ok(best)
}

/// A counter and a mixing function (Steele, Lea and Flood, 2014).
///
/// Here and not from a crate because recorded games replay its sequence: it must never change with a dependency.
#[derive(Clone, Debug)]
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number from 0 to below 1, of 53 random bits.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampler(temperature: f32, top_k: u32, top_p: f32, seed: u64) -> Sampler {
        Sampler::new(SamplerConfig { temperature, top_k, top_p, seed }).expect("valid settings")
    }

    /// How often each of `logits` is drawn.
    fn frequencies(mut sampler: Sampler, logits: &[f32], draws: u32) -> Vec<f64> {
        let mut counts = vec![0u32; logits.len()];
        for _ in 0..draws {
            counts[sampler.sample(logits).expect("valid logits") as usize] += 1;
        }
        counts.into_iter().map(|count| f64::from(count) / f64::from(draws)).collect()
    }

    #[test]
    fn generator_gives_the_published_sequence() {
        let mut random = SplitMix64(1_234_567);
        assert_eq!([random.next(), random.next()], [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
    }

    #[test]
    fn greedy_takes_the_lowest_of_equals() {
        let mut greedy = sampler(0.0, 0, 1.0, 0);
        assert_eq!(greedy.sample(&[-1.0, 3.0, 2.0, 3.0]), Ok(1));
        assert_eq!(greedy.sample(&[-0.0, 0.0]), Ok(0));
        assert_eq!(greedy.sample(&[f32::NEG_INFINITY, f32::MIN]), Ok(1));
        let mut one = sampler(1.0, 1, 1.0, 9);
        for _ in 0..20 {
            assert_eq!(one.sample(&[-0.0, 0.0, -0.0]), Ok(0));
        }
    }

    #[test]
    fn settings_are_checked() {
        for temperature in [-0.1, f32::NAN, f32::INFINITY] {
            let config = SamplerConfig { temperature, ..SamplerConfig::default() };
            assert!(matches!(Sampler::new(config), Err(SamplingError::InvalidTemperature { .. })));
        }
        for top_p in [0.0, -0.0, -1.0, 1.1, f32::NAN, f32::INFINITY] {
            let config = SamplerConfig { top_p, ..SamplerConfig::default() };
            assert!(matches!(Sampler::new(config), Err(SamplingError::InvalidTopP { .. })));
        }
    }

    #[test]
    fn broken_logits_are_errors_and_do_not_move_the_sequence() {
        for temperature in [0.0, 1.0] {
            let mut tried = sampler(temperature, 0, 0.9, 5);
            assert_eq!(tried.sample(&[]), Err(SamplingError::Empty));
            assert!(matches!(tried.sample(&[0.0, f32::NAN]), Err(SamplingError::BrokenLogit { token: 1, .. })));
            assert!(matches!(tried.sample(&[f32::INFINITY, 0.0]), Err(SamplingError::BrokenLogit { token: 0, .. })));
            assert_eq!(tried.sample(&[f32::NEG_INFINITY; 3]), Err(SamplingError::AllMasked { logits: 3 }));
            let mut fresh = sampler(temperature, 0, 0.9, 5);
            for _ in 0..20 {
                assert_eq!(tried.sample(&[0.0; 8]), fresh.sample(&[0.0; 8]));
            }
        }
    }

    #[test]
    fn draws_follow_the_distribution() {
        let logits = [1.0f32, 2.0, 0.0, f32::NEG_INFINITY, 2.0];
        for temperature in [0.5f32, 1.0, 2.0] {
            let weights = logits.map(|logit| f64::from(logit / temperature).exp());
            let total: f64 = weights.iter().sum();
            let found = frequencies(sampler(temperature, 0, 1.0, 42), &logits, 100_000);
            for (found, weight) in found.iter().zip(weights) {
                // Six standard deviations.
                assert!((found - weight / total).abs() < 0.01, "{temperature}: {found} {}", weight / total);
            }
            assert_eq!(found[3], 0.0);
        }
    }

    #[test]
    fn cuts_keep_the_largest_and_the_lowest_ids_of_equals() {
        let logits = [0.0, 5.0, 4.0, 5.0, 4.0, 4.0];
        let kept = |top_k, top_p| {
            let found = frequencies(sampler(1.5, top_k, top_p, 3), &logits, 2000);
            found.iter().enumerate().filter(|(_, f)| **f > 0.0).map(|(i, _)| i).collect::<Vec<_>>()
        };
        assert_eq!(kept(1, 1.0), [1]);
        assert_eq!(kept(3, 1.0), [1, 2, 3]);
        assert_eq!(kept(0, 0.6), [1, 3]);
        assert_eq!(kept(0, 0.7), [1, 2, 3]);
        assert_eq!(kept(0, 1e-9), [1]);
        assert_eq!(kept(99, 1.0).len(), 6);
    }

    #[test]
    fn top_p_over_a_large_flat_vocabulary_keeps_its_share() {
        let logits = vec![0.25f32; 5000];
        let mut half = sampler(1.0, 0, 0.5, 7);
        let drawn: Vec<u32> = (0..4000).map(|_| half.sample(&logits).expect("valid logits")).collect();
        assert!(drawn.iter().all(|&token| token < 2500) && drawn.iter().any(|&token| token > 2400));
    }

    #[test]
    fn extreme_logits_and_temperatures_stay_sane() {
        assert_eq!(sampler(f32::MIN_POSITIVE, 0, 1.0, 1).sample(&[f32::MIN, 1.0, f32::MAX]), Ok(2));
        assert!(sampler(f32::MAX, 0, 1.0, 1).sample(&[f32::MIN, f32::MAX]).is_ok());
        assert_eq!(sampler(1e-30, 5, 0.5, 1).sample(&[1.0]), Ok(0));
    }

    #[test]
    fn seeds_repeat_and_clones_continue() {
        let logits: Vec<f32> = (0..100).map(|i| (i % 7) as f32).collect();
        let mut first = sampler(1.0, 50, 0.95, 11);
        let drawn: Vec<_> = (0..50).map(|_| first.sample(&logits)).collect();
        let mut copy = first.clone();
        assert_eq!(first.sample(&logits), copy.sample(&logits));
        first.restart();
        assert!(drawn.iter().all(|token| *token == first.sample(&logits)));
        let mut other = sampler(1.0, 50, 0.95, 12);
        assert!(drawn.iter().any(|token| *token != other.sample(&logits)));
    }

    #[test]
    fn nothing_is_allocated_after_the_first_call() {
        let logits: Vec<f32> = (0..4096).map(|i| (i as f32 * 0.37).sin() * 4.0).collect();
        for (temperature, top_k, top_p) in [(0.0, 0, 1.0), (1.0, 0, 1.0), (0.8, 40, 0.9), (0.8, 0, 0.9)] {
            let mut warm = sampler(temperature, top_k, top_p, 1);
            warm.sample(&logits).expect("valid logits");
            let info = allocation_counter::measure(|| {
                for _ in 0..20 {
                    warm.sample(&logits).expect("valid logits");
                }
            });
            assert_eq!(info.count_total, 0, "{temperature} {top_k} {top_p}");
        }
    }
}
