//! What a query has seen so far, and how scores of a tile of keys become weights.

use crate::{
    math::{exp, tanh},
    simd::Level,
    tensor::Row,
};

/// What ALiBi multiplies the mask of a head by.
pub(super) fn slope(max_bias: f32, head: usize, heads: usize) -> f32 {
    if max_bias == 0.0 {
        return 1.0;
    }
    let power = 1 << heads.ilog2();
    let (steps, of) = if head < power { (head + 1, power) } else { (2 * (head - power) + 1, 2 * power) };
    libm::exp2(-f64::from(max_bias) * steps as f64 / of as f64) as f32
}

/// Where a query stands, and what it has seen so far.
#[derive(Clone, Copy)]
pub(super) struct Query {
    pub(super) token: usize,
    pub(super) head: usize,
    pub(super) batch: usize,
    pub(super) slope: f32,
    /// Which of the masks of a tile is its own.
    pub(super) mask: usize,
    /// The largest score so far. NaN is passed over here and comes back with the sum.
    pub(super) max: f32,
    /// The weights so far, relative to that score.
    pub(super) sum: f64,
}

impl Query {
    pub(super) const NONE: Self =
        Self { token: 0, head: 0, batch: 0, slope: 1.0, mask: 0, max: f32::NEG_INFINITY, sum: 0.0 };

    pub(super) fn forget(&mut self) {
        (self.max, self.sum) = (f32::NEG_INFINITY, 0.0);
    }
}

/// Turns the scores of a tile of keys into weights, for all queries; gives what to multiply with what each gathered before. A mask of
/// minus infinity takes a key out, whatever its score is.
///
/// In two rounds, so that one query's arithmetic hides the latencies of another's.
#[inline(always)]
pub(super) fn take_in<L: Level, const K: usize>(
    level: L,
    queries: &mut [Query],
    scores: &mut [[f32; K]],
    masks: &[Masks<K>],
    (scale, softcap): (f32, f32),
    rescale: &mut [f32],
) {
    for ((query, scores), rescale) in queries.iter_mut().zip(&mut *scores).zip(&mut *rescale) {
        let masks = &masks[query.mask];
        *rescale = 1.0;
        if masks.is_out {
            continue;
        }
        let mut scale = scale;
        if softcap != 0.0 {
            for score in scores.iter_mut() {
                *score = softcap * tanh(*score * scale / softcap);
            }
            scale = 1.0;
        }
        let mask = (!masks.is_zero).then_some((&masks.values[..], query.slope));
        let max = level.mask_scores(scores, scale, mask, query.max);
        if max > query.max {
            *rescale = exp(query.max - max);
            query.max = max;
        }
    }
    for ((query, scores), rescale) in queries.iter_mut().zip(scores).zip(&*rescale) {
        if masks[query.mask].is_out {
            scores.fill(0.0);
            continue;
        }
        // Anything finite will do where all scores are minus infinity.
        let reference = if query.max == f32::NEG_INFINITY { 0.0 } else { query.max };
        let sum = level.weigh_scores(scores, reference);
        query.sum = query.sum * f64::from(*rescale) + f64::from(sum);
    }
}

/// The masks of a tile of keys for one token.
#[derive(Clone, Copy)]
pub(super) struct Masks<const K: usize> {
    pub(super) values: [f32; K],
    /// Whether no key is taken out and nothing is added.
    is_zero: bool,
    /// Whether all keys are taken out.
    pub(super) is_out: bool,
    /// Keys up to the last that is not taken out.
    pub(super) seen: usize,
    /// Whether any key is taken out, or a tile has fewer.
    pub(super) any_out: bool,
}

impl<const K: usize> Masks<K> {
    pub(super) const NONE: Self = Self { values: [0.0; K], is_zero: true, is_out: false, seen: K, any_out: false };

    /// The masks of `count` keys from `first` on; keys beyond them do not exist.
    #[inline(always)]
    pub(super) fn load<L: Level>(&mut self, level: L, row: Option<&Row>, first: usize, count: usize) {
        // SAFETY: no step writes an operand while it runs, and the result lies elsewhere.
        let halves = row.and_then(|row| unsafe { row.halves(first, count) });
        if halves.is_some_and(is_out) {
            (self.is_zero, self.is_out, self.seen, self.any_out) = (false, true, 0, true);
            self.values = [f32::NEG_INFINITY; K];
            return;
        }
        match (row, halves) {
            (_, Some(halves)) => level.decode_f16(halves, &mut self.values[..count]),
            (Some(row), None) => row.load(level, first, &mut self.values[..count]),
            (None, None) => self.values[..count].fill(0.0),
        }
        self.values[count..].fill(f32::NEG_INFINITY);
        let (mut zeros, mut outs) = (0_u32, 0_u32);
        for &mask in &self.values {
            zeros += u32::from(mask == 0.0);
            outs += u32::from(mask == f32::NEG_INFINITY);
        }
        self.is_zero = zeros as usize == K;
        self.is_out = outs as usize == K;
        self.any_out = outs > 0;
        self.seen = match self.any_out {
            true => self.values.iter().rposition(|&mask| mask != f32::NEG_INFINITY).map_or(0, |last| last + 1),
            false => K,
        };
    }
}

/// Whether f16 are all minus infinity.
#[inline(always)]
pub(super) fn is_out(halves: &[u8]) -> bool {
    let mut others = 0;
    for half in halves.as_chunks::<2>().0 {
        others |= u16::from_le_bytes(*half) ^ 0xfc00;
    }
    others == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slopes_are_those_of_the_paper() {
        let eight: Vec<f32> = (0..8).map(|head| slope(8.0, head, 8)).collect();
        assert_eq!(eight, [0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625]);
        // Twelve heads: those of eight, then every other one of sixteen.
        let twelve: Vec<f32> = (8..12).map(|head| slope(8.0, head, 12)).collect();
        assert_eq!(twelve, [-0.5_f32, -1.5, -2.5, -3.5].map(f32::exp2));
        assert_eq!(slope(0.0, 3, 7), 1.0);
        assert!(slope(126.0, 63, 64).is_normal());
    }
}
