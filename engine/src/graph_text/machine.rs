//! `backend` lines: what a machine can do, read from text and taken from real backends.

use std::{collections::BTreeSet, fmt, sync::Arc};

use entensor_components::{Backend, Capabilities, DType, DTypeSet, MemoryKind, OPS, OpKind, parse_size};
use entensor_null::NullConfig;

use super::{
    error::GraphTextProblem,
    lex::Word,
    parse::{Fault, fault},
};

/// The form of the statement, for messages.
pub(super) const FORM: &str = "backend NAME [memory=KIND] [reads=KIND,…] [ops=all|OP,…|all,-OP,…] [dtypes=all|all,-T,…] \
     [buffer_type=NAME] [max_buffer=BYTES] [align=BYTES] [pad=BYTES] [offload_batch=N] [max_inputs=N] [min_batch=N] [events] [async]";

/// Above this an alignment or padding is a mistake, and sums could overflow.
const MAX_UNIT_BYTES: u64 = 1 << 30;

/// ggml's dtypes beside those of the dtype table. A machine may refuse them although no graph here can hold them yet.
const OTHER_DTYPES: &[&str] = &[
    "f64", "iq1_m", "iq1_s", "iq2_s", "iq2_xs", "iq2_xxs", "iq3_s", "iq3_xxs", "iq4_xs", "nvfp4", "q8_1", "q8_K",
    "tq1_0", "tq2_0",
];

/// A `backend` line: a backend's name, and all that planning asks of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendText {
    /// Its name.
    pub name: Arc<str>,
    /// Memory, limits and policies.
    pub capabilities: Capabilities,
    /// The computing ops that it cannot run.
    pub refused_ops: BTreeSet<OpKind>,
    /// The dtypes that it takes neither as operands nor as results, by ggml's names; the dtype table need not have them.
    pub refused_dtypes: BTreeSet<Arc<str>>,
    /// The smallest batch, as the offload policy counts it, that it runs.
    pub min_batch: u64,
}

impl BackendText {
    /// A line that declares what a real backend can do. Every op counts as supported: text has no words for finer answers.
    #[must_use]
    pub fn of(backend: &dyn Backend) -> Self {
        let mut capabilities = backend.capabilities().clone();
        // The text cannot say it, and no pass asks for it.
        capabilities.imports_host = false;
        let own = capabilities.memory.clone();
        capabilities.reads.retain(|kind| *kind != own);
        capabilities.reads.insert(0, own);
        let (refused_ops, refused_dtypes) = (BTreeSet::new(), BTreeSet::new());
        Self { name: backend.name().into(), capabilities, refused_ops, refused_dtypes, min_batch: 0 }
    }

    /// A null backend's claims.
    #[must_use]
    pub fn null_config(&self) -> NullConfig {
        let known = self.refused_dtypes.iter().filter_map(|name| DType::from_name(name));
        NullConfig {
            name: self.name.to_string(),
            capabilities: self.capabilities.clone(),
            refused_ops: self.refused_ops.iter().copied().collect(),
            dtypes: known.fold(DTypeSet::ALL, DTypeSet::without),
            min_batch: self.min_batch,
        }
    }
}

/// A line that was read while it is not known yet whether it is the last, on which its defaults depend.
pub(super) struct Draft {
    name: Arc<str>,
    memory: Option<Arc<str>>,
    reads: Vec<MemoryKind>,
    buffer_type: Option<Arc<str>>,
    capabilities: Capabilities,
    refused_ops: BTreeSet<OpKind>,
    refused_dtypes: BTreeSet<Arc<str>>,
    min_batch: u64,
}

impl Draft {
    /// Reads what follows the name.
    pub(super) fn read<'a>(name: Arc<str>, words: &[Word<'a>]) -> Result<Self, Fault> {
        let mut draft = Self {
            name,
            memory: None,
            reads: Vec::new(),
            buffer_type: None,
            capabilities: Capabilities::host(),
            refused_ops: BTreeSet::new(),
            refused_dtypes: BTreeSet::new(),
            min_batch: 0,
        };
        let mut seen: Vec<&'a str> = Vec::new();
        for &word in words {
            let (key, value) = word.key_value().unwrap_or((word.text, Word { text: "", ..word }));
            if seen.contains(&key) {
                return Err(fault(word, GraphTextProblem::Repeated { word: key.into() }));
            }
            seen.push(key);
            draft.set(word, key, value)?;
        }
        Ok(draft)
    }

    fn set(&mut self, word: Word<'_>, key: &str, value: Word<'_>) -> Result<(), Fault> {
        let is_flag = key.len() == word.text.len();
        let capabilities = &mut self.capabilities;
        match key {
            "events" if is_flag => capabilities.events = true,
            "async" if is_flag => capabilities.asynchronous = true,
            "memory" if !is_flag => self.memory = Some(kind(key, value)?),
            "buffer_type" if !is_flag => self.buffer_type = Some(kind(key, value)?),
            "reads" if !is_flag => {
                let kinds = value.list().map(|part| kind(key, part).map(MemoryKind));
                self.reads = kinds.collect::<Result<_, _>>()?;
            }
            "ops" if !is_flag => self.refused_ops = ops(value)?,
            "dtypes" if !is_flag => self.refused_dtypes = dtypes(value)?,
            "max_buffer" if !is_flag => capabilities.max_buffer_bytes = number(key, value, |_| true)?,
            "align" if !is_flag => {
                capabilities.align_bytes = number(key, value, |v| v.is_power_of_two() && v <= MAX_UNIT_BYTES)?;
            }
            "pad" if !is_flag => capabilities.pad_bytes = number(key, value, |v| (1..=MAX_UNIT_BYTES).contains(&v))?,
            "offload_batch" if !is_flag => capabilities.offload_batch = Some(number(key, value, |_| true)?),
            "max_inputs" if !is_flag => capabilities.max_inputs = Some(number(key, value, |_| true)?),
            "min_batch" if !is_flag => self.min_batch = number(key, value, |_| true)?,
            _ => return Err(fault(word, GraphTextProblem::UnknownWord { word: word.text.into(), form: FORM })),
        }
        Ok(())
    }

    /// Fills in the defaults.
    pub(super) fn finish(self, is_last: bool) -> BackendText {
        let default = || if is_last { MemoryKind::HOST.into() } else { Arc::clone(&self.name) };
        let memory = MemoryKind(self.memory.unwrap_or_else(default));
        let mut reads = vec![memory.clone()];
        for kind in self.reads {
            if !reads.contains(&kind) {
                reads.push(kind);
            }
        }
        let buffer_type = self.buffer_type.unwrap_or_else(|| Arc::clone(&memory.0));
        BackendText {
            name: self.name,
            capabilities: Capabilities { memory, reads, buffer_type, ..self.capabilities },
            refused_ops: self.refused_ops,
            refused_dtypes: self.refused_dtypes,
            min_batch: self.min_batch,
        }
    }
}

fn bad_value(key: &str, value: Word<'_>, expected: &str) -> Fault {
    let (key, text) = (key.into(), value.text.into());
    fault(value, GraphTextProblem::BadValue { key, text, expected: expected.into() })
}

/// Memory kinds and buffer types are free words, as long as lists of them can be read back.
pub(super) fn is_free_word(text: &str) -> bool {
    !text.is_empty() && !text.contains(|c: char| c.is_whitespace() || c.is_control() || "#=,[]".contains(c))
}

fn kind(key: &str, value: Word<'_>) -> Result<Arc<str>, Fault> {
    let fits = is_free_word(value.text);
    if fits { Ok(value.text.into()) } else { Err(bad_value(key, value, "a word such as `host` or `device0`")) }
}

fn number(key: &str, value: Word<'_>, fits: impl Fn(u64) -> bool) -> Result<u64, Fault> {
    let expected = match key {
        "align" => "a power of two up to 1G, such as 32",
        "pad" => "a number from 1 to 1G, such as 256",
        _ => "a number, such as 512 or 4K",
    };
    parse_size(value.text).filter(|&v| fits(v)).ok_or_else(|| bad_value(key, value, expected))
}

/// The ops that `ops=` can speak of.
fn computing_ops() -> impl Iterator<Item = OpKind> {
    OPS.iter().filter(|row| row.computes()).map(|row| row.kind)
}

fn ops(value: Word<'_>) -> Result<BTreeSet<OpKind>, Fault> {
    let op = |part: Word<'_>, name: &str| {
        let unknown =
            || GraphTextProblem::UnknownOp { name: name.into(), known: join(computing_ops().map(OpKind::name)) };
        OpKind::from_name(name).filter(|op| *op != OpKind::None).ok_or_else(|| fault(part, unknown()))
    };
    let mut parts = value.list();
    if parts.next().is_some_and(|first| first.text == "all") {
        let mut refused = BTreeSet::new();
        for part in parts {
            let name = part.text.strip_prefix('-');
            let name = name.ok_or_else(|| bad_value("ops", part, "`all,-OP,…` or `OP,…`"))?;
            let kind = op(part, name)?;
            if !kind.row().computes() {
                return Err(bad_value("ops", part, "a computing op; every backend supports view ops"));
            }
            refused.insert(kind);
        }
        return Ok(refused);
    }
    let mut refused: BTreeSet<OpKind> = computing_ops().collect();
    for part in value.list() {
        if part.text.starts_with('-') || part.text == "all" {
            return Err(bad_value("ops", part, "`all,-OP,…` or `OP,…`"));
        }
        refused.remove(&op(part, part.text)?);
    }
    Ok(refused)
}

fn dtypes(value: Word<'_>) -> Result<BTreeSet<Arc<str>>, Fault> {
    let mut parts = value.list();
    let form = "`all` or `all,-T,…`";
    if parts.next().is_none_or(|first| first.text != "all") {
        return Err(bad_value("dtypes", value, form));
    }
    let mut refused = BTreeSet::new();
    for part in parts {
        let name = part.text.strip_prefix('-').ok_or_else(|| bad_value("dtypes", part, form))?;
        if DType::from_name(name).is_none() && !OTHER_DTYPES.contains(&name) {
            let known = entensor_components::DTYPES.iter().map(|row| row.name).chain(OTHER_DTYPES.iter().copied());
            return Err(fault(part, GraphTextProblem::UnknownDType { name: name.into(), known: join(known) }));
        }
        refused.insert(name.into());
    }
    Ok(refused)
}

/// Names in a list for a message.
pub(super) fn join<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    names.into_iter().collect::<Vec<_>>().join(", ")
}

/// Prints a line; what it leaves out are the defaults, which depend on whether it is the last.
pub(super) fn print(backend: &BackendText, is_last: bool, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let BackendText { name, capabilities, refused_ops, refused_dtypes, min_batch } = backend;
    let standard = Capabilities::host();
    write!(f, "backend {name}")?;
    let default_memory = if is_last { MemoryKind::HOST } else { &**name };
    if &*capabilities.memory.0 != default_memory {
        write!(f, " memory={}", capabilities.memory)?;
    }
    let others = || capabilities.reads.iter().filter(|kind| **kind != capabilities.memory);
    for (i, kind) in others().enumerate() {
        write!(f, "{}{kind}", if i == 0 { " reads=" } else { "," })?;
    }
    if !refused_ops.is_empty() {
        let allowed: Vec<OpKind> = computing_ops().filter(|op| !refused_ops.contains(op)).collect();
        if allowed.is_empty() || allowed.len() >= refused_ops.len() {
            f.write_str(" ops=all")?;
            refused_ops.iter().try_for_each(|op| write!(f, ",-{op}"))?;
        } else {
            write!(f, " ops={}", allowed.iter().map(|op| op.name()).collect::<Vec<_>>().join(","))?;
        }
    }
    if !refused_dtypes.is_empty() {
        f.write_str(" dtypes=all")?;
        refused_dtypes.iter().try_for_each(|dtype| write!(f, ",-{dtype}"))?;
    }
    if capabilities.buffer_type != capabilities.memory.0 {
        write!(f, " buffer_type={}", capabilities.buffer_type)?;
    }
    for (key, value, default) in [
        ("max_buffer", capabilities.max_buffer_bytes, standard.max_buffer_bytes),
        ("align", capabilities.align_bytes, standard.align_bytes),
        ("pad", capabilities.pad_bytes, standard.pad_bytes),
    ] {
        if value != default {
            write!(f, " {key}={value}")?;
        }
    }
    for (key, value) in [("offload_batch", capabilities.offload_batch), ("max_inputs", capabilities.max_inputs)] {
        if let Some(value) = value {
            write!(f, " {key}={value}")?;
        }
    }
    if *min_batch != 0 {
        write!(f, " min_batch={min_batch}")?;
    }
    for (flag, is_set) in [("events", capabilities.events), ("async", capabilities.asynchronous)] {
        if is_set {
            write!(f, " {flag}")?;
        }
    }
    writeln!(f)
}
