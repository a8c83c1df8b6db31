//! Samplers against distributions worked out by hand, and what holds for all of them.

use proptest::prelude::*;

use super::*;

fn sampler(temperature: f32, top_k: u32, top_p: f32, seed: u64) -> Sampler {
    Sampler::new(SamplerConfig { temperature, top_k, top_p, seed, ..SamplerConfig::default() }).expect("valid settings")
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
    for share in [-1.0, 1.1, f32::NAN, f32::INFINITY] {
        let config = SamplerConfig { min_p: share, ..SamplerConfig::default() };
        assert!(matches!(Sampler::new(config), Err(SamplingError::InvalidMinP { .. })));
        let config = SamplerConfig { tail_free: share, ..SamplerConfig::default() };
        assert!(matches!(Sampler::new(config), Err(SamplingError::InvalidTailFree { .. })));
    }
    for repeat_penalty in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let config = SamplerConfig { repeat_penalty, ..SamplerConfig::default() };
        assert!(matches!(Sampler::new(config), Err(SamplingError::InvalidRepeatPenalty { .. })));
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
    let plain = SamplerConfig { temperature: 0.8, ..SamplerConfig::default() };
    for config in [
        SamplerConfig::default(),
        plain,
        SamplerConfig { top_k: 40, top_p: 0.9, ..plain },
        SamplerConfig { top_p: 0.9, ..plain },
        SamplerConfig { tail_free: 0.9, min_p: 0.05, ..plain },
        SamplerConfig { repeat_penalty: 1.1, repeat_last_n: 10, ..plain },
        SamplerConfig { repeat_penalty: 1.1, repeat_last_n: 1000, ..SamplerConfig::default() },
    ] {
        let mut warm = Sampler::new(config).expect("valid settings");
        warm.sample(&logits).expect("valid logits");
        let info = allocation_counter::measure(|| {
            for _ in 0..20 {
                warm.sample(&logits).expect("valid logits");
            }
        });
        assert_eq!(info.count_total, 0, "{config:?}");
    }
}

/// The tokens that are drawn at all, and how often.
fn drawn(config: SamplerConfig, probabilities: &[f64]) -> Vec<(usize, f64)> {
    let logits: Vec<f32> = probabilities.iter().map(|p| p.ln() as f32).collect();
    let config = SamplerConfig { temperature: 1.0, ..config };
    let found = frequencies(Sampler::new(config).expect("valid settings"), &logits, 40_000);
    found.into_iter().enumerate().filter(|(_, f)| *f > 0.0).collect()
}

fn kept(config: SamplerConfig, probabilities: &[f64]) -> Vec<usize> {
    drawn(config, probabilities).into_iter().map(|(token, _)| token).collect()
}

#[test]
fn min_p_keeps_what_is_likely_compared_with_the_likeliest() {
    let probabilities = [0.05, 0.4, 0.19, 0.21, 0.15];
    let min_p = |min_p| SamplerConfig { min_p, ..SamplerConfig::default() };
    assert_eq!(kept(min_p(0.0), &probabilities).len(), 5);
    assert_eq!(kept(min_p(0.2), &probabilities), [1, 2, 3, 4]);
    assert_eq!(kept(min_p(0.5), &probabilities), [1, 3]);
    assert_eq!(kept(min_p(1.0), &probabilities), [1]);
    assert_eq!(kept(min_p(1.0), &[0.25; 4]), [0, 1, 2, 3]);
    // What is left keeps its proportions: 0.4 of 0.61.
    let found = drawn(min_p(0.5), &probabilities);
    assert!((found[0].1 - 0.4 / 0.61).abs() < 0.015, "{found:?}");
    // It looks at the model's distribution, whatever the temperature.
    let hot = SamplerConfig { temperature: 100.0, min_p: 0.5, ..SamplerConfig::default() };
    let logits = probabilities.map(|p| p.ln() as f32);
    let found = frequencies(Sampler::new(hot).expect("valid settings"), &logits, 2000);
    assert!(found[1] > 0.4 && found[3] > 0.4, "{found:?}");
}

/// p = 0.5, 0.25, 0.125, 0.0625, 0.0625: curvatures 0.125, 0.0625, 0.0625; shares of all 0.5, 0.75, 1.
#[test]
fn tail_free_keeps_what_is_before_the_tail() {
    let probabilities = [0.0625, 0.5, 0.125, 0.25, 0.0625];
    let tail_free = |tail_free| SamplerConfig { tail_free, ..SamplerConfig::default() };
    assert_eq!(kept(tail_free(1.0), &probabilities).len(), 5);
    assert_eq!(kept(tail_free(0.9), &probabilities), [1, 2, 3]);
    assert_eq!(kept(tail_free(0.7), &probabilities), [1, 3]);
    assert_eq!(kept(tail_free(0.4), &probabilities), [1]);
    assert_eq!(kept(tail_free(1e-6), &probabilities), [1]);
    // No curve, no tail.
    assert_eq!(kept(tail_free(0.1), &[0.25; 4]).len(), 4);
    assert_eq!(kept(tail_free(0.1), &[0.9, 0.1]).len(), 2);
}

/// The order is top-k, tail-free, top-p, min-p: each looks at what the one before left.
#[test]
fn cuts_follow_each_other() {
    let probabilities = [0.4, 0.3, 0.2, 0.1];
    // Of the two that top-k leaves, the first has 0.57.
    let config = SamplerConfig { top_k: 2, top_p: 0.55, ..SamplerConfig::default() };
    assert_eq!(kept(config, &probabilities), [0]);
    let config = SamplerConfig { top_p: 0.55, ..SamplerConfig::default() };
    assert_eq!(kept(config, &probabilities), [0, 1]);
    // Curvatures 0 and 0.2: tail-free leaves two, of which the first has more than 0.6. Of all it has less.
    let probabilities = [0.5, 0.3, 0.1, 0.1];
    let config = SamplerConfig { tail_free: 0.1, ..SamplerConfig::default() };
    assert_eq!(kept(config, &probabilities).len(), 2);
    assert_eq!(kept(SamplerConfig { top_k: 2, ..config }, &probabilities).len(), 2);
    assert_eq!(kept(SamplerConfig { top_p: 0.6, ..config }, &probabilities).len(), 1);
}

#[test]
fn repeated_tokens_are_penalized_once_and_for_as_long_as_asked() {
    let config = SamplerConfig { repeat_penalty: 2.0, repeat_last_n: 2, ..SamplerConfig::default() };
    let mut sampler = Sampler::new(config).expect("valid settings");
    let logits = [3.0, 2.0, 1.6, -1.0];
    // 0 first; then 3/2 is below 2; then 2/2 as well; then 0 is forgotten.
    assert_eq!([(); 4].map(|()| sampler.sample(&logits)), [Ok(0), Ok(1), Ok(2), Ok(0)]);
    sampler.restart();
    sampler.accept(&[0, 0]);
    assert_eq!(sampler.sample(&[3.0, 0.8]), Ok(0), "3 / 2, not 3 / 4");
    // Negative logits are multiplied: -1 becomes -2.
    sampler.restart();
    sampler.accept(&[0]);
    assert_eq!(sampler.sample(&[-1.0, -1.5]), Ok(1));
    // Ids that the logits do not have are nobody's.
    sampler.accept(&[u32::MAX, 7]);
    assert_eq!(sampler.sample(&[0.0, 1.0]), Ok(1));
    let off = SamplerConfig { repeat_last_n: 0, ..config };
    let mut off = Sampler::new(off).expect("valid settings");
    off.accept(&[0]);
    assert_eq!(off.sample(&[1.0, 0.9]), Ok(0));
    let mut reward = Sampler::new(SamplerConfig { repeat_penalty: 1e-30, ..config }).expect("valid settings");
    reward.accept(&[1]);
    assert_eq!(reward.sample(&[f32::MAX / 2.0, 1e20, f32::NEG_INFINITY]), Ok(1), "no infinity");
}

#[test]
fn clones_and_restarts_remember_and_forget_what_occurred() {
    let config = SamplerConfig { temperature: 0.7, repeat_penalty: 1.3, seed: 5, ..SamplerConfig::default() };
    let logits: Vec<f32> = (0..40).map(|i| (i % 9) as f32 / 3.0).collect();
    let mut first = Sampler::new(config).expect("valid settings");
    let drawn: Vec<_> = (0..30).map(|_| first.sample(&logits)).collect();
    let mut copy = first.clone();
    assert_eq!([(); 20].map(|()| first.sample(&logits)), [(); 20].map(|()| copy.sample(&logits)));
    first.restart();
    assert!(drawn.iter().all(|token| *token == first.sample(&logits)));
}

prop_compose! {
    fn any_config()(
        repeat_penalty in 0.2_f32..3.0,
        repeat_last_n in 0..6_u32,
        top_k in 0..20_u32,
        tail_free in prop_oneof![Just(1.0), 0.001_f32..1.0],
        top_p in prop_oneof![Just(1.0), 0.001_f32..1.0],
        min_p in prop_oneof![Just(0.0), 0.0_f32..=1.0],
        temperature in prop_oneof![Just(0.0), 0.01_f32..5.0],
        seed: u64,
    ) -> SamplerConfig {
        SamplerConfig { repeat_penalty, repeat_last_n, top_k, tail_free, top_p, min_p, temperature, seed }
    }
}

proptest! {
    /// There is always a token to pick, the likeliest may always be picked, nothing likelier than what stays was cut, and masked
    /// tokens are never picked.
    #[test]
    fn cuts_are_never_empty_and_never_unfair(
        config in any_config(),
        logits in prop::collection::vec(prop_oneof![8 => -20.0_f32..20.0, 1 => Just(f32::NEG_INFINITY), 1 => Just(0.5_f32)], 1..200),
    ) {
        prop_assume!(logits.iter().any(|logit| logit.is_finite()));
        let mut sampler = Sampler::new(config).expect("valid settings");
        for _ in 0..8 {
            let token = sampler.sample(&logits).expect("valid logits");
            prop_assert!(logits[token as usize].is_finite());
            if config.temperature == 0.0 {
                continue;
            }
            let kept = sampler.candidates.as_slice();
            prop_assert!(!kept.is_empty() && kept.iter().any(|candidate| candidate.token == token));
            if config.top_k > 0 {
                prop_assert!(kept.len() <= config.top_k as usize);
            }
            let least = kept.iter().map(|candidate| candidate.logit).fold(f32::INFINITY, f32::min);
            let judged = |id: usize| match config.repeat_penalty == 1.0 || config.repeat_last_n == 0 {
                true => logits[id],
                false => sampler.penalized[id],
            };
            for id in 0..logits.len() {
                let stays = kept.iter().any(|candidate| candidate.token as usize == id);
                prop_assert!(stays || judged(id) <= least, "{} was cut, {} stays", judged(id), least);
            }
        }
    }

    /// Without cuts and penalty, frequencies are those of the softmax.
    #[test]
    fn draws_follow_the_softmax(logits in prop::collection::vec(-2.0_f32..2.0, 2..6), seed: u64) {
        let config = SamplerConfig { temperature: 1.0, seed, ..SamplerConfig::default() };
        let found = frequencies(Sampler::new(config).expect("valid settings"), &logits, 4000);
        let total: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
        for (found, &logit) in found.iter().zip(&logits) {
            // Seven standard deviations.
            prop_assert!((found - f64::from(logit).exp() / total).abs() < 0.056);
        }
    }
}
