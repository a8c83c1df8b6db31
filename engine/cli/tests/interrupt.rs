//! Ctrl-C: a real SIGINT to a real process, in every state that `run` can be in.
#![cfg(unix)]

mod common;

use std::{
    io::{Read, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use common::{End, Files, Tiny};
use serde_json::Value;

/// What a command has to be done within of its signal: far above what it takes, so that a busy machine fails nothing.
const PATIENCE: Duration = Duration::from_secs(5);

/// A line that is seen: `eprintln!` in a test that passes is not.
fn say(line: &str) {
    writeln!(std::io::stderr(), "{line}").expect("standard error is open");
}

fn start(model: &Path, args: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_entensor"));
    command.arg("run").arg(model).args(args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("the command starts")
}

fn interrupt(child: &Child) {
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill is there");
    assert!(sent.success(), "the process was gone already");
}

/// How a command ended after its signal: exit status, what else it printed, and how long it took.
fn finish(mut child: Child, interrupted: Instant) -> (Option<i32>, String, Duration) {
    drop(child.stdin.take());
    let mut text = String::new();
    child.stdout.take().expect("piped").read_to_string(&mut text).expect("text is UTF-8");
    let status = child.wait().expect("it ends");
    (status.code(), text, interrupted.elapsed())
}

fn tiny(files: &Files) -> PathBuf {
    let chat_template = Some("{% for message in messages %}{{ message.content }}{% endfor %}");
    files.write("tiny.gguf", Tiny { chat_template, end: End::Never, ..Tiny::default() }.build())
}

/// Interrupts a command whose result is one JSON object, later and later until the signal falls into its work.
fn report_of(what: &str, model: &Path, args: &[&str]) -> Value {
    for attempt in 0..8 {
        let child = start(model, args);
        thread::sleep(Duration::from_millis(200 << attempt));
        let interrupted = Instant::now();
        interrupt(&child);
        let (code, text, took) = finish(child, interrupted);
        // Before there is anything to keep, the command ends at once; before it has started, the system ends it.
        if let Ok(report) = serde_json::from_str::<Value>(&text) {
            assert_eq!(code, Some(130), "{what}");
            say(&format!("{what}: ended {:.1} ms after SIGINT", took.as_secs_f64() * 1e3));
            assert!(took < PATIENCE, "{what}: {took:?}");
            return report;
        }
        assert!(matches!(code, Some(130) | None), "{what}: {code:?}, {text:?}");
    }
    panic!("{what}: no signal met it at work");
}

/// Reads what appears until it is so long, then interrupts: what was there stays, and nothing follows but its end.
fn text_of(what: &str, model: &Path, args: &[&str], bytes: usize) -> String {
    let mut child = start(model, args);
    let mut seen = vec![0; bytes];
    child.stdout.as_mut().expect("piped").read_exact(&mut seen).expect("the text is longer");
    let interrupted = Instant::now();
    interrupt(&child);
    let mut out = child.stdout.take().expect("piped");
    out.read_to_end(&mut seen).expect("a pipe");
    let status = child.wait().expect("it ends");
    let took = interrupted.elapsed();
    say(&format!("{what}: ended {:.1} ms after SIGINT", took.as_secs_f64() * 1e3));
    assert_eq!(status.code(), Some(130), "{what}");
    assert!(took < PATIENCE, "{what}: {took:?}");
    String::from_utf8(seen).expect("text is UTF-8")
}

#[test]
fn generation_is_ended_and_its_text_kept() {
    let files = Files::new();
    let model = tiny(&files);
    let args = ["-p", "the ship", "-n", "1000000", "--temp", "0", "--ctx", "100000"];
    let text = text_of("a tiny model that decodes", &model, &args, 100);
    assert!(text.ends_with('\n'), "the line is ended");
    let text = text.trim_end_matches('\n');
    let count = text.len().to_string();
    let whole = Command::new(env!("CARGO_BIN_EXE_entensor"))
        .arg("run")
        .arg(&model)
        .args(["-p", "the ship", "-n", &count, "--temp", "0", "--ctx", "100000"])
        .output()
        .expect("the command starts");
    let whole = String::from_utf8(whole.stdout).expect("text is UTF-8");
    assert!(whole.starts_with(text), "{text:?} is no start of {whole:?}");
}

#[test]
fn a_prompt_is_ended() {
    let files = Files::new();
    let model = tiny(&files);
    let prompt = "the ship and ".repeat(5000);
    let args = ["-p", &prompt, "--ctx", "100000", "--temp", "0", "--json", "--backend", "cpu:threads=1"];
    let report = report_of("a tiny model that reads", &model, &args);
    assert_eq!(report["finish_reason"], "interrupted");
    assert_eq!(report["text"], "");
}

#[test]
fn a_chat_that_waits_for_a_line_is_ended() {
    let files = Files::new();
    let model = tiny(&files);
    for attempt in 0..8 {
        let mut child = start(&model, &["--chat", "-n", "2"]);
        thread::sleep(Duration::from_millis(100 << attempt));
        let stdin = child.stdin.take();
        let interrupted = Instant::now();
        interrupt(&child);
        let (code, text, took) = finish(child, interrupted);
        drop(stdin);
        if code == Some(130) {
            assert_eq!(text, "");
            assert!(took < PATIENCE, "{took:?}");
            return;
        }
        // The command had not started yet, and the system ended it.
        assert_eq!(code, None);
    }
    panic!("no signal met it waiting");
}

/// The model file that `ENTENSOR_MODEL` names; says loudly that the test is skipped when it names none.
fn real_model() -> Option<PathBuf> {
    let path = std::env::var_os("ENTENSOR_MODEL").map(PathBuf::from);
    if path.is_none() {
        say(
            "SKIPPED: set ENTENSOR_MODEL to the path of SmolLM2-135M-Instruct.Q4_1.gguf (see the README) to run this test",
        );
    }
    path
}

#[test]
fn a_long_prompt_of_the_real_model_is_ended() {
    let Some(model) = real_model() else { return };
    let prompt = "The capital of France is Paris, and ".repeat(250);
    for backend in ["cpu:threads=1", "cpu:threads=2"] {
        let args = ["-p", &prompt, "--ctx", "4096", "--temp", "0", "--json", "--backend", backend];
        let report = report_of(&format!("2 000 tokens of prompt on {backend}"), &model, &args);
        assert_eq!(report["finish_reason"], "interrupted");
        assert!(report["prompt_ids"].as_array().is_some_and(|ids| ids.len() >= 2000));
    }
}

#[test]
fn the_text_of_the_real_model_is_kept() {
    let Some(model) = real_model() else { return };
    let args = ["-p", "The capital of France is", "-n", "2000", "--temp", "0"];
    let text = text_of("the real model that decodes", &model, &args, 20);
    assert!(text.starts_with(" Paris."), "{text:?}");
}
