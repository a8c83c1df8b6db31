//! A prompt of the real model is cancelled by another thread, and the same session goes on.
//!
//! Needs the model file named by `ENTENSOR_MODEL`; says so loudly when it is not there.

mod real_model;

use std::{
    thread,
    time::{Duration, Instant},
};

use entensor::{CancelToken, EngineError};
use entensor_models::{ModelError, Session, SessionConfig};
use real_model::{load, say};

const PROMPT_TOKENS: u32 = 450;

#[test]
fn a_session_goes_on_after_a_cancelled_prompt() {
    for threads in [1, 2] {
        let Some((mut engine, model)) = load(&format!("cpu:threads={threads}")) else { return };
        let config = SessionConfig { context: 2048, micro_batch: 128, ..SessionConfig::default() };
        let prompt: Vec<u32> = (0..PROMPT_TOKENS).map(|i| 1000 + i * 37 % 4000).collect();
        let mut whole = Session::new(&mut engine, &model, config).expect("a small cache");
        let start = Instant::now();
        whole.feed(&mut engine, &model, &prompt).expect("the prompt runs");
        let time = start.elapsed();
        let expected = whole.logits().to_vec();
        whole.remove(&mut engine);

        let mut session = Session::new(&mut engine, &model, config).expect("a small cache");
        let mut cancelled = 0;
        // At a tenth of the prompt's time, and later.
        for tenths in [1, 4, 7] {
            let token = CancelToken::new();
            session.set_cancel_token(Some(token.clone()));
            let (result, late) = thread::scope(|scope| {
                let timer = scope.spawn(move || {
                    thread::sleep(time * tenths / 10);
                    token.cancel();
                    Instant::now()
                });
                let result = session.feed(&mut engine, &model, &prompt);
                let end = Instant::now();
                (result, end.saturating_duration_since(timer.join().expect("it sleeps")))
            });
            match result {
                Ok(()) => assert_eq!(session.logits(), expected),
                Err(error) => {
                    assert!(matches!(error, ModelError::Engine(EngineError::Cancelled { .. })), "{error}");
                    say(&format!("{threads} threads: back {:.2} ms after cancel()", late.as_secs_f64() * 1e3));
                    cancelled += 1;
                    assert!(session.logits().is_empty());
                    let kept = session.position();
                    assert!(kept < PROMPT_TOKENS && kept.is_multiple_of(128), "{kept} tokens were kept");
                    let again = session.feed(&mut engine, &model, &prompt[kept as usize..]);
                    assert!(matches!(again, Err(ModelError::Engine(EngineError::Cancelled { .. }))), "still cancelled");
                    assert_eq!(session.position(), kept);
                    // The rest, and the same as a whole from the start.
                    session.set_cancel_token(None);
                    session.feed(&mut engine, &model, &prompt[kept as usize..]).expect("the rest runs");
                    assert_eq!(session.position(), PROMPT_TOKENS);
                    assert!(session.logits() == expected, "the same bits as without a cancel");
                }
            }
            session.truncate(0);
            assert!(late < Duration::from_secs(5), "{late:?}");
        }
        assert!(cancelled > 0, "every prompt was done before its cancel");
        session.set_cancel_token(None);
        session.feed(&mut engine, &model, &prompt).expect("the prompt runs");
        assert!(session.logits() == expected);
    }
}
