//! `entensor quantize`: a model file again, with weights of another dtype.

use std::{num::NonZeroUsize, path::PathBuf};

use clap::{
    Args,
    builder::{PossibleValuesParser, TypedValueParser},
};
use entensor::components::{DTYPES, DType, DTypeClass};
use entensor_models::{
    gguf::GgufFile,
    quantize::{Fallback, KeepRule, Quantization, QuantizeConfig, QuantizeProgress, TensorChange, WeightSizes},
};

use crate::{
    error::CliError,
    figures::{Align, Table, bytes},
    loading::progress_bar,
    output::{excerpt, note},
};

const EXAMPLES: &str = "\
Examples:
  entensor quantize model-f16.gguf model-q8_0.gguf --dtype q8_0
  entensor quantize in.gguf out.gguf --dtype q4_1 --keep \"token_embd.*=q8_0\" --keep \"*.attn_v.*=keep\"

Matrices get the dtype, vectors become f32, integers stay. Where the blocks of a dtype do not divide the rows, another
one takes its place: q5_0, q5_1, q8_0 and iq4_nl for types of 256-element blocks, else f16; every such tensor is named on
standard error. --keep takes tensors by name: the first pattern that fits counts, `*` fits any text, `?` one
character, and a pattern that fits no tensor is an error. Metadata is kept byte for byte, but for general.file_type and
general.quantization_version. OUT appears only when it is whole; a file of that name is replaced then.";

/// Write a model file again with weights of another dtype
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct QuantizeArgs {
    /// The model, a GGUF file
    #[arg(value_name = "IN")]
    input: PathBuf,
    /// The file to write
    #[arg(value_name = "OUT")]
    output: PathBuf,
    /// The dtype of matrices
    #[arg(long, value_name = "T", value_parser = dtype_parser())]
    dtype: DType,
    /// Another dtype for tensors whose names fit a pattern, or what they have: PATTERN=T, PATTERN=keep
    #[arg(long, value_name = "PATTERN=T")]
    keep: Vec<KeepRule>,
    /// Threads that convert; they change no byte [default: all cores]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,
}

fn dtype_parser() -> impl TypedValueParser<Value = DType> {
    let weights = DTYPES.iter().filter(|row| row.class != DTypeClass::Integer);
    // Every possible value is the name of a dtype.
    PossibleValuesParser::new(weights.map(|row| row.name)).map(|name| DType::from_name(&name).unwrap_or(DType::F32))
}

/// Runs the command.
pub(crate) fn run(args: &QuantizeArgs) -> Result<(), CliError> {
    let input = GgufFile::open(&args.input)?;
    let config = QuantizeConfig { dtype: args.dtype, keep: args.keep.clone() };
    let quantization = Quantization::plan(&input, &config)?;
    let all_cores = || std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let threads = args.threads.and_then(|threads| NonZeroUsize::new(threads.into())).unwrap_or_else(all_cores);
    let bar = progress_bar("{msg} {bar:40} {bytes}/{total_bytes}");
    let show = |progress: QuantizeProgress<'_>| {
        bar.set_length(progress.total_bytes);
        bar.set_position(progress.done_bytes);
        bar.set_message(excerpt(progress.tensor, 32));
    };
    let written = quantization.write(&args.output, threads, show);
    bar.finish_and_clear();
    written?;
    tell(&quantization);
    Ok(())
}

/// What was done, for people.
fn tell(quantization: &Quantization<'_>) {
    let changes = quantization.changes();
    for change in changes.iter().filter(|change| matches!(change.fallback, Some(Fallback::PartialBlock { .. }))) {
        if let Some(fallback) = change.fallback {
            note(format_args!("{}: {fallback}; it is {} now", excerpt(&change.name, 64), change.to));
        }
    }
    let is_block = |dtype: DType| dtype.row().class == DTypeClass::Block;
    let again = changes.iter().filter(|change| is_block(change.from) && change.from != change.to).count();
    if again > 0 {
        note(format_args!(
            "note: {again} tensors were quantized before; their old errors stay, an unquantized input is better"
        ));
    }
    note(format_args!("{}{}", kinds(changes), sizes(quantization.before(), quantization.after())));
}

/// How many tensors went from which dtype to which.
fn kinds(changes: &[TensorChange]) -> Table {
    let mut counts: Vec<(DType, DType, u64, u64)> = Vec::new();
    for change in changes {
        match counts.iter_mut().find(|(from, to, ..)| (*from, *to) == (change.from, change.to)) {
            Some((.., tensors, elements)) => (*tensors, *elements) = (*tensors + 1, *elements + change.elements),
            None => counts.push((change.from, change.to, 1, change.elements)),
        }
    }
    let columns = [("from", Align::Left), ("to", Align::Left), ("tensors", Align::Right), ("elements", Align::Right)];
    let mut table = Table::new(&columns);
    for (from, to, tensors, elements) in counts {
        table.row([from.to_string(), to.to_string(), tensors.to_string(), elements.to_string()]);
    }
    table
}

fn sizes(before: WeightSizes, after: WeightSizes) -> String {
    let one = |sizes: WeightSizes| format!("{} ({:.2} bits per weight)", bytes(sizes.bytes), sizes.bits_per_weight());
    format!("{} became {}", one(before), one(after))
}
