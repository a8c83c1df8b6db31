//! `compare-logits`, end to end on tiny models.

mod common;

use common::{Files, Tiny, command, entensor};
use serde_json::Value;

fn figure(report: &Value, key: &str) -> f64 {
    report[key].as_f64().unwrap_or_else(|| panic!("{key} of {report}"))
}

#[test]
fn a_model_is_no_different_from_itself() {
    let files = Files::new();
    let model = files.write("tiny.gguf", Tiny::default().build());
    let path = model.to_str().expect("UTF-8");
    for text in [&[][..], &["-p", "the ship and the sea"]] {
        let report = entensor("compare-logits", &model, &[&[path], text, &["--json"]].concat()).json();
        for key in ["mean_difference", "worst_difference", "mean_kl"] {
            assert_eq!(figure(&report, key), 0.0, "{key}");
        }
        assert_eq!(figure(&report, "top_agreement"), 1.0);
        assert_eq!(report["perplexity_a"], report["perplexity_b"]);
        let positions = report["positions"].as_u64().expect("a count");
        assert_eq!(report["pairs"].as_u64(), Some(positions * common::VOCABULARY));
        assert_eq!((report["same_top"].as_u64(), report["recorded"].as_bool()), (Some(positions), Some(false)));
    }
    let keys: Vec<String> = {
        let report = entensor("compare-logits", &model, &[path, "-p", "a", "--json"]).json();
        assert!(report["perplexity_a"].is_null(), "no token follows the only one");
        report.as_object().expect("an object").keys().cloned().collect()
    };
    let expected = "positions pairs mean_difference worst_difference worst_position worst_token mean_kl same_top top_agreement \
                    perplexity_a perplexity_b recorded";
    assert_eq!(keys, expected.split_whitespace().collect::<Vec<_>>());
    let text = entensor("compare-logits", &model, &[path, "-p", "the sea"]).ok();
    assert!(text.contains("mean KL divergence of B from A") && text.contains("(100.00 %)"), "{text}");
}

#[test]
fn other_weights_are_a_difference() {
    let files = Files::new();
    let model = files.write("tiny.gguf", Tiny::default().build());
    let other = files.write("other.gguf", Tiny { rope_factor: Some(4.0), ..Tiny::default() }.build());
    let args = [other.to_str().expect("UTF-8"), "-p", "the ship and the sea", "--json"];
    let report = entensor("compare-logits", &model, &args).json();
    for key in ["mean_difference", "worst_difference", "mean_kl"] {
        assert!(figure(&report, key) > 1e-4, "{key}");
    }
    assert!(figure(&report, "worst_difference") >= figure(&report, "mean_difference"));
    // The first position does not see the scaling.
    assert!(report["worst_position"].as_u64() > Some(0));
}

#[test]
fn texts_come_from_files_and_are_read_in_parts() {
    let files = Files::new();
    let model = files.write("tiny.gguf", Tiny::default().build());
    let other = files.write("other.gguf", Tiny { rope_factor: Some(4.0), ..Tiny::default() }.build());
    let text = files.write("text.txt", "0123456789".repeat(20));
    let (other, text) = (other.to_str().expect("UTF-8"), text.to_str().expect("UTF-8"));
    let compare = |args: &[&str]| entensor("compare-logits", &model, &[&[other, "--json"], args].concat()).json();
    let long = compare(&["-f", text, "--ctx", "200"]);
    let default = compare(&["-f", text]);
    let parts = compare(&["-f", text, "--ctx", "10"]);
    let once = compare(&["-p", "0123456789"]);
    for report in [&long, &default, &parts] {
        assert_eq!(report["positions"].as_u64(), Some(200));
    }
    assert_ne!(long["mean_kl"], parts["mean_kl"]);
    assert_ne!(default["mean_kl"], parts["mean_kl"], "the model was trained for 96");
    // Every part is the same text from an empty context.
    for key in ["mean_difference", "mean_kl", "perplexity_a", "perplexity_b", "worst_difference"] {
        assert!((figure(&parts, key) - figure(&once, key)).abs() < 1e-9, "{key}");
    }
}

#[test]
fn recorded_logits_give_the_same_figures() {
    let files = Files::new();
    let model = files.write("tiny.gguf", Tiny::default().build());
    let other = files.write("other.gguf", Tiny { rope_factor: Some(4.0), ..Tiny::default() }.build());
    let other = other.to_str().expect("UTF-8");
    let text = ["-p", "the ship and the sea"];
    let record = |top: &str| entensor("logits", &model, &[&text[..], &["--json", "--top", top]].concat()).ok();
    let full = entensor("compare-logits", &model, &[&[other, "--json"], &text[..]].concat()).json();

    let all = files.write("all.json", record("300"));
    let report = entensor("compare-logits", &all, &[other, "--json"]).json();
    assert_eq!(report["recorded"].as_bool(), Some(true));
    for key in ["positions", "pairs", "same_top", "worst_position", "worst_token"] {
        assert_eq!(report[key], full[key], "{key}");
    }
    // Records hold logarithms as f32, and perplexities are their exponentials.
    for key in ["mean_difference", "worst_difference", "mean_kl", "perplexity_a", "perplexity_b"] {
        let (recorded, computed) = (figure(&report, key), figure(&full, key));
        assert!((recorded - computed).abs() < 1e-6 * (1.0 + computed.abs()), "{key}: {recorded}, {computed}");
    }

    let some = files.write("some.json", format!("{{\"cases\":[{},{}]}}", record("3"), record("3")));
    let report = entensor("compare-logits", &some, &[other, "--json"]).json();
    let positions = full["positions"].as_u64().expect("a count");
    assert_eq!(report["positions"].as_u64(), Some(2 * positions));
    assert_eq!(report["pairs"].as_u64(), Some(2 * 3 * positions));
    assert!(report["perplexity_a"].is_null(), "not all that follows is among three");
    assert!((figure(&report, "perplexity_b") - figure(&full, "perplexity_b")).abs() < 1e-9);
    let kl = figure(&report, "mean_kl");
    assert!(kl > 0.0 && kl <= figure(&full, "mean_kl"), "{kl} is no lower bound");

    let itself = entensor("compare-logits", &some, &[model.to_str().expect("UTF-8"), "--json"]).json();
    assert!(figure(&itself, "worst_difference") < 1e-5 && figure(&itself, "mean_kl").abs() < 1e-6);
}

#[test]
fn what_cannot_be_compared_is_refused() {
    let files = Files::new();
    let bytes = Tiny::default().build();
    let model = files.write("tiny.gguf", &bytes);
    let path = model.to_str().expect("UTF-8");
    // Another spelling of one token.
    let mut renamed = bytes.clone();
    let at = bytes.windows(11).position(|window| window == b"<unused299>").expect("a token");
    renamed[at + 1] = b'U';
    let renamed = files.write("renamed.gguf", renamed);
    let error = entensor("compare-logits", &model, &[renamed.to_str().expect("UTF-8")]).failed(1);
    assert!(error.contains("<unused299>") && error.contains("<Unused299>"), "{error}");

    let error = entensor("compare-logits", &model, &[path, "-p", ""]).failed(2);
    assert!(error.contains("empty"), "{error}");
    entensor("compare-logits", &model, &[path, "-p", "a", "-f", path]).failed(2);
    entensor("compare-logits", &model, &[path, "--ctx", "0"]).failed(2);
    entensor("compare-logits", &model, &[path, "--backend", "null"]).failed(2);
    let error = entensor("compare-logits", &model, &[path, "-f", path]).failed(2);
    assert!(error.contains("UTF-8"), "{error}");
    let error = entensor("compare-logits", files.path(), &[path]).failed(2);
    assert!(error.contains("directory"), "{error}");

    let good = entensor("logits", &model, &["-p", "ab", "--json", "--top", "2"]).ok();
    let record = |name: &str, text: &str| {
        let record = files.write(name, text);
        entensor("compare-logits", &record, &[path, "--json"])
    };
    record("good.json", &good).ok();
    for bad in ["{", "{}", "{\"prompt_ids\":[1]}", "{\"cases\":[]}", &good[..good.len() / 2]] {
        record("bad.json", bad).failed(2);
    }
    let of_another = good
        .replace("\"prompt_ids\":[", "\"prompt_ids\":[30000,")
        .replace("\"positions\":[", "\"positions\":[{\"top\":[[1,0.5]],\"logsumexp\":3},");
    let error = record("other.json", &of_another).failed(1);
    assert!(error.contains("vocabulary"), "{error}");
    let error = entensor("compare-logits", &files.path().join("good.json"), &[path, "-p", "a"]).failed(2);
    assert!(error.contains("its own tokens"), "{error}");
    let output = command().args(["compare-logits", path]).output().expect("the command starts");
    assert_eq!(output.status.code(), Some(2), "B is missing");
}
