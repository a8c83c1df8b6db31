//! `compare`, end to end on tiny models, and the plans that `ENTENSOR_EXPLAIN` prints.

mod common;

use common::{Files, Tiny, command, entensor};

/// The last line of a table, its figures and the exit status that goes with them.
fn last_line(text: &str) -> (usize, f64, usize) {
    let line = text.lines().last().expect("a line");
    let (nodes, rest) = line.split_once(" nodes, worst NMSE ").unwrap_or_else(|| panic!("{line}"));
    let (nmse, rest) = rest.split_once(" at ").unwrap_or_else(|| panic!("{line}"));
    let (node, over) = rest.split_once(", ").unwrap_or_else(|| panic!("{line}"));
    let over = over.strip_suffix(" over").unwrap_or_else(|| panic!("{line}"));
    assert!(!node.is_empty() && !node.contains(' '), "{line}");
    (nodes.parse().expect("a count"), nmse.parse().expect("a number"), over.parse().expect("a count"))
}

#[test]
fn backends_that_are_right_are_within_their_limits() {
    let files = Files::new();
    let model = files.write("tiny.gguf", Tiny::default().build());
    let text = entensor("compare", &model, &["--a", "cpu:threads=1", "--b", "gemm", "--tokens", "40"]).ok();
    let (nodes, worst, over) = last_line(&text);
    assert!(nodes > 20 && over == 0 && worst > 0.0, "{text}");
    assert_eq!(text.lines().count(), nodes + 2, "a heading, a line a node, and the last");
    let column = |line: &str, index: usize| line.split_whitespace().nth(index).map(str::to_owned).unwrap_or_default();
    let nmse: Vec<f64> =
        text.lines().skip(1).take(nodes).map(|line| column(line, 4).parse().expect("a number")).collect();
    assert!(nmse.is_sorted_by(|a, b| a >= b), "the worst first: {nmse:?}");
    assert!(text.lines().any(|line| column(line, 1) == "mul_mat" && column(line, 3) == "gemm"), "{text}");
    // Too few tokens for gemm: everything is on cpu, and nothing differs.
    let text = entensor("compare", &model, &["--a", "cpu", "--b", "gemm", "-p", "the ship"]).ok();
    assert!(!text.contains(" gemm ") && last_line(&text).1 == 0.0, "{text}");

    let report = entensor("compare", &model, &["--a", "oracle", "--b", "cpu", "--json"]).json();
    let rows = report["nodes"].as_array().expect("rows");
    assert!(rows.len() == nodes && report["over"] == 0, "{report}");
    assert!(rows.iter().all(|row| row["a"] == "oracle" && row["b"] == "cpu" && row["over"] == false), "{report}");
    for key in ["node", "op", "nmse", "whole", "limit"] {
        assert!(!rows[0][key].is_null(), "{key} of {}", rows[0]);
    }
}

#[test]
fn what_cannot_be_compared_is_bad_usage() {
    let files = Files::new();
    let model = files.write("tiny.gguf", Tiny::default().build());
    entensor("compare", &model, &[]).failed(2);
    for args in [
        &["--b", "nobody"][..],
        &["--b", "gemm:speed=9"],
        &["--b", "gemm:threads=0"],
        &["--b", "null"],
        &["--b", "gemm", "-p", ""],
        &["--b", "gemm", "--tokens", "0"],
        &["--b", "gemm", "--tokens", "513"],
    ] {
        entensor("compare", &model, args).failed(2);
    }
    let long = "the sea ".repeat(600);
    let error = entensor("compare", &model, &["--b", "gemm", "-p", &long]).failed(2);
    assert!(error.contains("--tokens"), "{error}");
    entensor("compare", &files.path().join("nothing.gguf"), &["--b", "gemm"]).failed(2);
}

#[test]
fn new_plans_are_printed_if_the_environment_asks() {
    let files = Files::new();
    let model = files.write("tiny.gguf", Tiny::default().build());
    let run = |what: Option<&str>| {
        let mut command = command();
        command.arg("run").arg(&model).args(["-p", "the ship", "-n", "4", "--backend", "gemm", "--backend", "cpu"]);
        command.env_remove("ENTENSOR_EXPLAIN");
        if let Some(what) = what {
            command.env("ENTENSOR_EXPLAIN", what);
        }
        let output = command.output().expect("the command starts");
        assert!(output.status.success());
        (output.stdout, String::from_utf8(output.stderr).expect("UTF-8"))
    };
    let (plain, quiet) = run(None);
    assert!(!quiet.contains("split 0 on"), "{quiet}");
    assert!(!run(Some("everything")).1.contains("split 0 on"), "only known words");
    let (result, explained) = run(Some("plan"));
    assert_eq!(result, plain, "standard output is the result alone");
    // The prompt's plan and that of decoding, once each.
    assert_eq!(explained.matches("\nsplit 0 on cpu\n").count(), 2, "{explained}");
    assert!(explained.contains("gemm refuses it (1 column, fewer than 32)"), "{explained}");
}
