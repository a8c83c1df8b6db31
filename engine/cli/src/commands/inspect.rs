//! `entensor inspect`: what a model file holds.

use std::{collections::BTreeMap, fmt::Write as _, path::PathBuf};

use clap::Args;
use entensor::Shape;
use entensor_models::gguf::{GgufFile, Number, ValueRef};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::{
    error::CliError,
    figures::{Align, Table, bytes},
    output::{excerpt, print, print_json},
};

/// Elements of a long array that are shown.
const SHOWN: usize = 8;

/// Characters of a string that are shown to people.
const SHOWN_CHARS: usize = 80;

const EXAMPLES: &str = "\
Examples:
  entensor inspect model.gguf
  entensor inspect model.gguf --json

JSON: {\"version\", \"alignment\", \"file_bytes\", \"tensor_bytes\", \"metadata\":{key: value},
\"dtypes\":[{\"dtype\",\"tensors\",\"elements\",\"bytes\"}], \"tensors\":[{\"name\",\"dtype\",\"shape\",\"bytes\",\"offset\"}]};
an array of more than 8 elements becomes {\"length\":N,\"first\":[...]}.";

/// Print what a model file holds: metadata, tensors, dtypes, bytes
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct InspectArgs {
    /// The model, a GGUF file
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    version: u32,
    alignment: u64,
    file_bytes: u64,
    tensor_bytes: u64,
    metadata: Map<String, Value>,
    dtypes: Vec<DTypeRow>,
    tensors: Vec<TensorRow>,
}

/// One dtype's share of the file.
#[derive(Serialize)]
struct DTypeRow {
    dtype: &'static str,
    tensors: u64,
    elements: u64,
    bytes: u64,
}

#[derive(Serialize)]
struct TensorRow {
    name: String,
    dtype: &'static str,
    shape: Vec<u64>,
    bytes: u64,
    offset: u64,
}

/// Runs the command.
pub(crate) fn run(args: &InspectArgs) -> Result<(), CliError> {
    let file = GgufFile::open(&args.model)?;
    let report = Report::of(&file);
    if args.json { print_json(&report) } else { print(&report.text(&file)) }
}

impl Report {
    fn of(file: &GgufFile) -> Self {
        let header = file.header();
        let mut dtypes: BTreeMap<&'static str, DTypeRow> = BTreeMap::new();
        let mut tensors = Vec::new();
        for tensor in file.tensors() {
            let dtype = tensor.dtype.name();
            let row = dtypes.entry(dtype).or_insert(DTypeRow { dtype, tensors: 0, elements: 0, bytes: 0 });
            row.tensors += 1;
            row.elements = row.elements.saturating_add(tensor.elements());
            row.bytes = row.bytes.saturating_add(tensor.size_bytes);
            tensors.push(TensorRow {
                name: tensor.name.clone(),
                dtype,
                shape: tensor.shape.into_iter().take(tensor.n_dims as usize).collect(),
                bytes: tensor.size_bytes,
                offset: tensor.offset_bytes,
            });
        }
        let mut dtypes: Vec<DTypeRow> = dtypes.into_values().collect();
        // The heaviest first; a stable sort leaves equals by name.
        dtypes.sort_by_key(|row| std::cmp::Reverse(row.bytes));
        Self {
            version: header.version,
            alignment: header.alignment,
            file_bytes: file.mapping().len() as u64,
            tensor_bytes: dtypes.iter().map(|row| row.bytes).sum(),
            metadata: file.metadata().iter().map(|(key, value)| (key.to_owned(), to_json(value))).collect(),
            dtypes,
            tensors,
        }
    }

    /// The report for people.
    fn text(&self, file: &GgufFile) -> String {
        let mut text = String::new();
        let _ = writeln!(
            text,
            "GGUF version {}, {}, {} metadata entries, {} tensors of {}, aligned to {}\n",
            self.version,
            bytes(self.file_bytes),
            self.metadata.len(),
            self.tensors.len(),
            bytes(self.tensor_bytes),
            self.alignment,
        );
        let mut metadata = Table::new(&[("key", Align::Left), ("type", Align::Left), ("value", Align::Left)]);
        for (key, value) in file.metadata().iter() {
            let kind = file.metadata().kind(key).map_or_else(String::new, |kind| kind.to_string());
            metadata.row([excerpt(key, SHOWN_CHARS), kind, to_text(value)]);
        }
        let mut dtypes = Table::new(&[
            ("dtype", Align::Left),
            ("tensors", Align::Right),
            ("elements", Align::Right),
            ("bytes", Align::Right),
        ]);
        for row in &self.dtypes {
            dtypes.row([row.dtype.into(), row.tensors.to_string(), row.elements.to_string(), bytes(row.bytes)]);
        }
        let mut tensors = Table::new(&[
            ("tensor", Align::Left),
            ("dtype", Align::Left),
            ("shape", Align::Left),
            ("bytes", Align::Right),
            ("offset", Align::Right),
        ]);
        for row in &self.tensors {
            let shape = Shape::new(&row.shape).map_or_else(String::new, |shape| shape.to_string());
            let (size, offset) = (row.bytes.to_string(), row.offset.to_string());
            tensors.row([excerpt(&row.name, SHOWN_CHARS), row.dtype.into(), shape, size, offset]);
        }
        let _ = write!(text, "{metadata}\n{dtypes}\n{tensors}");
        text
    }
}

fn number(number: Number) -> Value {
    match number {
        // Every integer type of the format is at most 64 bits wide.
        Number::Integer(value) => u64::try_from(value).map_or_else(|_| json!(i64::try_from(value).ok()), |v| json!(v)),
        Number::Float(value) => json!(value),
        Number::Bool(value) => json!(value),
    }
}

fn to_json(value: ValueRef<'_>) -> Value {
    let (length, first): (usize, Vec<Value>) = match value {
        ValueRef::Number(value) => return number(value),
        ValueRef::Str(text) => return json!(text),
        ValueRef::Numbers(numbers) => (numbers.len(), numbers.iter().take(SHOWN).map(number).collect()),
        ValueRef::Strings(strings) => (strings.len(), strings.iter().take(SHOWN).map(|text| json!(text)).collect()),
    };
    if length > SHOWN { json!({ "length": length, "first": first }) } else { Value::Array(first) }
}

fn to_text(value: ValueRef<'_>) -> String {
    let (length, first): (usize, Vec<String>) = match value {
        ValueRef::Number(value) => return number(value).to_string(),
        ValueRef::Str(text) => return excerpt(text, SHOWN_CHARS),
        ValueRef::Numbers(numbers) => {
            (numbers.len(), numbers.iter().take(SHOWN).map(|value| number(value).to_string()).collect())
        }
        ValueRef::Strings(strings) => {
            let quoted = strings.iter().take(SHOWN).map(|text| format!("\"{}\"", excerpt(text, SHOWN)));
            (strings.len(), quoted.collect())
        }
    };
    format!("[{}{}]", first.join(", "), if length > SHOWN { ", …" } else { "" })
}
