//! A tiny model in a GGUF file, and the command to try on it.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use entensor::{DType, components::DTypeRow};
use entensor_models::gguf::GgufBuilder;
use serde_json::Value;
use tempfile::TempDir;

/// Tokens of the vocabulary.
pub(crate) const VOCABULARY: u64 = 300;

/// Layers of the model.
pub(crate) const LAYERS: u64 = 2;

const WIDTH: u64 = 64;
const KV_WIDTH: u64 = 32;
const FEED_FORWARD: u64 = 96;

/// A `llama` model with random weights. What is set makes it wrong, or end.
pub(crate) struct Tiny {
    /// What it claims to be.
    pub(crate) architecture: &'static str,
    /// A tensor that is left out.
    pub(crate) missing: Option<&'static str>,
    /// A tensor with another shape than the metadata ask for.
    pub(crate) misshapen: Option<(&'static str, [u64; 2])>,
    /// A vector that is there on top, with its length.
    pub(crate) extra: Option<(&'static str, u64)>,
    /// How many times longer contexts are than the trained ones.
    pub(crate) rope_factor: Option<f32>,
    /// When it ends its text.
    pub(crate) end: End,
    /// Whether the output is the embedding.
    pub(crate) tied: bool,
    /// How chats are written.
    pub(crate) chat_template: Option<&'static str>,
}

/// When a model ends its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// With the first token.
    AtOnce,
    /// When the token that ends a turn comes up.
    Sometimes,
    /// No token ends a text.
    Never,
}

impl Default for Tiny {
    fn default() -> Self {
        Self {
            architecture: "llama",
            missing: None,
            misshapen: None,
            extra: None,
            rope_factor: None,
            end: End::Sometimes,
            tied: false,
            chat_template: None,
        }
    }
}

impl Tiny {
    /// The bytes of the file.
    pub(crate) fn build(&self) -> Vec<u8> {
        let mut file = vocabulary(GgufBuilder::new().value("general.architecture", self.architecture))
            .value("llama.block_count", LAYERS)
            .value("llama.context_length", 96_u32)
            .value("llama.embedding_length", WIDTH)
            .value("llama.feed_forward_length", FEED_FORWARD)
            .value("llama.attention.head_count", 4_u32)
            .value("llama.attention.head_count_kv", 2_u32)
            .value("llama.attention.layer_norm_rms_epsilon", 1e-5_f32)
            .value("llama.rope.freq_base", 10_000.0_f32);
        file = match self.end {
            // With all logits equal, the first token is taken.
            End::AtOnce => file.value("tokenizer.ggml.eos_token_id", 0_u32),
            End::Sometimes => file.value("tokenizer.ggml.eos_token_id", 2_u32),
            End::Never => file,
        };
        if let Some(template) = self.chat_template {
            file = file.value("tokenizer.chat_template", template);
        }
        if let Some(factor) = self.rope_factor {
            file = file.value("llama.rope.scaling.factor", factor);
        }
        if let Some((name, length)) = self.extra {
            file = self.tensor(file, name, DType::F32, &[length]);
        }
        file = self.tensor(file, "token_embd.weight", DType::Q8_0, &[WIDTH, VOCABULARY]);
        for layer in 0..LAYERS {
            for (what, dtype, dims) in [
                ("attn_norm", DType::F32, &[WIDTH][..]),
                ("attn_q", DType::Q8_0, &[WIDTH, WIDTH]),
                ("attn_k", DType::F32, &[WIDTH, KV_WIDTH]),
                ("attn_v", DType::F16, &[WIDTH, KV_WIDTH]),
                ("attn_output", DType::Q4_1, &[WIDTH, WIDTH]),
                ("ffn_norm", DType::F32, &[WIDTH]),
                ("ffn_gate", DType::Q4_1, &[WIDTH, FEED_FORWARD]),
                ("ffn_up", DType::Q4_1, &[WIDTH, FEED_FORWARD]),
                ("ffn_down", DType::Q8_0, &[FEED_FORWARD, WIDTH]),
            ] {
                file = self.tensor(file, &format!("blk.{layer}.{what}.weight"), dtype, dims);
            }
        }
        file = self.tensor(file, "output_norm.weight", DType::F32, &[WIDTH]);
        if !self.tied {
            file = self.tensor(file, "output.weight", DType::F32, &[WIDTH, VOCABULARY]);
        }
        file.build().expect("a valid file")
    }

    fn tensor(&self, file: GgufBuilder, name: &str, dtype: DType, dims: &[u64]) -> GgufBuilder {
        if self.missing == Some(name) {
            return file;
        }
        let dims = match &self.misshapen {
            Some((misshapen, dims)) if *misshapen == name => &dims[..],
            _ => dims,
        };
        let silent = self.end == End::AtOnce && name == "output_norm.weight";
        let elements: u64 = dims.iter().product();
        let mut random = name.bytes().fold(1_u64, |seed, byte| seed.wrapping_mul(31).wrapping_add(byte.into()));
        let values = (0..elements).map(|_| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let unit = (random >> 40) as f32 / (1_u64 << 24) as f32 - 0.5;
            match dims.len() {
                1 if silent => 0.0,
                1 => 1.0 + 0.2 * unit,
                _ => 0.6 * unit,
            }
        });
        let data = encode(dtype, dims[0], &values.collect::<Vec<f32>>());
        file.tensor(name, dtype, dims, data)
    }
}

fn encode(dtype: DType, row: u64, values: &[f32]) -> Vec<u8> {
    let table_row: &DTypeRow = dtype.row();
    let row_bytes = dtype.row_bytes(row).expect("whole blocks");
    let mut bytes = vec![0; (values.len() as u64 / row * row_bytes) as usize];
    (table_row.quantize)(values, &mut bytes);
    bytes
}

/// Bytes, a few merges, three special tokens, and unused ones up to the size.
fn vocabulary(file: GgufBuilder) -> GgufBuilder {
    let merges = ["t h", "th e", "Ġ the", "a n", "an d", "Ġ and", "i n", "Ġ in", "Ġ s", "Ġs hip"];
    let mut tokens: Vec<String> = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"].map(Into::into).into();
    let mut kinds = vec![3_i32; 3];
    let bytes = (0..=255_u8).map(|byte| char_of(byte).to_string());
    let merged = ["th", "the", "Ġthe", "an", "and", "Ġand", "in", "Ġin", "Ġs", "hip", "Ġship"].map(String::from);
    for token in bytes.chain(merged) {
        tokens.push(token);
        kinds.push(1);
    }
    while (tokens.len() as u64) < VOCABULARY {
        tokens.push(format!("<unused{}>", tokens.len()));
        kinds.push(5);
    }
    file.value("tokenizer.ggml.model", "gpt2")
        .value("tokenizer.ggml.pre", "smollm")
        .value("tokenizer.ggml.tokens", tokens)
        .value("tokenizer.ggml.token_type", kinds)
        .value("tokenizer.ggml.merges", merges.to_vec())
        .value("tokenizer.ggml.bos_token_id", 1_u32)
        .value("tokenizer.ggml.add_bos_token", false)
}

/// The character that stands for a byte in a byte-level vocabulary: itself if it can be seen, else one from 256 on.
fn char_of(byte: u8) -> char {
    let visible = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if visible(&byte) {
        return byte.into();
    }
    let hidden_before = (0..byte).filter(|byte| !visible(byte)).count() as u32;
    char::from_u32(256 + hidden_before).expect("a character")
}

/// A folder for one test's files.
pub(crate) struct Files(TempDir);

impl Files {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary folder"))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, bytes).expect("the folder can be written");
        path
    }
}

/// The command, ready to be given arguments.
pub(crate) fn command() -> Command {
    Command::new(env!("CARGO_BIN_EXE_entensor"))
}

/// Runs a subcommand on a file with this standard input.
pub(crate) fn entensor_with(subcommand: &str, file: &Path, args: &[&str], input: impl AsRef<[u8]>) -> Ran {
    let mut child = command()
        .arg(subcommand)
        .arg(file)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts");
    let mut stdin = child.stdin.take().expect("piped");
    // A command that has failed reads no more.
    let _ = stdin.write_all(input.as_ref());
    drop(stdin);
    Ran::of(&child.wait_with_output().expect("the command ends"))
}

/// What a run of the command gave.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs a subcommand on a file.
pub(crate) fn entensor(subcommand: &str, file: &Path, args: &[&str]) -> Ran {
    Ran::of(&command().arg(subcommand).arg(file).args(args).output().expect("the command starts"))
}

impl Ran {
    fn of(output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("UTF-8");
        let code = output.status.code().expect("an exit status and no signal");
        let ran = Self { code, stdout: text(&output.stdout), stderr: text(&output.stderr) };
        assert!(!ran.stderr.contains("panicked"), "{ran:?}");
        ran
    }

    /// Standard output of a run that succeeded.
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.code, 0, "{self:?}");
        self.stdout
    }

    /// The one JSON value of a run that succeeded.
    pub(crate) fn json(self) -> Value {
        serde_json::from_str(&self.ok()).expect("one JSON value and nothing else")
    }

    /// The message of a run that failed with this exit status and printed no result.
    pub(crate) fn failed(self, code: i32) -> String {
        assert_eq!(self.code, code, "{self:?}");
        assert_eq!(self.stdout, "", "{self:?}");
        assert!(self.stderr.contains("error: ") && self.stderr.trim().len() > 20, "{self:?}");
        self.stderr
    }
}

/// The numbers of a JSON array.
pub(crate) fn ids(value: &Value) -> Vec<u64> {
    value.as_array().expect("an array").iter().map(|id| id.as_u64().expect("an id")).collect()
}

/// Every file of the corpus and every fixture.
pub(crate) fn graphs() -> Vec<PathBuf> {
    let snapshots = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../snapshots");
    let mut graphs = Vec::new();
    for folder in ["corpus", "fixtures"] {
        let found = std::fs::read_dir(snapshots.join(folder)).expect("the folder is there");
        let found = found.map(|entry| entry.expect("readable").path());
        graphs.extend(found.filter(|path| path.extension().is_some_and(|e| e == "graph")));
    }
    graphs.sort();
    assert!(graphs.len() > 40, "{graphs:?}");
    graphs
}
