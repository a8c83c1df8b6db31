//! The real model against recorded outputs: logits of every position, and greedy continuations.
//!
//! Needs the model file named by `ENTENSOR_MODEL`; says so loudly when it is not there.

mod real_model;

use std::collections::HashMap;

use entensor_models::{Logits, Session, SessionConfig};
use real_model::{argmax, load, reference, say};

/// Differences from the truth, over all positions of all cases.
#[derive(Default)]
struct Differences {
    positions: usize,
    sum: f64,
    worst: f64,
    clear_margins: usize,
    lost: usize,
}

#[test]
fn logits_are_close_to_the_unquantized_network() {
    let Some((mut engine, model)) = load("cpu:threads=2") else { return };
    let mut total = Differences::default();
    for case in reference("f32") {
        let mut session = Session::new(&mut engine, &model, SessionConfig::default()).expect("a small cache");
        let mut at = 0;
        session
            .feed_with(&mut engine, &model, &case.prompt_ids, Logits::All, |position, logits| {
                assert_eq!(position as usize, at);
                let truth = &case.positions[at];
                compare(logits, truth, &mut total);
                at += 1;
            })
            .expect("the prompt runs");
        assert_eq!(at, case.prompt_ids.len());
        session.remove(&mut engine);
    }
    let mean = total.sum / total.positions as f64;
    say(&format!(
        "{} positions: log-probability of the top token differs by {mean:.4} on average, {:.4} at most; \
         {} of {} clear winners kept",
        total.positions,
        total.worst,
        total.clear_margins - total.lost,
        total.clear_margins
    ));
    assert!(total.positions > 300, "the reference is complete");
    assert!(mean <= 0.06, "mean difference {mean}");
    assert!(total.worst <= 0.5, "worst difference {}", total.worst);
    assert_eq!(total.lost, 0, "a top token with a margin of 0.5 or more lost its rank");
}

fn compare(logits: &[f32], truth: &real_model::Position, total: &mut Differences) {
    let (top, top_logit) = truth.top[0];
    let largest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let logsumexp = largest + logits.iter().map(|&l| (f64::from(l) - largest).exp()).sum::<f64>().ln();
    let ours = f64::from(logits[top as usize]) - logsumexp;
    let difference = (ours - (top_logit - truth.logsumexp)).abs();
    total.positions += 1;
    total.sum += difference;
    total.worst = total.worst.max(difference);
    if top_logit - truth.top[1].1 >= 0.5 {
        total.clear_margins += 1;
        total.lost += usize::from(argmax(logits) != top);
    }
}

#[test]
fn greedy_continuations_are_those_recorded() {
    let Some((mut engine, model)) = load("cpu:threads=2") else { return };
    let mut checked = 0;
    for case in reference("f32") {
        let count = case.greedy_must_match;
        if count == 0 {
            continue;
        }
        let ids = greedy(&mut engine, &model, &case.prompt_ids, count);
        assert_eq!(ids, case.generated_ids[..count], "case {}", case.name);
        checked += 1;
    }
    assert!(checked >= 2, "the reference has cases that must match");
    let ids = model.tokenizer().encode("The capital of France is", true).expect("plain text");
    let next = greedy(&mut engine, &model, &ids, 2);
    assert_eq!(model.tokenizer().decode(&next).expect("known ids"), " Paris.");
}

#[test]
fn one_and_two_threads_give_the_same_bits() {
    let mut by_threads = HashMap::new();
    for threads in [1, 2] {
        let Some((mut engine, model)) = load(&format!("cpu:threads={threads}")) else { return };
        let case = &reference("f32")[1];
        let mut session = Session::new(&mut engine, &model, SessionConfig::default()).expect("a small cache");
        session.feed(&mut engine, &model, &case.prompt_ids).expect("the prompt runs");
        let mut bits: Vec<u32> = session.logits().iter().map(|l| l.to_bits()).collect();
        for id in [10, 20, 30] {
            session.feed(&mut engine, &model, &[id]).expect("a token runs");
            bits.extend(session.logits().iter().map(|l| l.to_bits()));
        }
        by_threads.insert(threads, bits);
    }
    assert!(by_threads[&1] == by_threads[&2], "results depend on the number of threads");
}

fn greedy(
    engine: &mut entensor::Engine,
    model: &entensor_models::LanguageModel,
    prompt: &[u32],
    count: usize,
) -> Vec<u32> {
    let mut session = Session::new(engine, model, SessionConfig::default()).expect("a small cache");
    session.feed(engine, model, prompt).expect("the prompt runs");
    let mut ids = Vec::new();
    while ids.len() < count {
        let next = argmax(session.logits());
        ids.push(next);
        session.feed(engine, model, &[next]).expect("a token runs");
    }
    session.remove(engine);
    ids
}
