//! Picking the next token from a row of logits, and ending a text at a string.
//!
//! **The chain**, in this order; every part is off by default:
//!
//! | part | setting | what it does | source |
//! |---|---|---|---|
//! | repetition penalty | `repeat_penalty`, `repeat_last_n` | tokens among the last ones: a positive logit is divided, another multiplied | Keskar et al. 2019, arXiv:1909.05858, with the rule for negative logits that is usual since |
//! | top-k | `top_k` | only the so many likeliest stay | Fan et al. 2018, arXiv:1805.04833 |
//! | tail-free | `tail_free` | only the tokens before the curve of sorted probabilities flattens stay | Bricken 2019, "Tail Free Sampling" |
//! | top-p | `top_p` | the fewest likeliest stay that have so much of the probability | Holtzman et al. 2019, arXiv:1904.09751 |
//! | min-p | `min_p` | tokens stay that are so likely compared with the likeliest | Nguyen et al. 2024, arXiv:2407.01082 |
//! | temperature | `temperature` | divides the logits that are left | |
//! | draw | `seed` | one random number picks | |
//!
//! The cuts look at the model's own distribution (after the penalty), each at what the one before it left, and temperature reshapes
//! what is left in the end. Temperature 0 takes the largest logit after the penalty, the lowest id of equals. No cut takes the
//! likeliest token away. In the tail-free cut, the curvature at the `i`-th likeliest token is `abs(p[i] - 2 p[i+1] + p[i+2])`, and a
//! token stays if the curvature of all likelier ones is at most `tail_free` of the curvature of all.
//!
//! [`StopStrings`] ends a text at a string, whatever tokens it is made of.
//!
//! **Determinism.** The same logits, settings and seed give the same tokens, call by call. Ties are ordered by id, sums run in one
//! fixed order in double precision, and the generator is part of this module. A clone continues like its original, which is how a
//! simulation that is rolled back gets the same words again.
//!
//! **Cost.** Greedy: one pass. Otherwise one pass and a partial sort of what survives; with `top_k` 0 and `top_p` below 1 the sort
//! stops as soon as enough probability is collected, with `tail_free` it is a full one. A penalty copies the logits. Nothing is allocated
//! after the first call with a vocabulary of that size.

mod candidates;
mod history;
mod random;
mod stop;

#[cfg(test)]
mod tests;

pub use stop::{StopError, StopStrings};

use candidates::{Candidate, Candidates};
use history::{History, penalized};
use random::SplitMix64;

/// How to pick tokens. The default is greedy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplerConfig {
    /// Logits of tokens that occurred are divided by this if they are positive, else multiplied; 1 changes nothing.
    pub repeat_penalty: f32,
    /// How many of the last tokens the penalty is about; 0 for none.
    pub repeat_last_n: u32,
    /// Only the so many largest logits stay; 0 keeps all.
    pub top_k: u32,
    /// Only tokens before the tail stay, where this much of the curvature lies; 1 keeps all.
    pub tail_free: f32,
    /// Only the fewest largest logits stay that together have this probability; 1 keeps all.
    pub top_p: f32,
    /// Only tokens stay that are this likely compared with the likeliest; 0 keeps all.
    pub min_p: f32,
    /// 0 takes the largest logit; 1 keeps the model's distribution; more flattens it.
    pub temperature: f32,
    /// Where the random sequence starts.
    pub seed: u64,
}

impl Default for SamplerConfig {
    fn default() -> Self {
        Self {
            repeat_penalty: 1.0,
            repeat_last_n: 64,
            top_k: 0,
            tail_free: 1.0,
            top_p: 1.0,
            min_p: 0.0,
            temperature: 0.0,
            seed: 0,
        }
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
    /// A `min_p` that is no probability.
    #[error("min_p is {min_p}; it must be from 0 to 1 (0 keeps all tokens)")]
    InvalidMinP {
        /// The setting.
        min_p: f32,
    },
    /// A `tail_free` that is no share.
    #[error("tail_free is {tail_free}; it must be above 0 and at most 1 (1 keeps all tokens)")]
    InvalidTailFree {
        /// The setting.
        tail_free: f32,
    },
    /// A penalty that is not positive or not finite.
    #[error("the repetition penalty is {repeat_penalty}; it must be a finite number above 0 (1 changes nothing)")]
    InvalidRepeatPenalty {
        /// The setting.
        repeat_penalty: f32,
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
    history: History,
    /// Logits after the penalty.
    penalized: Vec<f32>,
    candidates: Candidates,
}

impl Sampler {
    /// A sampler with these settings, at the start of its random sequence.
    ///
    /// # Errors
    /// The variants of [`SamplingError`] that begin with `Invalid`.
    pub fn new(config: SamplerConfig) -> Result<Self, SamplingError> {
        let SamplerConfig { temperature, top_p, min_p, tail_free, repeat_penalty, seed, .. } = config;
        if !temperature.is_finite() || temperature < 0.0 {
            return Err(SamplingError::InvalidTemperature { temperature });
        }
        // Written so that NaN fails.
        if !(top_p > 0.0 && top_p <= 1.0) {
            return Err(SamplingError::InvalidTopP { top_p });
        }
        if !(0.0..=1.0).contains(&min_p) {
            return Err(SamplingError::InvalidMinP { min_p });
        }
        if !(tail_free > 0.0 && tail_free <= 1.0) {
            return Err(SamplingError::InvalidTailFree { tail_free });
        }
        if !(repeat_penalty > 0.0 && repeat_penalty.is_finite()) {
            return Err(SamplingError::InvalidRepeatPenalty { repeat_penalty });
        }
        let penalizes = repeat_penalty != 1.0 && config.repeat_last_n > 0;
        Ok(Self {
            config,
            random: SplitMix64(seed),
            history: History::new(if penalizes { config.repeat_last_n } else { 0 }),
            penalized: Vec::new(),
            candidates: Candidates::default(),
        })
    }

    /// The settings.
    #[must_use]
    pub fn config(&self) -> &SamplerConfig {
        &self.config
    }

    /// Goes back to the start of the random sequence, and forgets the tokens that occurred.
    pub fn restart(&mut self) {
        self.random = SplitMix64(self.config.seed);
        self.history.clear();
    }

    /// Tells of tokens that occurred but were not picked here, such as those of a prompt, for the repetition penalty.
    pub fn accept(&mut self, tokens: &[u32]) {
        tokens.iter().for_each(|&token| self.history.push(token));
    }

    /// Picks a token, which counts as one that occurred. One random number is drawn per call that succeeds with a temperature
    /// above 0.
    ///
    /// # Errors
    /// Logits that are empty, NaN, +∞ or all −∞. The random sequence does not move on.
    pub fn sample(&mut self, logits: &[f32]) -> Result<u32, SamplingError> {
        let token = self.pick(logits)?;
        self.history.push(token);
        Ok(token)
    }

    fn pick(&mut self, logits: &[f32]) -> Result<u32, SamplingError> {
        let config = self.config;
        let mut best = greedy(logits)?;
        let mut logits = logits;
        if config.repeat_penalty != 1.0 && config.repeat_last_n > 0 {
            self.penalized.clear();
            self.penalized.extend_from_slice(logits);
            for &token in self.history.tokens() {
                // From the model's logit: a token that occurred twice is penalized once.
                if let Some((changed, &logit)) = self.penalized.get_mut(token as usize).zip(logits.get(token as usize))
                {
                    *changed = penalized(logit, config.repeat_penalty);
                }
            }
            logits = &self.penalized;
            best = greedy(logits)?;
        }
        if config.temperature == 0.0 {
            return Ok(best.token);
        }
        self.candidates.fill(logits, best.logit);
        self.candidates.keep_top_k(config.top_k);
        self.candidates.keep_tail_free(config.tail_free);
        self.candidates.keep_top_p(config.top_p);
        self.candidates.keep_min_p(config.min_p);
        Ok(self.candidates.draw(config.temperature, self.random.unit(), best.token))
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
