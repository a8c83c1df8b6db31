//! What `entensor backends` says, and what backends are told.

mod common;

use common::command;

fn run(args: &[&str]) -> (bool, String, String) {
    let output = command().args(args).output().expect("the command starts");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (output.status.success(), text(output.stdout), text(output.stderr))
}

#[test]
fn backends_are_listed_with_options_devices_and_memory() {
    let (done, text, _) = run(&["backends"]);
    assert!(done);
    for word in [
        "cpu ",
        "threads=…",
        "simd=…",
        "strict",
        "hbm",
        "gemm ",
        "oracle ",
        "null ",
        "cpu-repacked",
        "auto: cpu",
        "ordinary host memory",
    ] {
        assert!(text.contains(word), "{word}: {text}");
    }
    let (done, text, _) = run(&["backends", "--json"]);
    assert!(done);
    let report: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(report["auto"], serde_json::json!(["cpu"]));
    let cpu = &report["backends"][0];
    assert_eq!((cpu["name"].as_str(), &cpu["flags"]), (Some("cpu"), &serde_json::json!(["hbm"])));
    let device = &cpu["devices"][0];
    assert_eq!(device["backend"], "cpu");
    assert!(device["description"].as_str().expect("a text").contains("threads"));
    let types = device["buffer_types"].as_array().expect("types");
    assert_eq!((types[0]["name"].as_str(), types[0]["private_layout"].as_bool()), (Some("host"), Some(false)));
    assert_eq!((types[1]["name"].as_str(), types[1]["private_layout"].as_bool()), (Some("cpu-repacked"), Some(true)));
    assert!(types[0]["max_buffer_bytes"].is_null(), "without a limit");
}

#[test]
fn what_a_backend_is_not_told_rightly_is_said_with_what_there_is() {
    for (spec, words) in [
        ("gpu9", "there is no backend `gpu9`; there are: auto, cpu, gemm, oracle, null"),
        ("cpu:speed=9", "backend `cpu` has no option `speed`; it has: threads, simd, hbm"),
        ("cpu:threads", "`threads` needs a value"),
        ("cpu:simd=sse9", "simd=sse9 does not fit; write detect, avx2, portable or strict"),
        ("cpu:hbm=yes", "hbm=yes does not fit; write the word by itself"),
        ("auto:speed=9", "backend `auto` has no option `speed`; it has: threads, simd, hbm"),
        ("cpu:", "`cpu:` is no backend"),
    ] {
        let (done, _, error) = run(&["bench", "model.gguf", "--backend", spec]);
        assert!(!done && error.contains(words), "{spec}: {error}");
    }
}
