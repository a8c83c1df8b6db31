//! `entensor inspect`: what a model file holds.

use std::{collections::BTreeMap, fmt::Write as _, path::PathBuf};

use clap::Args;
use entensor::Shape;
use entensor_models::{
    gguf::{GgufFile, Number, ValueRef},
    safetensors::SafetensorsFile,
};
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
  entensor inspect weights.safetensors

Shapes are listed fastest axis first, for safetensors too. JSON: {\"version\", \"alignment\", \"file_bytes\", \"tensor_bytes\", \"metadata\":{key: value},
\"dtypes\":[{\"dtype\",\"tensors\",\"elements\",\"bytes\"}], \"tensors\":[{\"name\",\"dtype\",\"shape\",\"bytes\",\"offset\"}]};
an array of more than 8 elements becomes {\"length\":N,\"first\":[...]}. Of a safetensors file there is \"format\" instead of
\"version\" and \"alignment\".";

/// Print what a model file holds: metadata, tensors, dtypes, bytes
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct InspectArgs {
    /// The model, a GGUF file, or tensors, a file with a name that ends in .safetensors
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
    dtype: String,
    tensors: u64,
    elements: u64,
    bytes: u64,
}

#[derive(Serialize)]
struct TensorRow {
    name: String,
    dtype: String,
    shape: Vec<u64>,
    bytes: u64,
    offset: u64,
}

/// Runs the command.
pub(crate) fn run(args: &InspectArgs) -> Result<(), CliError> {
    if args.model.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("safetensors")) {
        let file = SafetensorsFile::open(&args.model)?;
        let report = SafetensorsReport::of(&file);
        return if args.json { print_json(&report) } else { print(&report.text()) };
    }
    let file = GgufFile::open(&args.model)?;
    let report = Report::of(&file);
    if args.json { print_json(&report) } else { print(&report.text(&file)) }
}

impl Report {
    fn of(file: &GgufFile) -> Self {
        let header = file.header();
        let rows = file.tensors().iter().map(|tensor| TensorRow {
            name: tensor.name.clone(),
            dtype: tensor.dtype.to_string(),
            shape: tensor.shape.into_iter().take(tensor.n_dims as usize).collect(),
            bytes: tensor.size_bytes,
            offset: tensor.offset_bytes,
        });
        let tensors: Vec<TensorRow> = rows.collect();
        let dtypes = shares(&tensors);
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
        let (dtypes, tensors) = tables(&self.dtypes, &self.tensors);
        let _ = write!(text, "{metadata}\n{dtypes}\n{tensors}");
        text
    }
}

#[derive(Serialize)]
struct SafetensorsReport {
    format: &'static str,
    file_bytes: u64,
    tensor_bytes: u64,
    metadata: BTreeMap<String, String>,
    dtypes: Vec<DTypeRow>,
    tensors: Vec<TensorRow>,
}

impl SafetensorsReport {
    fn of(file: &SafetensorsFile) -> Self {
        let rows = file.tensors().iter().map(|tensor| TensorRow {
            name: tensor.name.clone(),
            dtype: tensor.dtype.clone(),
            shape: tensor.shape.clone(),
            bytes: tensor.size_bytes,
            offset: tensor.offset_bytes,
        });
        let tensors: Vec<TensorRow> = rows.collect();
        let dtypes = shares(&tensors);
        Self {
            format: "safetensors",
            file_bytes: file.mapping().len() as u64,
            tensor_bytes: dtypes.iter().map(|row| row.bytes).sum(),
            metadata: file.metadata().iter().cloned().collect(),
            dtypes,
            tensors,
        }
    }

    /// The report for people.
    fn text(&self) -> String {
        let mut metadata = Table::new(&[("key", Align::Left), ("value", Align::Left)]);
        for (key, value) in &self.metadata {
            metadata.row([excerpt(key, SHOWN_CHARS), excerpt(value, SHOWN_CHARS)]);
        }
        let (dtypes, tensors) = tables(&self.dtypes, &self.tensors);
        format!(
            "safetensors, {}, {} metadata entries, {} tensors of {}\n\n{metadata}\n{dtypes}\n{tensors}",
            bytes(self.file_bytes),
            self.metadata.len(),
            self.tensors.len(),
            bytes(self.tensor_bytes),
        )
    }
}

/// The share of each dtype, the heaviest first.
fn shares(tensors: &[TensorRow]) -> Vec<DTypeRow> {
    let mut dtypes: BTreeMap<&str, DTypeRow> = BTreeMap::new();
    for tensor in tensors {
        let new = || DTypeRow { dtype: tensor.dtype.clone(), tensors: 0, elements: 0, bytes: 0 };
        let row = dtypes.entry(&tensor.dtype).or_insert_with(new);
        row.tensors += 1;
        let elements = tensor.shape.iter().fold(1_u64, |product, &extent| product.saturating_mul(extent));
        row.elements = row.elements.saturating_add(elements);
        row.bytes = row.bytes.saturating_add(tensor.bytes);
    }
    let mut dtypes: Vec<DTypeRow> = dtypes.into_values().collect();
    // A stable sort leaves equals by name.
    dtypes.sort_by_key(|row| std::cmp::Reverse(row.bytes));
    dtypes
}

/// The tables of dtypes and of tensors.
fn tables(dtypes: &[DTypeRow], tensors: &[TensorRow]) -> (Table, Table) {
    let mut dtype_table = Table::new(&[
        ("dtype", Align::Left),
        ("tensors", Align::Right),
        ("elements", Align::Right),
        ("bytes", Align::Right),
    ]);
    for row in dtypes {
        let (tensors, elements) = (row.tensors.to_string(), row.elements.to_string());
        dtype_table.row([row.dtype.clone(), tensors, elements, bytes(row.bytes)]);
    }
    let mut tensor_table = Table::new(&[
        ("tensor", Align::Left),
        ("dtype", Align::Left),
        ("shape", Align::Left),
        ("bytes", Align::Right),
        ("offset", Align::Right),
    ]);
    for row in tensors {
        // Shapes of more axes than graphs have are shown as they are.
        let shape = Shape::new(&row.shape).map_or_else(|| format!("{:?}", row.shape), |shape| shape.to_string());
        let (size, offset) = (row.bytes.to_string(), row.offset.to_string());
        tensor_table.row([excerpt(&row.name, SHOWN_CHARS), row.dtype.clone(), shape, size, offset]);
    }
    (dtype_table, tensor_table)
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
