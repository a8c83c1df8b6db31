//! `entensor backends`: what can compute here.

use std::fmt::Write as _;

use clap::Args;
use entensor::{AUTO, DeviceInfo, Registry, RegistryEntry};
use serde::Serialize;

use crate::{
    error::CliError,
    figures::{Align, Table, bytes},
    output::{print, print_json},
};

const EXAMPLES: &str = "\
Examples:
  entensor backends
  entensor backends --json
  entensor run model.gguf --backend gemm --backend cpu:threads=4 -p \"The capital of France is\"

Nothing is opened or started. JSON: {\"auto\":[text], \"backends\":[{\"name\",\"description\",\"options\":[key],\"flags\":[word],
\"devices\":[{\"backend\",\"description\",\"total_bytes\",\"free_bytes\",\"buffer_types\":[{\"name\",\"description\",\"memory\",\"align_bytes\",
\"max_buffer_bytes\",\"private_layout\"}]}]}]}; of buffer types the first is the default, and what is unknown or unlimited is null.";

/// List the backends that can be named, their options, devices and kinds of memory
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BackendsArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    auto: Vec<String>,
    backends: Vec<BackendRow>,
}

#[derive(Serialize)]
struct BackendRow {
    name: &'static str,
    description: &'static str,
    options: &'static [&'static str],
    flags: &'static [&'static str],
    devices: Vec<DeviceRow>,
}

#[derive(Serialize)]
struct DeviceRow {
    backend: String,
    description: String,
    total_bytes: Option<u64>,
    free_bytes: Option<u64>,
    buffer_types: Vec<TypeRow>,
}

#[derive(Serialize)]
struct TypeRow {
    name: String,
    description: String,
    memory: String,
    align_bytes: u64,
    max_buffer_bytes: Option<u64>,
    private_layout: bool,
}

/// Runs the command.
pub(crate) fn run(args: &BackendsArgs) -> Result<(), CliError> {
    let registry = Registry::default();
    let auto = registry.expand(AUTO).map_err(|error| CliError::Engine(error.into()))?;
    let report = Report { auto, backends: registry.entries().iter().map(BackendRow::of).collect() };
    if args.json { print_json(&report) } else { print(&report.text()) }
}

impl BackendRow {
    fn of(entry: &RegistryEntry) -> Self {
        let devices = (entry.devices)().into_iter().map(DeviceRow::of).collect();
        let RegistryEntry { name, description, options, flags, .. } = *entry;
        Self { name, description, options, flags, devices }
    }
}

impl DeviceRow {
    fn of(device: DeviceInfo) -> Self {
        let type_row = |info: entensor::BufferTypeInfo| TypeRow {
            name: info.name.to_string(),
            description: info.description.into_owned(),
            memory: info.memory.to_string(),
            align_bytes: info.align_bytes,
            max_buffer_bytes: (info.max_buffer_bytes < u64::MAX).then_some(info.max_buffer_bytes),
            private_layout: info.opaque,
        };
        let DeviceInfo { spec, description, total_bytes, free_bytes, buffer_types } = device;
        let buffer_types = buffer_types.into_iter().map(type_row).collect();
        Self { backend: spec, description, total_bytes, free_bytes, buffer_types }
    }
}

impl Report {
    fn text(&self) -> String {
        let known = |size: Option<u64>| size.map_or_else(|| "-".into(), bytes);
        let mut backends = Table::new(&[("backend", Align::Left), ("options", Align::Left), ("", Align::Left)]);
        let mut devices =
            Table::new(&[("device", Align::Left), ("memory", Align::Right), ("free", Align::Right), ("", Align::Left)]);
        let mut types = Table::new(&[
            ("device", Align::Left),
            ("buffer type", Align::Left),
            ("align", Align::Right),
            ("largest", Align::Right),
            ("", Align::Left),
        ]);
        for backend in &self.backends {
            let values = backend.options.iter().map(|key| format!("{key}=…"));
            let options: Vec<String> = values.chain(backend.flags.iter().map(ToString::to_string)).collect();
            let options = if options.is_empty() { "-".into() } else { options.join(", ") };
            backends.row([backend.name.into(), options, backend.description.into()]);
            for device in &backend.devices {
                let (total, free) = (known(device.total_bytes), known(device.free_bytes));
                devices.row([device.backend.clone(), total, free, device.description.clone()]);
                for info in &device.buffer_types {
                    let (align, largest) = (info.align_bytes.to_string(), known(info.max_buffer_bytes));
                    let name = info.name.clone();
                    types.row([device.backend.clone(), name, align, largest, info.description.clone()]);
                }
            }
        }
        let mut text = String::new();
        let _ = writeln!(text, "{backends}\n{devices}\n{types}\n{AUTO}: {}", self.auto.join(", "));
        text
    }
}
