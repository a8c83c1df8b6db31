//! The JSON and the text of a plan, for every file of the corpus and every fixture that plans.

mod common;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs,
    panic::{self, AssertUnwindSafe},
    path::Path,
};

use common::{Files, Tiny, entensor, graphs};
use entensor::{
    Pass,
    components::{Cause, DType, OpKind},
};
use serde_json::Value;

/// What a value has to be.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Text,
    Number,
    Texts,
    Shape,
    MaybeText,
    MaybeNumber,
}

use Kind::{MaybeNumber, MaybeText, Number, Shape, Text, Texts};

/// The contract: every key of every object, in order.
const OBJECTS: [(&str, &[(&str, Kind)]); 7] = [
    ("backends", &[("name", Text), ("priority", Number), ("planned_bytes", Number)]),
    (
        "nodes",
        &[
            ("name", Text),
            ("op", Text),
            ("dtype", Text),
            ("shape", Shape),
            ("bytes", Number),
            ("sources", Texts),
            ("view_of", MaybeText),
            ("backend", Text),
            ("cause", Text),
            ("why", Text),
            ("split", MaybeNumber),
        ],
    ),
    ("splits", &[("index", Number), ("backend", Text), ("nodes", Texts), ("inputs", Texts)]),
    ("copies", &[("of", Text), ("on", Text), ("bytes", Number), ("split", Number)]),
    ("buffers", &[("backend", Text), ("bytes", Number)]),
    (
        "allocations",
        &[
            ("name", Text),
            ("backend", Text),
            ("buffer", Number),
            ("offset", Number),
            ("bytes", Number),
            ("first", Number),
            ("last", Number),
            ("in_place_of", MaybeText),
        ],
    ),
    ("passes", &[("name", Text), ("ns", Number), ("changed", Number)]),
];

fn is(value: &Value, kind: Kind) -> bool {
    match kind {
        Text => value.as_str().is_some_and(|text| !text.is_empty()),
        Number => value.is_u64(),
        Texts => value.as_array().is_some_and(|list| list.iter().all(|v| is(v, Text))),
        Shape => value.as_array().is_some_and(|list| list.len() == 4 && list.iter().all(|v| is(v, Number))),
        MaybeText => value.is_null() || is(value, Text),
        MaybeNumber => value.is_null() || is(value, Number),
    }
}

/// A plan as JSON, with shorthands for its parts.
struct Plan {
    file: String,
    json: Value,
}

impl Plan {
    fn list(&self, key: &str) -> &[Value] {
        self.json[key].as_array().expect("an array")
    }

    fn check_keys(&self) {
        let object = self.json.as_object().expect("an object");
        let top = ["backends", "nodes", "splits", "copies", "buffers", "allocations", "peak", "passes"];
        assert_eq!(object.keys().collect::<Vec<_>>(), top, "{}", self.file);
        for (list, keys) in OBJECTS {
            for entry in self.list(list) {
                let names: Vec<&str> = keys.iter().map(|(name, _)| *name).collect();
                let found: Vec<&String> = entry.as_object().expect("an object").keys().collect();
                assert_eq!(found, names, "{}: {list}", self.file);
                for &(name, kind) in keys {
                    assert!(is(&entry[name], kind), "{}: {list}: {name} is no {kind:?}: {entry}", self.file);
                }
            }
        }
        let peak = self.json["peak"].as_object().expect("an object");
        assert_eq!(peak.keys().collect::<Vec<_>>(), ["planned_bytes", "lower_bound_bytes"]);
        assert!(peak.values().all(Value::is_u64));
        let passes: Vec<&str> = self.list("passes").iter().map(|pass| text(&pass["name"])).collect();
        let expected: Vec<&str> = Pass::ALL.into_iter().filter(|pass| *pass != Pass::Compute).map(Pass::name).collect();
        assert_eq!(passes, expected, "{}", self.file);
    }

    fn check_nodes(&self) {
        let file = &self.file;
        let backends: HashSet<&str> = self.list("backends").iter().map(|b| text(&b["name"])).collect();
        let causes: HashSet<&str> = Cause::ALL.into_iter().map(Cause::name).collect();
        let splits = self.list("splits");
        let mut seen: HashMap<&str, &Value> = HashMap::new();
        let mut leaves_are_over = false;
        for node in self.list("nodes") {
            let name = text(&node["name"]);
            let op = OpKind::from_name(text(&node["op"])).unwrap_or_else(|| panic!("{file}: {node}"));
            let is_leaf = op == OpKind::None;
            assert!(!(is_leaf && leaves_are_over), "{file}: leaf {name} behind a node");
            leaves_are_over |= !is_leaf;
            assert!(
                backends.contains(text(&node["backend"])) && causes.contains(text(&node["cause"])),
                "{file}: {node}"
            );
            assert!(texts(&node["sources"]).iter().all(|source| seen.contains_key(source)), "{file}: {node}");
            assert!(texts(&node["sources"]).len() >= op.row().min_operands(), "{file}: {node}");
            if let Some(root) = node["view_of"].as_str() {
                let root = seen.get(root).unwrap_or_else(|| panic!("{file}: {node}"));
                assert!(root["view_of"].is_null(), "{file}: {name} is a view of a view");
                // Several backends may use memory that exists already.
                let is_shared = root["cause"] == "memory";
                assert!(is_shared || root["backend"] == node["backend"], "{file}: {node}");
            } else {
                let dtype = DType::from_name(text(&node["dtype"])).expect("a dtype");
                let shape = numbers(&node["shape"]);
                let row_bytes = dtype.row_bytes(shape[0]).expect("whole blocks");
                assert_eq!(number(&node["bytes"]), row_bytes * shape[1] * shape[2] * shape[3], "{file}: {node}");
            }
            assert_eq!(node["split"].is_u64(), op.row().computes(), "{file}: {node}");
            if let Some(split) = node["split"].as_u64() {
                let split = &splits[usize::try_from(split).expect("small")];
                assert!(texts(&split["nodes"]).contains(&name), "{file}: {node}");
                assert_eq!(split["backend"], node["backend"], "{file}: {node}");
            }
            assert!(seen.insert(name, node).is_none(), "{file}: two nodes are named {name}");
        }
    }

    /// Splits follow each other and hold every computing node once, in order; copies are what they list.
    fn check_splits_and_copies(&self) {
        let file = &self.file;
        let nodes = self.list("nodes");
        let computing: Vec<&str> =
            nodes.iter().filter(|node| node["split"].is_u64()).map(|node| text(&node["name"])).collect();
        let launched: Vec<&str> = self.list("splits").iter().flat_map(|split| texts(&split["nodes"])).collect();
        assert_eq!(launched, computing, "{file}");
        let bytes: HashMap<&str, u64> = nodes.iter().map(|n| (text(&n["name"]), number(&n["bytes"]))).collect();
        let mut expected = Vec::new();
        for (index, split) in self.list("splits").iter().enumerate() {
            assert_eq!(number(&split["index"]), index as u64, "{file}");
            let inputs = texts(&split["inputs"]);
            assert_eq!(inputs.iter().collect::<HashSet<_>>().len(), inputs.len(), "{file}: {split}");
            expected.extend(inputs.into_iter().map(|of| (of, text(&split["backend"]), bytes[of], index as u64)));
        }
        let copies: Vec<_> = self.list("copies").iter().map(copy_row).collect();
        assert_eq!(copies, expected, "{file}");
        let allocations: HashSet<&str> = self.list("allocations").iter().map(|a| text(&a["name"])).collect();
        for (of, on, ..) in copies {
            assert!(allocations.contains(&*format!("{on}#{of}#0")), "{file}: the copy of {of} on {on} has no memory");
        }
    }

    fn node(&self, name: &str) -> &Value {
        self.list("nodes").iter().find(|node| node["name"] == name).unwrap_or_else(|| panic!("{}: {name}", self.file))
    }

    /// Whether a node reads a tensor, itself or as a view.
    fn is_operand(&self, node: &str, tensor: &str) -> bool {
        let root = |name: &str| self.node(name)["view_of"].as_str().unwrap_or(name).to_owned();
        texts(&self.node(node)["sources"]).iter().any(|source| root(source) == tensor || *source == tensor)
    }

    fn check(&self) {
        self.check_keys();
        self.check_nodes();
        self.check_splits_and_copies();
        self.check_memory();
    }

    fn check_memory(&self) {
        let file = &self.file;
        let buffers = self.list("buffers");
        let mut by_backend: BTreeMap<&str, u64> = BTreeMap::new();
        for buffer in buffers {
            *by_backend.entry(text(&buffer["backend"])).or_default() += number(&buffer["bytes"]);
        }
        for (priority, backend) in self.list("backends").iter().enumerate() {
            let planned = by_backend.remove(text(&backend["name"])).unwrap_or(0);
            assert_eq!(number(&backend["priority"]), priority as u64, "{file}");
            assert_eq!(number(&backend["planned_bytes"]), planned, "{file}: {backend}");
        }
        assert!(by_backend.is_empty(), "{file}: buffers of unknown backends: {by_backend:?}");
        let total: u64 = buffers.iter().map(|buffer| number(&buffer["bytes"])).sum();
        let (planned, bound) =
            (number(&self.json["peak"]["planned_bytes"]), number(&self.json["peak"]["lower_bound_bytes"]));
        assert!(planned == total && bound <= planned, "{file}: {}", self.json["peak"]);

        let allocations = self.list("allocations");
        let by_name: HashMap<&str, &Value> = allocations.iter().map(|a| (text(&a["name"]), a)).collect();
        assert_eq!(by_name.len(), allocations.len(), "{file}: two allocations share a name");
        for a in allocations {
            let buffer = &buffers[usize::try_from(number(&a["buffer"])).expect("small")];
            assert!(range(a).1 <= number(&buffer["bytes"]), "{file}: {a} in {buffer}");
            assert!(number(&a["first"]) <= number(&a["last"]), "{file}: {a}");
            if let Some(other) = a["in_place_of"].as_str() {
                let other = by_name.get(other).unwrap_or_else(|| panic!("{file}: {a}"));
                assert!(overlap(a, other) && a["name"] != other["name"], "{file}: {a} in place of {other}");
                assert_eq!(other["last"], a["first"], "{file}: {a} in place of {other}");
                assert!(self.is_operand(tensor_of(a), tensor_of(other)), "{file}: {a} in place of {other}");
            }
        }
        for (i, a) in allocations.iter().enumerate() {
            for b in allocations[..i].iter().filter(|b| overlap(a, b)) {
                let apart = number(&a["last"]) < number(&b["first"]) || number(&b["last"]) < number(&a["first"]);
                let handed_over = a["in_place_of"] == b["name"] || b["in_place_of"] == a["name"];
                assert!(apart || handed_over, "{file}: {a} and {b} are alive at a time");
            }
        }
        // What is computed and is no view of something else has memory of its own.
        for node in self.list("nodes").iter().filter(|node| node["split"].is_u64() && node["view_of"].is_null()) {
            let found = by_name.get(text(&node["name"]));
            assert!(found.is_some_and(|a| number(&a["bytes"]) >= number(&node["bytes"])), "{file}: {node}");
        }
    }
}

fn copy_row(copy: &Value) -> (&str, &str, u64, u64) {
    (text(&copy["of"]), text(&copy["on"]), number(&copy["bytes"]), number(&copy["split"]))
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a text")
}

fn texts(value: &Value) -> Vec<&str> {
    value.as_array().expect("an array").iter().map(text).collect()
}

fn number(value: &Value) -> u64 {
    value.as_u64().expect("a number")
}

fn numbers(value: &Value) -> Vec<u64> {
    value.as_array().expect("an array").iter().map(number).collect()
}

fn range(allocation: &Value) -> (u64, u64) {
    (number(&allocation["offset"]), number(&allocation["offset"]) + number(&allocation["bytes"]))
}

/// The tensor that an allocation is of: `NAME`, also of `BACKEND#NAME#SLOT`.
fn tensor_of(allocation: &Value) -> &str {
    let name = text(&allocation["name"]);
    name.split('#').nth(1).unwrap_or(name)
}

fn overlap(a: &Value, b: &Value) -> bool {
    let ((a_start, a_end), (b_start, b_end)) = (range(a), range(b));
    a["buffer"] == b["buffer"] && a_start < b_end && b_start < a_end
}

#[test]
fn every_key_type_and_reference_holds_for_every_graph() {
    let mut planned = 0;
    for path in graphs() {
        for copies in [None, Some("4")] {
            let args =
                ["--format", "json", "--verify"].into_iter().chain(copies.into_iter().flat_map(|n| ["--copies", n]));
            let ran = entensor("plan", &path, &args.collect::<Vec<_>>());
            let json: Value = serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{path:?}: {error}"));
            if ran.code != 0 {
                assert!(
                    ran.code == 1 && is(&json["error"]["kind"], Text) && path.to_string_lossy().contains("fixtures")
                );
                continue;
            }
            let plan = Plan { file: path.to_string_lossy().into_owned(), json };
            plan.check();
            planned += 1;
        }
    }
    assert!(planned > 80, "{planned}");
}

/// Plans that are wrong in one place each; the checks find all of them.
#[test]
fn the_checks_bite() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../snapshots/corpus/llama_decode_three.graph");
    let good = entensor("plan", &path, &["--format", "json"]).json();
    let in_place = |json: &Value| {
        let allocations = json["allocations"].as_array().expect("allocations");
        allocations.iter().position(|a| a["in_place_of"].is_string()).expect("something is computed in place")
    };
    let place = in_place(&good);
    let wrong: [(&str, Box<dyn Fn(&mut Value)>); 14] = [
        ("a key is gone", Box::new(|json| drop(json["nodes"][3].as_object_mut().expect("an object").remove("why")))),
        ("a list is gone", Box::new(|json| drop(json.as_object_mut().expect("an object").remove("peak")))),
        ("a number is a text", Box::new(|json| json["buffers"][0]["bytes"] = "12".into())),
        ("an unknown cause", Box::new(|json| json["nodes"][7]["cause"] = "whim".into())),
        ("an operand that comes later", Box::new(|json| json["nodes"][400]["sources"][0] = "logits".into())),
        (
            "a node of another split",
            Box::new(|json| {
                let node = json["nodes"].as_array_mut().expect("nodes").last_mut().expect("a node");
                node["split"] = 0.into();
            }),
        ),
        ("a split in the wrong place", Box::new(|json| json["splits"][1]["index"] = 2.into())),
        ("a copy is left out", Box::new(|json| drop(json["copies"].as_array_mut().expect("copies").remove(1)))),
        ("a copy of other bytes", Box::new(|json| json["copies"][0]["bytes"] = 1.into())),
        ("a buffer that is too small", Box::new(|json| json["buffers"][0]["bytes"] = 64.into())),
        ("a sum that is none", Box::new(|json| json["peak"]["planned_bytes"] = 1.into())),
        (
            "a life that ends before it begins",
            Box::new(|json| {
                let mut all = json["allocations"].as_array_mut().expect("allocations").iter_mut();
                all.find(|a| a["first"] != 0).expect("one begins later")["last"] = 0.into();
            }),
        ),
        (
            "memory of nobody that is taken over",
            Box::new(move |json| {
                json["allocations"][place]["in_place_of"] = "nobody".into();
            }),
        ),
        (
            "memory that is taken over from no operand",
            Box::new(move |json| {
                json["allocations"][place]["in_place_of"] = Value::Null;
            }),
        ),
    ];
    Plan { file: "good".into(), json: good.clone() }.check();
    for (what, change) in wrong {
        let mut json = good.clone();
        change(&mut json);
        let plan = Plan { file: what.into(), json };
        let found = panic::catch_unwind(AssertUnwindSafe(|| plan.check()));
        assert!(found.is_err(), "{what} was not found");
    }
}

/// What `--format graph` prints is planned to the same text.
#[test]
fn the_printed_graph_is_planned_to_the_same_text() {
    let files = Files::new();
    for path in graphs() {
        let plan = entensor("plan", &path, &[]);
        let graph = entensor("plan", &path, &["--format", "graph"]);
        if plan.code != 0 {
            continue;
        }
        let again = files.write("again.graph", graph.ok());
        assert!(entensor("plan", &again, &[]).stdout == plan.stdout, "{path:?}");
        let twice = entensor("plan", &again, &["--format", "graph"]).ok();
        assert!(twice == fs::read_to_string(&again).expect("it was written"), "{path:?}");
    }
}

/// The examples of machines, on a model.
#[test]
fn models_are_planned_on_every_example_of_a_machine() {
    let files = Files::new();
    let model = files.write("tiny.gguf", Tiny::default().build());
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../snapshots/machines");
    let mut count = 0;
    for entry in fs::read_dir(folder).expect("the examples are there") {
        let machine = entry.expect("readable").path();
        let machine = machine.to_str().expect("UTF-8");
        for layers in ["0", "1", "99"] {
            let args = ["--machine", machine, "--gpu-layers", layers, "--tokens", "8", "--verify", "--format", "json"];
            let json = entensor("plan", &model, &args).json();
            Plan { file: machine.into(), json }.check();
            let args = ["--machine", machine, "--gpu-layers", layers, "--tokens", "8"];
            assert!(entensor("explain", &model, &args).ok().lines().count() > 60, "{machine}");
        }
        count += 1;
    }
    assert!(count >= 4);
}
