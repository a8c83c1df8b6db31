//! Statements: each line is read on its own, against the names that earlier lines defined.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use entensor_components::{
    DTYPES, DType, MAX_PIPELINE_COPIES, OPS, Op, OpKind, OpParam, ParamError, Shape, TensorDesc, Usage, parse_size,
};

use super::{
    BufferText, GraphText, Origin, TensorText,
    error::{GraphTextError, GraphTextProblem},
    lex::{Word, columns, words},
    machine::{self, Draft, is_free_word, join},
};

/// A fault whose line and file the caller knows.
pub(super) struct Fault {
    column: u32,
    problem: GraphTextProblem,
}

/// A fault at a word.
pub(super) fn fault(at: Word<'_>, problem: GraphTextProblem) -> Fault {
    Fault { column: at.column, problem }
}

const STATEMENTS: &str = "`backend`, `buffer`, `tensor`, `weight`, `input`, `scratch`, `pin`, `copies` or `run`";
const NODE_FORM: &str = "NAME = OP OPERAND … [key=value …] [pin=BACKEND] [output]";

/// Names of one kind, with what they name and the line that defines them.
struct Names {
    kind: &'static str,
    places: HashMap<Arc<str>, (usize, u32)>,
}

impl Names {
    fn new(kind: &'static str) -> Self {
        Self { kind, places: HashMap::new() }
    }

    fn define(&mut self, word: Word<'_>, name: &str, place: usize, line: u32) -> Result<Arc<str>, Fault> {
        if !is_free_word(name) || name == "output" {
            return Err(fault(word, GraphTextProblem::BadName { name: name.into() }));
        }
        if let Some(&(_, first_line)) = self.places.get(name) {
            return Err(fault(word, GraphTextProblem::Duplicate { kind: self.kind, name: name.into(), first_line }));
        }
        let name: Arc<str> = name.into();
        self.places.insert(Arc::clone(&name), (place, line));
        Ok(name)
    }

    fn find(&self, word: Word<'_>) -> Result<usize, Fault> {
        if let Some(&(place, _)) = self.places.get(word.text) {
            return Ok(place);
        }
        let mut known: Vec<(usize, &str)> = self.places.iter().map(|(name, (place, _))| (*place, &**name)).collect();
        known.sort_unstable();
        let hint = match known.len() {
            0 => format!("define a {} first", self.kind),
            1..=8 => format!("there are {}", join(known.iter().map(|(_, name)| *name))),
            _ => "define it first, or correct the name".into(),
        };
        Err(fault(word, GraphTextProblem::Undefined { kind: self.kind, name: word.text.into(), hint }))
    }
}

struct Parser {
    line: u32,
    drafts: Vec<Draft>,
    /// Name and line of the last `backend` line, for faults of the whole machine.
    last_backend: (u32, u32),
    buffers: Vec<BufferText>,
    tensors: Vec<TensorText>,
    copies: Option<u32>,
    run: Option<Vec<usize>>,
    backend_names: Names,
    buffer_names: Names,
    tensor_names: Names,
}

/// Reads a whole text.
pub(super) fn parse(file_name: &str, text: &str) -> Result<GraphText, GraphTextError> {
    // Some editors begin files with a mark that nobody sees.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let file: Arc<str> = file_name.into();
    let error = |line, Fault { column, problem }| {
        let problem = Box::new(problem);
        GraphTextError { file: Arc::clone(&file), line, column, problem }
    };
    let mut parser = Parser {
        line: 0,
        drafts: Vec::new(),
        last_backend: (1, 1),
        buffers: Vec::new(),
        tensors: Vec::new(),
        copies: None,
        run: None,
        backend_names: Names::new("backend"),
        buffer_names: Names::new("buffer"),
        tensor_names: Names::new("tensor"),
    };
    for line in text.lines() {
        parser.line = parser.line.saturating_add(1);
        parser.statement(&words(line)).map_err(|fault| error(parser.line, fault))?;
    }
    let (line, column) = parser.last_backend;
    parser.finish(stem(file_name)).map_err(|problem| error(line, Fault { column, problem }))
}

/// `b` of `a/b.graph`.
fn stem(file_name: &str) -> &str {
    let base = file_name.rsplit(['/', '\\']).next().unwrap_or(file_name);
    base.split_once('.').map_or(base, |(stem, _)| stem)
}

/// The word at a place of a statement.
fn need<'a>(words: &[Word<'a>], at: usize, what: &'static str, form: &'static str) -> Result<Word<'a>, Fault> {
    words.get(at).copied().ok_or_else(|| {
        let column = words.last().map_or(1, |last| last.column.saturating_add(columns(last.text)));
        Fault { column, problem: GraphTextProblem::Missing { what, form } }
    })
}

/// A word that must stand at a place of a statement.
fn keyword(words: &[Word<'_>], at: usize, word: &'static str, form: &'static str) -> Result<(), Fault> {
    let found = need(words, at, word, form)?;
    if found.text == word { Ok(()) } else { Err(unknown(found, form)) }
}

/// Nothing may follow.
fn end(words: &[Word<'_>], at: usize, form: &'static str) -> Result<(), Fault> {
    words.get(at).map_or(Ok(()), |&word| Err(unknown(word, form)))
}

fn unknown(word: Word<'_>, form: &'static str) -> Fault {
    fault(word, GraphTextProblem::UnknownWord { word: word.text.into(), form })
}

fn bad_value(word: Word<'_>, key: &str, expected: &str) -> Fault {
    let (key, text) = (key.into(), word.text.into());
    fault(word, GraphTextProblem::BadValue { key, text, expected: expected.into() })
}

impl Parser {
    fn statement(&mut self, words: &[Word<'_>]) -> Result<(), Fault> {
        let Some(&first) = words.first() else { return Ok(()) };
        if words.get(1).is_some_and(|word| word.text == "=") {
            return self.node(words);
        }
        match first.text {
            "backend" => self.backend(words),
            "buffer" => self.buffer(words),
            "tensor" => self.leaf(words, "tensor NAME DTYPE [D0,…] in BUFFER"),
            "weight" => self.leaf(words, "weight NAME DTYPE [D0,…] on BACKEND"),
            "input" => self.leaf(words, "input NAME DTYPE [D0,…]"),
            "scratch" => self.leaf(words, "scratch NAME DTYPE [D0,…]"),
            "pin" => self.pin(words),
            "copies" => self.copies(words),
            "run" => self.run(words),
            word => {
                let word = word.into();
                Err(fault(first, GraphTextProblem::UnknownStatement { word, statements: STATEMENTS }))
            }
        }
    }

    fn backend(&mut self, words: &[Word<'_>]) -> Result<(), Fault> {
        let name = need(words, 1, "the backend's name", machine::FORM)?;
        // Backends are found by name whatever the case, so names that differ in case only are one name.
        let key = name.text.to_ascii_lowercase();
        let same = self.backend_names.places.iter().find(|(other, _)| other.to_ascii_lowercase() == key);
        if let Some((_, &(_, first_line))) = same {
            let name_text = name.text.into();
            return Err(fault(name, GraphTextProblem::Duplicate { kind: "backend", name: name_text, first_line }));
        }
        let defined = self.backend_names.define(name, name.text, self.drafts.len(), self.line)?;
        self.drafts.push(Draft::read(defined, &words[2..])?);
        self.last_backend = (self.line, name.column);
        Ok(())
    }

    fn buffer(&mut self, words: &[Word<'_>]) -> Result<(), Fault> {
        const FORM: &str = "buffer NAME on BACKEND [usage=weights|any|compute] [opaque]";
        let name = need(words, 1, "the buffer's name", FORM)?;
        keyword(words, 2, "on", FORM)?;
        let backend = self.backend_names.find(need(words, 3, "the backend", FORM)?)?;
        let (mut usage, mut opaque) = (None, false);
        for &word in &words[4..] {
            let repeated = || fault(word, GraphTextProblem::Repeated { word: word.text.into() });
            match word.key_value() {
                Some(("usage", _)) if usage.is_some() => return Err(repeated()),
                Some(("usage", value)) => {
                    let usages = [Usage::Weights, Usage::Any, Usage::Compute];
                    let found = usages.into_iter().find(|usage| usage.name() == value.text);
                    let found = found.ok_or_else(|| bad_value(value, "usage", "`weights`, `any` or `compute`"))?;
                    usage = Some(found);
                }
                None if word.text == "opaque" && opaque => return Err(repeated()),
                None if word.text == "opaque" => opaque = true,
                _ => return Err(unknown(word, FORM)),
            }
        }
        let name = self.buffer_names.define(name, name.text, self.buffers.len(), self.line)?;
        self.buffers.push(BufferText { name, backend, usage: usage.unwrap_or_default(), opaque });
        Ok(())
    }

    /// `tensor`, `weight`, `input` and `scratch`, which differ in what says where the memory is.
    fn leaf(&mut self, words: &[Word<'_>], form: &'static str) -> Result<(), Fault> {
        let name = need(words, 1, "the tensor's name", form)?;
        let desc = leaf_desc(need(words, 2, "the dtype", form)?, need(words, 3, "the shape", form)?)?;
        let (origin, length) = match words[0].text {
            "tensor" => {
                keyword(words, 4, "in", form)?;
                let buffer = self.buffer_names.find(need(words, 5, "the buffer", form)?)?;
                (Origin::Tensor { buffer }, 6)
            }
            "weight" => {
                keyword(words, 4, "on", form)?;
                let backend = self.backend_names.find(need(words, 5, "the backend", form)?)?;
                (Origin::Weight { backend }, 6)
            }
            "input" => (Origin::Input, 4),
            _ => (Origin::Scratch, 4),
        };
        end(words, length, form)?;
        self.define(name, desc, origin, None, false)
    }

    fn define(
        &mut self,
        name: Word<'_>,
        desc: TensorDesc,
        origin: Origin,
        pin: Option<usize>,
        output: bool,
    ) -> Result<(), Fault> {
        let name = self.tensor_names.define(name, name.text, self.tensors.len(), self.line)?;
        self.tensors.push(TensorText { name, desc, origin, pin, output });
        Ok(())
    }

    fn node(&mut self, words: &[Word<'_>]) -> Result<(), Fault> {
        let word = need(words, 2, "the op", NODE_FORM)?;
        let known = || join(OPS.iter().map(|row| row.name).skip(1));
        let unknown_op = || GraphTextProblem::UnknownOp { name: word.text.into(), known: known() };
        let kind = OpKind::from_name(word.text).filter(|kind| *kind != OpKind::None);
        let mut op = kind.ok_or_else(|| fault(word, unknown_op()))?.default_op();
        let mut operands: Vec<usize> = Vec::new();
        let (mut pin, mut output) = (None, false);
        let mut keys: Vec<&str> = Vec::new();
        for &word in &words[3..] {
            match word.key_value() {
                None if word.text == "output" && output => {
                    return Err(fault(word, GraphTextProblem::Repeated { word: "output".into() }));
                }
                None if word.text == "output" => output = true,
                None if keys.is_empty() && pin.is_none() && !output => operands.push(self.tensor_names.find(word)?),
                // Operands stand together, so a bare word among the keys is a key without its value.
                None => return Err(unknown(word, NODE_FORM)),
                Some((key, _)) if keys.contains(&key) => {
                    return Err(fault(word, GraphTextProblem::Repeated { word: key.into() }));
                }
                Some((key, value)) => {
                    keys.push(key);
                    if key == "pin" {
                        pin = Some(self.backend_names.find(value)?);
                    } else {
                        set_param(&mut op, word, key, value)?;
                    }
                }
            }
        }
        let descs: Vec<TensorDesc> = operands.iter().map(|&o| self.tensors[o].desc).collect();
        let result = op.result(&descs).map_err(|error| fault(word, GraphTextProblem::Op(error)))?;
        self.define(words[0], result.desc, Origin::Node { op, operands }, pin, output)
    }

    fn pin(&mut self, words: &[Word<'_>]) -> Result<(), Fault> {
        const FORM: &str = "pin NAME BACKEND";
        let name = need(words, 1, "the tensor", FORM)?;
        let tensor = self.tensor_names.find(name)?;
        let backend = self.backend_names.find(need(words, 2, "the backend", FORM)?)?;
        end(words, 3, FORM)?;
        if self.tensors[tensor].pin.is_some() {
            return Err(fault(name, GraphTextProblem::Repeated { word: format!("pin {}", name.text) }));
        }
        self.tensors[tensor].pin = Some(backend);
        Ok(())
    }

    fn copies(&mut self, words: &[Word<'_>]) -> Result<(), Fault> {
        const FORM: &str = "copies N";
        let word = need(words, 1, "the number", FORM)?;
        end(words, 2, FORM)?;
        let copies = parse_size(word.text).and_then(|n| u32::try_from(n).ok());
        let copies = copies.filter(|n| (1..=MAX_PIPELINE_COPIES).contains(n));
        let copies =
            copies.ok_or_else(|| bad_value(word, "copies", &format!("a number from 1 to {MAX_PIPELINE_COPIES}")))?;
        match self.copies.replace(copies) {
            Some(_) => Err(fault(words[0], GraphTextProblem::Repeated { word: "copies".into() })),
            None => Ok(()),
        }
    }

    fn run(&mut self, words: &[Word<'_>]) -> Result<(), Fault> {
        const FORM: &str = "run NAME,NAME,…";
        need(words, 1, "what to run", FORM)?;
        let (mut wanted, mut seen) = (Vec::new(), HashSet::new());
        // Blanks around the commas are natural to write, so empty parts at the ends of words are none.
        for part in words[1..].iter().flat_map(|word| word.list()).filter(|part| !part.text.is_empty()) {
            let tensor = self.tensor_names.find(part)?;
            if !seen.insert(tensor) {
                return Err(fault(part, GraphTextProblem::Repeated { word: part.text.into() }));
            }
            wanted.push(tensor);
        }
        if wanted.is_empty() {
            return Err(unknown(words[1], FORM));
        }
        match self.run.replace(wanted) {
            Some(_) => Err(fault(words[0], GraphTextProblem::Repeated { word: "run".into() })),
            None => Ok(()),
        }
    }

    fn finish(self, name: &str) -> Result<GraphText, GraphTextProblem> {
        let count = self.drafts.len();
        let machine: Vec<_> =
            self.drafts.into_iter().enumerate().map(|(i, draft)| draft.finish(i + 1 == count)).collect();
        let last = machine.last().ok_or(GraphTextProblem::NoBackend)?;
        let memory = &last.capabilities.memory;
        if !memory.is_host() {
            let (backend, memory) = (Arc::clone(&last.name), Arc::clone(&memory.0));
            return Err(GraphTextProblem::LastNotHost { backend, memory });
        }
        Ok(GraphText {
            name: name.into(),
            machine,
            buffers: self.buffers,
            tensors: self.tensors,
            copies: self.copies.unwrap_or(1),
            run: self.run.unwrap_or_default(),
        })
    }
}

fn leaf_desc(dtype: Word<'_>, shape: Word<'_>) -> Result<TensorDesc, Fault> {
    let known = || join(DTYPES.iter().map(|row| row.name));
    let unknown_dtype = || GraphTextProblem::UnknownDType { name: dtype.text.into(), known: known() };
    let dtype = DType::from_name(dtype.text).ok_or_else(|| fault(dtype, unknown_dtype()))?;
    let dims = <Shape as OpParam>::parse(shape.text);
    let dims = dims.ok_or_else(|| bad_value(shape, "shape", "one to four numbers, such as [64,2]"))?;
    TensorDesc::packed(dtype, dims).map_err(|error| fault(shape, GraphTextProblem::Shape(error)))
}

fn set_param(op: &mut Op, word: Word<'_>, key: &str, value: Word<'_>) -> Result<(), Fault> {
    op.set_param(key, value.text).map_err(|error| match error {
        ParamError::Value { expected, .. } => bad_value(value, key, expected),
        ParamError::Unknown { op, name, known } => {
            let hint = if known == "none" { "it has none".into() } else { format!("it has {known}") };
            fault(word, GraphTextProblem::UnknownParam { op, name, hint })
        }
        // The enum may grow; its own words are good enough then.
        error => bad_value(value, key, &error.to_string()),
    })
}
