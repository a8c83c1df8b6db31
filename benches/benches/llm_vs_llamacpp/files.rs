//! The model files: the one that is given, and the others, made from it once.

use std::{
    error::Error,
    num::NonZeroUsize,
    path::{Path, PathBuf},
};

use entensor::components::DType;
use entensor_models::{
    arch::LlamaConfig,
    gguf::GgufFile,
    quantize::{KeepRule, Quantization, QuantizeConfig},
};

/// The reference file, and where files of other weights are kept.
pub(crate) struct Files {
    reference: PathBuf,
    folder: PathBuf,
}

impl Files {
    pub(crate) fn find() -> Result<Self, Box<dyn Error>> {
        let reference = std::env::var_os("ENTENSOR_MODEL").map(PathBuf::from);
        let reference =
            reference.ok_or("set ENTENSOR_MODEL to the path of SmolLM2-135M-Instruct.Q4_1.gguf (see the README)")?;
        let folder = std::env::var_os("ENTENSOR_QUANTIZED").map(PathBuf::from);
        let folder = folder.unwrap_or_else(|| Path::new(env!("CARGO_TARGET_TMPDIR")).join("quantized"));
        Ok(Self { reference, folder })
    }

    /// The file with these weights, made if it is not there yet.
    pub(crate) fn of(&self, weights: &str) -> Result<PathBuf, Box<dyn Error>> {
        let stem = self.reference.file_stem().unwrap_or_default().to_string_lossy();
        // The reference itself, if it is what its name says.
        if stem.to_ascii_lowercase().ends_with(&format!(".{}", weights.to_ascii_lowercase())) {
            return Ok(self.reference.clone());
        }
        let path = self.folder.join(format!("{stem}.{weights}.gguf"));
        if !path.exists() {
            eprintln!("making {}", path.display());
            std::fs::create_dir_all(&self.folder)?;
            let input = GgufFile::open(&self.reference)?;
            let config = config(weights, &input)?;
            let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
            Quantization::plan(&input, &config)?.write(&path, threads, |_| ())?;
        }
        Ok(path)
    }
}

/// A dtype's name, or `q4_K_M`: llama.cpp's mixture, q6_K for the embedding, and for values and the way down of every third layer
/// and of the first and last eighth of all.
fn config(weights: &str, input: &GgufFile) -> Result<QuantizeConfig, Box<dyn Error>> {
    if let Some(dtype) = DType::from_name(weights) {
        return Ok(QuantizeConfig { dtype, keep: Vec::new() });
    }
    if weights != "q4_K_M" {
        return Err(format!("`{weights}` is no dtype").into());
    }
    let layers = LlamaConfig::from_header(input.header())?.layers;
    let (first, last) = (layers / 8, 7 * layers / 8);
    let finer = (0..layers).filter(|&layer| layer < first || layer >= last || (layer - first) % 3 == 2);
    let finer = finer.flat_map(|layer| ["attn_v", "ffn_down"].map(|part| format!("blk.{layer}.{part}.weight")));
    let keep: Result<Vec<KeepRule>, _> = std::iter::once("token_embd.weight".to_owned())
        .chain(finer)
        .map(|name| format!("{name}=q6_K").parse())
        .collect();
    Ok(QuantizeConfig { dtype: DType::Q4K, keep: keep? })
}
