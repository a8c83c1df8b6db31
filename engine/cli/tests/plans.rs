//! `plan` and `explain` on texts and on a tiny model.

mod common;

use common::{Files, Tiny, entensor, ids};
use serde_json::Value;

const TWO: &str = "\
backend gpu memory=device0
backend cpu
weight w1 f32 [64,32] on gpu
weight w2 f32 [32,16] on cpu
input x f32 [64,2]
h = mul_mat w1 x
r = relu h
y = mul_mat w2 r output
";

fn texts(value: &Value) -> Vec<&str> {
    value.as_array().expect("an array").iter().map(|text| text.as_str().expect("a text")).collect()
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}

#[test]
fn json_has_the_keys_of_the_contract_in_order() {
    let files = Files::new();
    let graph = files.write("two.graph", TWO);
    let plan = entensor("plan", &graph, &["--format", "json", "--verify"]).json();
    let top = ["backends", "nodes", "splits", "copies", "buffers", "allocations", "peak", "passes"];
    assert_eq!(keys(&plan), top);
    assert_eq!(keys(&plan["backends"][0]), ["name", "priority", "planned_bytes"]);
    let node = ["name", "op", "dtype", "shape", "bytes", "sources", "view_of", "backend", "cause", "why", "split"];
    assert_eq!(keys(&plan["nodes"][0]), node);
    assert_eq!(keys(&plan["splits"][0]), ["index", "backend", "nodes", "inputs"]);
    assert_eq!(keys(&plan["copies"][0]), ["of", "on", "bytes", "split"]);
    assert_eq!(keys(&plan["buffers"][0]), ["backend", "bytes"]);
    let allocation = ["name", "backend", "buffer", "offset", "bytes", "first", "last", "in_place_of"];
    assert_eq!(keys(&plan["allocations"][0]), allocation);
    assert_eq!(keys(&plan["peak"]), ["planned_bytes", "lower_bound_bytes"]);
    assert_eq!(keys(&plan["passes"][0]), ["name", "ns", "changed"]);

    let names: Vec<&str> = plan["nodes"].as_array().expect("nodes").iter().filter_map(|n| n["name"].as_str()).collect();
    assert_eq!(names, ["w1", "w2", "x", "h", "r", "y"]);
    let node = |name: &str| plan["nodes"].as_array().expect("nodes").iter().find(|n| n["name"] == name).expect("there");
    assert_eq!((node("x")["op"].as_str(), node("x")["cause"].as_str()), (Some("none"), Some("input")));
    assert_eq!(ids(&node("h")["shape"]), [32, 2, 1, 1]);
    assert_eq!((node("h")["backend"].as_str(), node("y")["backend"].as_str()), (Some("gpu"), Some("cpu")));
    assert_eq!(texts(&node("h")["sources"]), ["w1", "x"]);
    assert_eq!(texts(&plan["splits"][1]["inputs"]), ["r"]);
    let copies = plan["copies"].as_array().expect("copies");
    assert_eq!(copies.len(), 2);
    assert_eq!((copies[0]["of"].as_str(), copies[0]["on"].as_str()), (Some("x"), Some("gpu")));
    assert_eq!((copies[0]["bytes"].as_u64(), copies[0]["split"].as_u64()), (Some(512), Some(0)));
    let find = |name: &str| plan["allocations"].as_array().expect("allocations").iter().find(|a| a["name"] == name);
    assert_eq!(find("r").expect("planned")["in_place_of"].as_str(), Some("h"));
    assert!(find("gpu#x#0").is_some());
    assert_eq!(plan["passes"].as_array().map(Vec::len), Some(10));
}

#[test]
fn text_stops_after_the_pass_that_was_asked_for() {
    let files = Files::new();
    let graph = files.write("two.graph", TWO);
    let text = entensor("plan", &graph, &[]).ok();
    assert!(text.starts_with("# index\n0 w1 = tensor in gpu.weights (weights) : f32 [64,32]\n"), "{text}");
    assert!(text.contains("# publish\n"));
    let until = entensor("plan", &graph, &["--until", "split"]).ok();
    assert!(until.ends_with("  copies r\n") && text.starts_with(until.trim_end()), "{until}");
    entensor("plan", &graph, &["--until", "nowhere"]).failed(2);
    entensor("plan", &graph, &["--until", "split", "--format", "dot"]).failed(2);
}

#[test]
fn graph_text_and_drawings_come_from_the_same_graph() {
    let files = Files::new();
    let graph = files.write("two.graph", TWO);
    let text = entensor("plan", &graph, &["--format", "graph"]).ok();
    assert_eq!(text, "backend gpu memory=device0\n".to_owned() + TWO.split_once('\n').expect("lines").1);
    let copies = entensor("plan", &graph, &["--format", "graph", "--copies", "3", "--verify"]).ok();
    assert!(copies.contains("\ncopies 3\n"), "{copies}");
    let dot = entensor("plan", &graph, &["--format", "dot"]).ok();
    assert!(dot.starts_with("digraph plan {") && dot.ends_with("}\n"), "{dot}");
    assert!(dot.contains("label=\"0 gpu\"") && dot.contains("style=dashed"), "{dot}");
}

#[test]
fn other_machines_can_be_asked_about() {
    let files = Files::new();
    let graph = files.write("two.graph", TWO);
    let machine = files.write("one.graph", "backend gpu memory=device0 ops=all,-relu\nbackend cpu\n");
    let machine = machine.to_str().expect("UTF-8");
    let plan = entensor("plan", &graph, &["--machine", machine, "--format", "json"]).json();
    let relu = plan["nodes"].as_array().expect("nodes").iter().find(|n| n["name"] == "r").expect("there").clone();
    assert_eq!(relu["backend"].as_str(), Some("cpu"));
    let lacking = files.write("cpu.graph", "backend cpu\n");
    let error = entensor("plan", &graph, &["--machine", lacking.to_str().expect("UTF-8")]).failed(1);
    assert!(error.contains("gpu"), "{error}");
}

#[test]
fn planning_errors_are_json_for_tools_and_words_for_people() {
    let files = Files::new();
    let nowhere = "backend cpu ops=all,-relu\ninput x f32 [4]\ny = relu x output\n";
    let graph = files.write("nowhere.graph", nowhere);
    for (subcommand, args) in [("plan", &["--format", "json"][..]), ("explain", &["--json"])] {
        let ran = entensor(subcommand, &graph, args);
        assert_eq!(ran.code, 1, "{ran:?}");
        assert!(ran.stderr.contains("relu"), "{ran:?}");
        let error: Value = serde_json::from_str(&ran.stdout).expect("one JSON value");
        assert_eq!(keys(&error["error"]), ["kind", "message", "node", "backend"]);
        assert_eq!((error["error"]["kind"].as_str(), error["error"]["node"].as_str()), (Some("NoBackend"), Some("y")));
        assert!(error["error"]["backend"].is_null());
    }
    entensor("plan", &graph, &[]).failed(1);
    entensor("explain", &graph, &[]).failed(1);
    // What comes before the pass that fails can still be seen.
    let text = entensor("plan", &graph, &["--until", "probe"]).ok();
    assert!(text.contains("y runs on []"), "{text}");

    let broken = files.write("broken.graph", "backend cpu\ninput x f32 [4]\ny = rellu x\n");
    let error = entensor("plan", &broken, &[]).failed(2);
    assert!(error.contains("broken.graph:3:5") && error.contains("unknown op `rellu`"), "{error}");
    let ran = entensor("plan", &broken, &["--format", "json"]);
    let error: Value = serde_json::from_str(&ran.stdout).expect("one JSON value");
    assert_eq!((ran.code, error["error"]["kind"].as_str()), (2, Some("GraphText")));
}

#[test]
fn models_are_planned_on_their_backends_and_on_other_machines() {
    let files = Files::new();
    let model = files.write("tiny.gguf", Tiny::default().build());
    let plan = entensor("plan", &model, &["--tokens", "5", "--format", "json", "--verify"]).json();
    let node = |plan: &Value, name: &str| -> Value {
        plan["nodes"].as_array().expect("nodes").iter().find(|n| n["name"] == name).expect("there").clone()
    };
    assert_eq!(ids(&node(&plan, "ids")["shape"]), [5, 1, 1, 1]);
    assert_eq!(plan["splits"].as_array().map(Vec::len), Some(1));

    let text = entensor("plan", &model, &["--format", "graph", "--backend", "oracle"]).ok();
    assert!(text.starts_with("backend oracle\nbuffer "), "{text}");
    let again = files.write("again.graph", &text);
    assert_eq!(entensor("plan", &again, &["--format", "graph", "--verify"]).ok(), text);

    let machine = files.write("gpu.graph", "backend gpu memory=device0\nbackend cpu\n");
    let machine = machine.to_str().expect("UTF-8");
    let on = |layers: &str, name: &str| {
        let args = ["--machine", machine, "--gpu-layers", layers, "--format", "json", "--verify", "--copies", "2"];
        node(&entensor("plan", &model, &args).json(), name)["backend"].as_str().map(str::to_owned)
    };
    assert_eq!(on("0", "output.weight").as_deref(), Some("cpu"));
    assert_eq!(on("1", "output.weight").as_deref(), Some("gpu"));
    assert_eq!(on("1", "blk.1.attn_q.weight").as_deref(), Some("gpu"));
    assert_eq!(on("1", "cache_k.1").as_deref(), Some("gpu"));
    assert_eq!(on("1", "blk.0.attn_q.weight").as_deref(), Some("cpu"));
    assert_eq!(on("99", "cache_v.0").as_deref(), Some("gpu"));
    assert_eq!(on("99", "token_embd.weight").as_deref(), Some("cpu"));

    // A context that needs far more memory than this machine has.
    let args = ["--machine", machine, "--gpu-layers", "99", "--ctx", "2147483647", "--format", "json", "--verify"];
    let plan = entensor("plan", &model, &args).json();
    assert_eq!(ids(&node(&plan, "cache_k.1")["shape"]), [32, 2_147_483_647, 1, 1]);

    let tied = files.write("tied.gguf", Tiny { tied: true, ..Tiny::default() }.build());
    let args = ["--machine", machine, "--gpu-layers", "1", "--format", "json", "--verify"];
    let plan = entensor("plan", &tied, &args).json();
    assert_eq!(node(&plan, "token_embd.weight")["backend"].as_str(), Some("gpu"));
    assert_eq!(node(&plan, "logits")["backend"].as_str(), Some("gpu"));
}

#[test]
fn explain_has_a_line_for_each_node() {
    let files = Files::new();
    let graph = files.write("two.graph", TWO);
    let text = entensor("explain", &graph, &[]).ok();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 1 + 6 + 1 + 2, "{text}");
    assert!(lines[6].starts_with("y ") && lines[6].contains("weights `w2` lie in `cpu.weights`"), "{text}");
    let report = entensor("explain", &graph, &["--json"]).json();
    assert_eq!(keys(&report["nodes"][0]), ["node", "op", "dtype", "shape", "backend", "cause", "why"]);
    // Who stands for a device that is not here promises no more than any device.
    let meaning = "the same bits on the same device only";
    assert_eq!(lines[8..], [format!("gpu: {meaning}"), format!("cpu: {meaning}")], "{text}");
    assert_eq!(keys(&report["backends"][0]), ["backend", "sameness", "meaning"]);
    assert_eq!((report["backends"][1]["sameness"].as_str(), lines[7]), (Some("device"), ""));
    let model = files.write("tiny.gguf", Tiny::default().build());
    let text = entensor("explain", &model, &[]).ok();
    assert!(text.contains("lies in `kv_cache`") && text.contains("logits"), "{text}");
    for (spec, meaning) in [
        ("cpu:threads=1", "cpu: the same bits on the same machine with the same instruction level"),
        ("cpu:threads=1,simd=strict", "cpu: the same bits at every instruction level, on every x86-64 machine"),
    ] {
        let text = entensor("explain", &model, &["--backend", spec]).ok();
        assert_eq!(text.lines().last(), Some(meaning), "{text}");
    }
}

#[test]
fn options_that_do_not_fit_are_refused() {
    let files = Files::new();
    let graph = files.write("two.graph", TWO);
    let model = files.write("tiny.gguf", Tiny::default().build());
    for args in [&["--tokens", "2"][..], &["--ctx", "2"], &["--backend", "cpu"]] {
        let error = entensor("plan", &graph, args).failed(2);
        assert!(error.contains(args[0]), "{error}");
    }
    let error = entensor("plan", &model, &["--gpu-layers", "2"]).failed(2);
    assert!(error.contains("--machine"), "{error}");
    let single = files.write("cpu.graph", "backend cpu\n");
    let single = single.to_str().expect("UTF-8");
    let error = entensor("plan", &model, &["--gpu-layers", "2", "--machine", single]).failed(2);
    assert!(error.contains("two backends"), "{error}");
    let error = entensor("plan", &model, &["--machine", model.to_str().expect("UTF-8")]).failed(2);
    assert!(error.contains("--machine takes"), "{error}");
    for args in
        [&["--copies", "0"][..], &["--tokens", "0"], &["--tokens", "513"], &["--ctx", "0"], &["--format", "xml"]]
    {
        entensor("plan", &model, args).failed(2);
    }
    let error = entensor("plan", &model, &["--tokens", "97"]).failed(1);
    assert!(error.contains("96"), "{error}");
}
