//! The last tokens of a text, which the repetition penalty is about.

/// More is not reserved before it is used.
const RESERVED: usize = 1 << 16;

/// The last so many tokens.
#[derive(Clone, Debug)]
pub(super) struct History {
    limit: usize,
    tokens: Vec<u32>,
    /// Where the oldest one stands once there are `limit`.
    oldest: usize,
}

impl History {
    pub(super) fn new(limit: u32) -> Self {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        Self { limit, tokens: Vec::with_capacity(limit.min(RESERVED)), oldest: 0 }
    }

    pub(super) fn clear(&mut self) {
        self.tokens.clear();
        self.oldest = 0;
    }

    pub(super) fn push(&mut self, token: u32) {
        if self.tokens.len() < self.limit {
            self.tokens.push(token);
        } else if let Some(oldest) = self.tokens.get_mut(self.oldest) {
            *oldest = token;
            self.oldest = (self.oldest + 1) % self.limit;
        }
    }

    /// The tokens, in no order; one that occurred twice is there twice.
    pub(super) fn tokens(&self) -> &[u32] {
        &self.tokens
    }
}

/// Makes a token that occurred before less likely: a positive logit is divided, another one multiplied.
pub(super) fn penalized(logit: f32, penalty: f32) -> f32 {
    if logit == f32::NEG_INFINITY {
        return logit;
    }
    let changed = if logit > 0.0 { logit / penalty } else { logit * penalty };
    // A penalty below 1 is a reward, and must not make infinities.
    changed.clamp(f32::MIN, f32::MAX)
}
