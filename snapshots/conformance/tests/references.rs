//! Both backends against what NumPy and ONNX Runtime say: `snapshots/reference/ops`, by `snapshots/scripts/record_ops.py`.

mod common;

use std::{collections::BTreeMap, fs, path::Path};

use common::cpu;
use entensor_components::{Backend, OpKind};
use entensor_conformance::{Case, CaseOperand, Contents, Layout, Recorded};
use entensor_cpu::Simd;
use entensor_oracle::OracleBackend;
use serde_json::Value;

/// Files, and how many ops each must speak of.
const FAMILIES: [(&str, usize); 8] = [
    ("elementwise", 29),
    ("movement", 10),
    ("indexing", 2),
    ("reductions", 13),
    ("products", 3),
    ("attention", 2),
    ("recurrent", 2),
    ("spatial", 8),
];

fn records(family: &str) -> Vec<Value> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../reference/ops/{family}.json"));
    let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let file: Value = serde_json::from_str(&text).expect("the script writes JSON");
    file["records"].as_array().expect("a list of records").clone()
}

/// Numbers, or words for those that JSON lacks.
fn numbers(value: &Value) -> Vec<f64> {
    let number = |v: &Value| v.as_f64().or_else(|| v.as_str()?.parse().ok()).expect("a number");
    value.as_array().expect("a list of numbers").iter().map(number).collect()
}

fn bytes(hex: &Value) -> Contents {
    let hex = hex.as_str().expect("hexadecimal").as_bytes();
    let digit = |c: &u8| char::from(*c).to_digit(16).expect("a digit");
    let byte = |pair: &[u8; 2]| u8::try_from(digit(&pair[0]) * 16 + digit(&pair[1])).expect("two digits");
    Contents::Bytes(hex.as_chunks::<2>().0.iter().map(byte).collect())
}

/// The script's formula for one element.
fn formula(index: u32, seed: u32, count: u32) -> u32 {
    let mut h = index.wrapping_add(1).wrapping_mul(2_654_435_761).wrapping_add(seed.wrapping_mul(40503));
    h ^= h >> 15;
    h = h.wrapping_mul(2_246_822_519);
    h ^= h >> 13;
    h % count
}

fn contents(value: &Value, operand: &CaseOperand) -> Contents {
    if let Some(hex) = value.get("hex") {
        return bytes(hex);
    }
    if let Some(values) = value.get("values") {
        return Contents::Values(numbers(values));
    }
    let parameters = numbers(value);
    let [seed, low, count, denominator] = parameters[..] else { panic!("a formula has four numbers: {value}") };
    let [d0, d1, d2, d3] = operand.desc.shape.0;
    let mut values = Vec::new();
    for (i3, i2, i1) in (0..d3).flat_map(|i3| (0..d2).flat_map(move |i2| (0..d1).map(move |i1| (i3, i2, i1)))) {
        let i1 = if operand.layout == Layout::Broadcast { 0 } else { i1 };
        for i0 in 0..d0 {
            let index = u32::try_from(((i3 * d2 + i2) * d1 + i1) * d0 + i0).expect("records are small");
            let step = formula(index, seed as u32, count as u32);
            values.push((low + f64::from(step)) / denominator);
        }
    }
    Contents::Values(values)
}

fn recorded(record: &Value, case: Case) -> Recorded {
    let operands = record["in"].as_array().expect("a list of operands");
    assert_eq!(operands.len(), case.operands.len(), "{case}");
    let operands = operands.iter().zip(&case.operands).map(|(value, operand)| contents(value, operand)).collect();
    let out = &record["out"];
    let expected = out.get("hex").map_or_else(|| Contents::Values(numbers(out)), bytes);
    Recorded { case, operands, expected }
}

#[test]
fn both_backends_agree_with_numpy_and_onnx_runtime() {
    let oracle = OracleBackend::new("oracle");
    let (portable, detected) = (cpu(1, Simd::Portable), cpu(2, Simd::Detect));
    let backends = [(&oracle as &dyn Backend, ""), (&portable, " portable"), (&detected, " detected")];
    let mut faults = Vec::new();
    for (family, ops) in FAMILIES {
        let mut of_op: BTreeMap<String, usize> = BTreeMap::new();
        for record in records(family) {
            let line = record["case"].as_str().expect("a case's line");
            let name = line.split(' ').next().unwrap_or_default();
            *of_op.entry(name.into()).or_default() += 1;
            let case: Case = match line.parse() {
                Ok(case) => case,
                Err(error) => {
                    faults.push(format!("{line}: {error}"));
                    continue;
                }
            };
            let recorded = recorded(&record, case);
            for (backend, level) in backends {
                if let Err(fault) = recorded.check(backend) {
                    faults.push(format!("{}{level}: {line}: {fault}", backend.name()));
                }
            }
        }
        assert_eq!(of_op.len(), ops, "{family}: {of_op:?}");
        println!("{family}: {} records of {ops} ops", of_op.values().sum::<usize>());
    }
    assert!(faults.is_empty(), "{} faults\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn records_are_neither_square_nor_packed() {
    for (family, _) in FAMILIES {
        let mut strided: BTreeMap<OpKind, bool> = BTreeMap::new();
        for record in records(family) {
            let line = record["case"].as_str().expect("a case's line");
            let case: Case = line.parse().unwrap_or_else(|error| panic!("{line}: {error}"));
            for operand in &case.operands {
                let [d0, d1, ..] = operand.desc.shape.0;
                assert!(d0 != d1 || d0 == 1, "{case}");
            }
            let some = case.operands.is_empty() || case.operands.iter().any(|o| o.layout != Layout::Contiguous);
            *strided.entry(case.op.kind()).or_default() |= some;
        }
        for (kind, strided) in strided {
            assert!(strided, "{kind} has packed operands only");
        }
    }
}
