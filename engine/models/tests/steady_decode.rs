//! A long decode loop: one plan for every position, no heap allocations on the plan-and-compute path, bounded memory.
//!
//! Needs the model file named by `ENTENSOR_MODEL`; says so loudly when it is not there. One test alone in its process, since it
//! counts allocations and reads the peak of resident memory.

mod counting;
mod real_model;

use counting::allocations;
use entensor_models::{Session, SessionConfig};
use real_model::{argmax, load, say};

#[test]
fn six_hundred_tokens_plan_once_and_allocate_nothing() {
    let Some((mut engine, model)) = load("cpu:threads=2") else { return };
    let mut session = Session::new(&mut engine, &model, SessionConfig::default()).expect("a small cache");
    let prompt = model.tokenizer().encode("Once upon a time", true).expect("plain text");
    session.feed(&mut engine, &model, &prompt).expect("the prompt runs");
    let before = engine.counters();
    let mut steady = (0_u64, 0_u64, 0_u64);
    for _ in 0..600 {
        let next = argmax(session.logits());
        let planned = engine.counters().planned;
        let before_token = allocations();
        session.feed(&mut engine, &model, &[next]).expect("a token runs");
        let made = allocations() - before_token;
        // The first token plans, and the next warm up; the others are steady.
        if engine.counters().planned == planned && session.position() > 8 {
            steady = (steady.0 + 1, steady.1 + made, steady.2.max(made));
        }
    }
    let after = engine.counters();
    let plans = after.planned - before.planned;
    say(&format!(
        "600 tokens: {plans} plans, {} steady tokens, {} allocations, {} at most",
        steady.0, steady.1, steady.2
    ));
    assert_eq!(plans, 1, "how many rows of the cache are in use is data");
    assert!(steady.0 > 590);
    assert!(steady.2 <= 2, "{} allocations in one steady token", steady.2);

    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let Some(peak) = peak.and_then(|p| p.trim().trim_end_matches("kB").trim().parse::<u64>().ok()) else {
        say("SKIPPED the memory check: this system does not say how much memory the process took at most");
        return;
    };
    let file_bytes = model.file().mapping().len() as u64;
    let budget = file_bytes + 150 * 1_000_000;
    say(&format!("peak resident memory {} MB, file {} MB", peak * 1024 / 1_000_000, file_bytes / 1_000_000));
    assert!(peak * 1024 <= budget, "{peak} kB resident");
}
