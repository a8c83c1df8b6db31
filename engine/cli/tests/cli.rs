//! The commands that run a model, end to end on a tiny one: what they print, and where.

mod common;

use std::{
    io::{BufRead, BufReader},
    process::Stdio,
};

use common::{End, Files, Tiny, VOCABULARY, command, entensor, ids};

const PROMPT: &str = "<|im_start|>the ship and the sea";

#[test]
fn run_streams_the_text_that_json_reports() {
    let files = Files::new();
    let model = files.write("tiny.gguf", Tiny::default().build());
    for settings in [&["--temp", "0"][..], &["--seed", "3"], &["--temp", "1.5", "--top-k", "0", "--top-p", "1"]] {
        let args = [&["-p", PROMPT, "-n", "24"], settings].concat();
        let plain = entensor("run", &model, &args);
        assert_eq!(plain.code, 0, "{plain:?}");
        let report = entensor("run", &model, &[&args[..], &["--json"]].concat()).json();
        let text = report["text"].as_str().expect("text");
        assert_eq!(plain.stdout.trim_end_matches('\n'), text.trim_end_matches('\n'));
        let generated = ids(&report["generated_ids"]);
        match report["finish_reason"].as_str() {
            Some("length") => assert_eq!(generated.len(), 24),
            Some("stop") => assert!(generated.ends_with(&[2]) && generated.len() <= 24),
            other => panic!("{other:?}"),
        }
        assert_eq!(ids(&report["prompt_ids"])[0], 1, "special tokens in the prompt are parsed");
    }
}

#[test]
fn huge_weights_compute_what_mapped_ones_do() {
    let files = Files::new();
    let model = files.write("tiny.gguf", Tiny::default().build());
    let args = ["-p", PROMPT, "-n", "8", "--temp", "0"];
    let run = |more: &[&str]| entensor("run", &model, &[&args[..], more].concat());
    let (mapped, huge) = (run(&["--json"]).json(), run(&["--json", "--weights=huge"]).json());
    assert_eq!(mapped["generated_ids"], huge["generated_ids"]);
    let figures = |report: &serde_json::Value| {
        let bytes = |key: &str| report[key].as_u64().expect("bytes");
        let cold = report["cold_time_to_first_token_ms"].as_f64() > report["time_to_first_token_ms"].as_f64();
        assert!(cold, "loading takes time: {report}");
        (bytes("mapped_bytes"), bytes("weight_copy_bytes"), bytes("huge_page_bytes"))
    };
    let (file_bytes, copied_bytes, huge_page_bytes) = figures(&mapped);
    assert_eq!((mapped["weights"].as_str(), copied_bytes, huge_page_bytes), (Some("mapped"), 0, 0));
    let (same_bytes, copied_bytes, huge_page_bytes) = figures(&huge);
    assert_eq!((huge["weights"].as_str(), same_bytes, copied_bytes), (Some("huge"), file_bytes, file_bytes));
    assert!(huge_page_bytes <= copied_bytes.next_multiple_of(2 << 20));
    assert!(run(&["--weights=huge"]).stderr.contains("2 MiB pages"));
    assert!(run(&[]).stderr.contains("mapped"));
    // Nobody beside the oracle makes such buffers.
    let refused = run(&["--weights=huge", "--backend", "oracle"]);
    assert!(refused.code != 0 && refused.stderr.contains("cpu-huge"), "{refused:?}");
    let unknown = run(&["--weights=fast"]);
    assert!(unknown.code == 2 && unknown.stderr.contains("mapped, huge"), "{unknown:?}");
}

#[test]
fn run_prints_figures_for_people_on_standard_error() {
    let files = Files::new();
    let model = files.write("tiny.gguf", Tiny::default().build());
    let ran = entensor("run", &model, &["-p", PROMPT, "-n", "4", "--temp", "0"]);
    for word in
        ["index", "assign", "compute", "tokens/s", "time to first token", "splits", "copies", "planned", "plans"]
    {
        assert!(ran.stderr.contains(word), "{word}: {ran:?}");
        assert!(!ran.stdout.contains("tokens/s"));
    }
    let report = entensor("run", &model, &["-p", PROMPT, "-n", "4", "--temp", "0", "--json"]).json();
    assert!(report["prompt_tokens_per_s"].as_f64().expect("a speed") > 0.0);
    assert!(report["decode_tokens_per_s"].as_f64().expect("a speed") > 0.0);
    assert!(report["time_to_first_token_ms"].as_f64().expect("a time") > 0.0);
    assert!(report["planned_bytes"].as_u64().expect("bytes") > 0);
    assert_eq!((report["splits"].as_u64(), report["copies"].as_u64()), (Some(1), Some(0)));
    assert_eq!(report["plans"]["made"].as_u64(), Some(2), "one plan for the prompt, one for all decoded tokens");
    let names: Vec<&str> =
        report["passes"].as_array().expect("passes").iter().filter_map(|pass| pass["name"].as_str()).collect();
    let passes = "index probe assign expand upgrade inherit split liveness allocate publish compute";
    assert_eq!(names.join(" "), passes);
}

#[test]
fn run_says_why_it_ended() {
    let files = Files::new();
    let model = files.write("tiny.gguf", Tiny::default().build());
    let ending = files.write("ending.gguf", Tiny { end: End::AtOnce, ..Tiny::default() }.build());
    let report = entensor("run", &ending, &["-p", PROMPT, "--temp", "0", "--json"]).json();
    assert_eq!((report["finish_reason"].as_str(), report["text"].as_str()), (Some("stop"), Some("")));
    assert_eq!(ids(&report["generated_ids"]), [0], "the token that ends the text is recorded");
    assert!(report["decode_tokens_per_s"].is_null());

    let endless = files.write("endless.gguf", Tiny { end: End::Never, ..Tiny::default() }.build());
    let report = entensor("run", &endless, &["-p", "0123456789", "--temp", "0", "--ctx", "16", "--json"]).json();
    assert_eq!(report["finish_reason"].as_str(), Some("context"));
    assert_eq!(ids(&report["generated_ids"]).len(), 16 - 10 + 1, "the last one is not fed");

    let report = entensor("run", &model, &["-p", PROMPT, "-n", "0", "--json"]).json();
    assert_eq!((report["finish_reason"].as_str(), ids(&report["generated_ids"]).len()), (Some("length"), 0));
    assert!(report["time_to_first_token_ms"].is_null());
}

#[test]
fn stop_texts_end_the_text_before_them_whatever_tokens_they_are_in() {
    let files = Files::new();
    let model = files.write("tiny.gguf", Tiny { end: End::Never, ..Tiny::default() }.build());
    let args = ["-p", PROMPT, "-n", "40", "--temp", "1.5", "--top-k", "0", "--top-p", "1", "--seed", "4"];
    let run = |stops: &[&str]| {
        let stops: Vec<&str> = stops.iter().flat_map(|stop| ["--stop", stop]).collect();
        entensor("run", &model, &[&args[..], &["--json"], &stops].concat()).json()
    };
    let whole = run(&[]);
    let text = whole["text"].as_str().expect("text");
    assert!(whole["stop_string"].is_null());
    // Some characters in the middle, which are several tokens.
    let chars: Vec<(usize, char)> = text.char_indices().collect();
    let (start, end) = (chars[chars.len() / 2].0, chars[chars.len() / 2 + 4].0);
    let stop = &text[start..end];
    let before = text.find(stop).expect("it is a part of it");
    let report = run(&["never in it", stop]);
    assert_eq!(report["text"].as_str(), Some(&text[..before]));
    assert_eq!((report["finish_reason"].as_str(), report["stop_string"].as_str()), (Some("stop"), Some(stop)));
    let (all, some) = (ids(&whole["generated_ids"]), ids(&report["generated_ids"]));
    assert!(some.len() < all.len() && all.starts_with(&some), "nothing is generated after it");
    let plain = entensor("run", &model, &[&args[..], &["--stop", stop]].concat()).ok();
    assert_eq!(plain.trim_end_matches('\n'), text[..before].trim_end_matches('\n'));
    assert_eq!(run(&["never in it"])["text"].as_str(), Some(text));
}

#[test]
fn penalties_and_cuts_change_what_is_picked() {
    let files = Files::new();
    let model = files.write("tiny.gguf", Tiny { end: End::Never, ..Tiny::default() }.build());
    let run = |args: &[&str]| {
        let report = entensor("run", &model, &[&["-p", PROMPT, "-n", "40", "--json"], args].concat()).json();
        ids(&report["generated_ids"])
    };
    let greedy = run(&["--temp", "0"]);
    for only_one_stays in [["--min-p", "1"], ["--tail-free", "0.000001"], ["--top-k", "1"], ["--top-p", "0.000001"]] {
        assert_eq!(run(&[&["--temp", "2"], &only_one_stays[..]].concat()), greedy, "{only_one_stays:?}");
    }
    let free = run(&["--temp", "0", "--repeat-penalty", "1000000", "--repeat-last-n", "1000"]);
    let mut seen = free.clone();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), free.len(), "no token twice");
    assert!(free.iter().all(|id| *id != 1), "the prompt counts");
    assert_eq!(run(&["--temp", "0", "--repeat-penalty", "1000000", "--repeat-last-n", "0"]), greedy);
}

#[test]
fn contexts_above_the_training_are_noted_and_work() {
    let files = Files::new();
    let model = files.write("tiny.gguf", Tiny { end: End::Never, ..Tiny::default() }.build());
    let args = ["-p", PROMPT, "-n", "280", "--temp", "2", "--ctx", "600", "--json"];
    let ran = entensor("run", &model, &args);
    assert!(ran.stderr.contains("more than the 96 tokens"), "{ran:?}");
    let report = ran.json();
    assert_eq!(ids(&report["generated_ids"]).len(), 280);
    assert_eq!(report["plans"]["made"].as_u64(), Some(2), "one for the prompt, one for every token behind it");
    assert_eq!(report["plans"]["unchanged"].as_u64(), Some(278 + 2));
}

#[test]
fn tokenize_prints_ids() {
    let files = Files::new();
    let model = files.write("tiny.gguf", Tiny::default().build());
    let report = entensor("tokenize", &model, &["-p", "<|im_start|>the\n", "--json"]).json();
    assert_eq!(ids(&report["prompt_ids"]), [1, 3 + 256 + 1, 3 + 10]);
    assert_eq!(report["pieces"][1].as_str(), Some("the"));
    let text = entensor("tokenize", &model, &["-p", "-the"]).ok();
    assert_eq!(text, " id  piece\n 48  -\n260  the\n");
    let empty = entensor("tokenize", &model, &["-p", "", "--json"]).json();
    assert_eq!(ids(&empty["prompt_ids"]).len(), 0);
}

#[test]
fn inspect_lists_what_the_file_holds() {
    let files = Files::new();
    let bytes = Tiny::default().build();
    let model = files.write("tiny.gguf", &bytes);
    let report = entensor("inspect", &model, &["--json"]).json();
    assert_eq!(report["file_bytes"].as_u64(), Some(bytes.len() as u64));
    assert_eq!(report["metadata"]["llama.block_count"].as_u64(), Some(2));
    assert_eq!(report["metadata"]["tokenizer.ggml.tokens"]["length"].as_u64(), Some(VOCABULARY));
    assert_eq!(report["metadata"]["tokenizer.ggml.tokens"]["first"].as_array().map(Vec::len), Some(8));
    let tensors = report["tensors"].as_array().expect("tensors");
    assert_eq!(tensors.len(), 21);
    let sum = |rows: &serde_json::Value| -> u64 {
        rows.as_array().expect("rows").iter().map(|row| row["bytes"].as_u64().expect("bytes")).sum()
    };
    assert_eq!(sum(&report["tensors"]), sum(&report["dtypes"]));
    assert_eq!(report["tensor_bytes"].as_u64(), Some(sum(&report["tensors"])));
    let text = entensor("inspect", &model, &[]).ok();
    for word in
        ["llama.block_count", "q4_1", "blk.1.ffn_down.weight", "[96,64]", "\"<|endoft…\"", "an array of 300 string"]
    {
        assert!(text.contains(word), "{word}: {text}");
    }
}

#[test]
fn inspect_lists_safetensors_too() {
    let files = Files::new();
    let header = r#"{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"b":{"dtype":"BOOL","shape":[5],"data_offsets":[24,29]}}"#;
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.resize(bytes.len() + 29, 0);
    let file = files.write("small.safetensors", &bytes);
    let report = entensor("inspect", &file, &["--json"]).json();
    assert_eq!((report["format"].as_str(), report["tensor_bytes"].as_u64()), (Some("safetensors"), Some(29)));
    assert_eq!(report["metadata"]["format"].as_str(), Some("pt"));
    assert_eq!(ids(&report["tensors"][0]["shape"]), [3, 2], "fastest first");
    assert_eq!(report["tensors"][1]["dtype"].as_str(), Some("BOOL"));
    let text = entensor("inspect", &file, &[]).ok();
    assert!(text.contains("[3,2]") && text.contains("F32") && text.contains("2 tensors of 29 B"), "{text}");
    for length in 0..bytes.len() {
        if length % 40 == 0 || length + 3 > bytes.len() {
            let cut = files.write("cut.safetensors", &bytes[..length]);
            let ran = entensor("inspect", &cut, &[]);
            assert!(matches!(ran.code, 1 | 2) && ran.stdout.is_empty() && ran.stderr.contains("error: "), "{ran:?}");
        }
    }
}

#[test]
fn logits_are_those_that_greedy_runs_follow() {
    let files = Files::new();
    let model = files.write("tiny.gguf", Tiny::default().build());
    let report = entensor("logits", &model, &["-p", PROMPT, "--top", "5", "--json"]).json();
    let positions = report["positions"].as_array().expect("positions");
    assert_eq!(positions.len(), ids(&report["prompt_ids"]).len());
    for position in positions {
        let top = position["top"].as_array().expect("top");
        assert_eq!(top.len(), 5);
        let logits: Vec<f64> = top.iter().map(|pair| pair[1].as_f64().expect("a logit")).collect();
        assert!(logits.is_sorted_by(|a, b| a >= b));
        assert!(position["logsumexp"].as_f64().expect("a number") > logits[0]);
    }
    let run = entensor("run", &model, &["-p", PROMPT, "-n", "1", "--temp", "0", "--json"]).json();
    let best = positions.last().expect("a position")["top"][0][0].as_u64();
    assert_eq!(best, run["generated_ids"][0].as_u64());
    let all = entensor("logits", &model, &["-p", "a", "--top", "9999", "--json"]).json();
    assert_eq!(all["positions"][0]["top"].as_array().map(Vec::len), Some(VOCABULARY as usize));
    let text = entensor("logits", &model, &["-p", "the sea", "--top", "2"]).ok();
    assert!(text.contains("probability") && text.lines().count() > 2, "{text}");
}

#[test]
fn bench_measures_each_thread_count_with_the_same_bits() {
    let files = Files::new();
    let model = files.write("tiny.gguf", Tiny::default().build());
    let args = ["-p", "40", "-n", "12", "-t", "1,2", "-r", "2"];
    let report = entensor("bench", &model, &[&args[..], &["--json"]].concat()).json();
    let rows = report["rows"].as_array().expect("rows");
    let key = |row: &serde_json::Value| (row["test"].as_str().map(str::to_owned), row["threads"].as_u64());
    let keys: Vec<_> = rows.iter().map(key).collect();
    let expected = [("pp40", 1), ("tg12", 1), ("pp40", 2), ("tg12", 2)];
    assert_eq!(keys, expected.map(|(test, threads)| (Some(test.to_owned()), Some(threads))));
    for row in rows {
        let figure = |name: &str| row[name].as_f64().expect("a figure");
        assert!(figure("min") > 0.0 && figure("min") <= figure("mean") && figure("mean") <= figure("max"));
        assert!(figure("sd") >= 0.0 && figure("weights_gb_per_s") > 0.0);
    }
    assert_eq!(rows[0]["logits_hash"], rows[2]["logits_hash"]);
    assert_eq!(rows[1]["logits_hash"], rows[3]["logits_hash"]);
    assert_eq!(report["identical"].as_bool(), Some(true));
    let text = entensor("bench", &model, &["-p", "0", "-n", "3", "-t", "1", "-r", "1"]).ok();
    assert!(text.contains("tg3") && !text.contains("\npp") && text.contains("identical"), "{text}");
}

#[test]
fn readers_that_go_away_end_the_command_quietly() {
    let files = Files::new();
    let model = files.write("tiny.gguf", Tiny { end: End::Never, ..Tiny::default() }.build());
    for (subcommand, args) in [
        ("run", &["-p", PROMPT, "-n", "900", "--temp", "2", "--ctx", "1000"][..]),
        ("logits", &["-p", PROMPT, "--top", "300"]),
        ("inspect", &["--json"]),
        ("plan", &[]),
    ] {
        let mut child = command()
            .arg(subcommand)
            .arg(&model)
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the command starts");
        // A pipe without a reader, before the first byte.
        drop(child.stdout.take());
        let output = child.wait_with_output().expect("the command ends");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{subcommand}: {stderr}");
        assert!(!stderr.contains("panicked") && !stderr.contains("error"), "{subcommand}: {stderr}");
    }
}

#[test]
fn tokens_arrive_before_the_run_ends() {
    let files = Files::new();
    let model = files.write("tiny.gguf", Tiny { end: End::Never, ..Tiny::default() }.build());
    // The whole text is far more than a pipe holds: the command cannot end unread.
    let mut child = command()
        .arg("run")
        .arg(&model)
        .args(["-p", PROMPT, "-n", "1000000", "--temp", "2", "--ctx", "1000100"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the command starts");
    let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
    let text = stdout.fill_buf().map(<[u8]>::len);
    let status = child.try_wait().expect("can be asked");
    child.kill().expect("can be ended");
    child.wait().expect("ends");
    assert!(text.expect("readable") > 0);
    assert_eq!(status, None, "text came although the command still ran");
}

#[test]
fn help_has_examples_and_bad_usage_has_status_2() {
    for subcommand in ["run", "tokenize", "inspect", "plan", "explain", "logits", "bench", "quantize", "compare-logits"]
    {
        let output = command().args([subcommand, "--help"]).output().expect("the command starts");
        let help = String::from_utf8(output.stdout).expect("UTF-8");
        assert!(output.status.success() && help.contains("Examples:"), "{help}");
        let output = command().arg(subcommand).output().expect("the command starts");
        assert_eq!(output.status.code(), Some(2), "{subcommand} without a file");
        assert!(output.stdout.is_empty());
    }
}
