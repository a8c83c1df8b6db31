//! What can be wrong with a `.graph` text, and with turning one into entities or back.

use std::sync::Arc;

use entensor_components::{BackendError, OpError, ShapeError};

/// A fault in a `.graph` text: where it is, what it is, and what to do about it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{file}:{line}:{column}: {problem}")]
pub struct GraphTextError {
    /// The file, as it was named to the parser.
    pub file: Arc<str>,
    /// The line, from 1.
    pub line: u32,
    /// The column in characters, from 1.
    pub column: u32,
    /// What is wrong. Boxed, since errors are rare and results are moved a lot.
    pub problem: Box<GraphTextProblem>,
}

/// What is wrong with a line. Every message ends with the fix.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GraphTextProblem {
    /// A line that starts with none of the statements.
    #[error(
        "unknown word `{word}`; start a line with {statements}, or write `NAME = OP OPERAND …` with spaces around `=`"
    )]
    UnknownStatement {
        /// The word.
        word: String,
        /// The statements.
        statements: &'static str,
    },
    /// A word that the statement does not have.
    #[error("unknown word `{word}`; write `{form}`")]
    UnknownWord {
        /// The word.
        word: String,
        /// The statement's form.
        form: &'static str,
    },
    /// The line ends too early.
    #[error("{what} is missing; write `{form}`")]
    Missing {
        /// What is missing.
        what: &'static str,
        /// The statement's form.
        form: &'static str,
    },
    /// A name that could not be told from the rest of the line.
    #[error("`{name}` is no name; use letters, digits and signs other than `# = , [ ]`, and not the word `output`")]
    BadName {
        /// The name.
        name: String,
    },
    /// A name that was defined before.
    #[error("{kind} `{name}` is defined a second time, first in line {first_line}; rename or remove one")]
    Duplicate {
        /// What it names.
        kind: &'static str,
        /// The name.
        name: String,
        /// Where it was defined first.
        first_line: u32,
    },
    /// A statement or key that may occur once.
    #[error("`{word}` is given a second time; remove one")]
    Repeated {
        /// The statement or key.
        word: String,
    },
    /// A name that no earlier line defines.
    #[error("{kind} `{name}` is not defined before this line; {hint}")]
    Undefined {
        /// What it should name.
        kind: &'static str,
        /// The name.
        name: String,
        /// What to write.
        hint: String,
    },
    /// A value that does not fit its key.
    #[error("`{text}` is no value for `{key}`; write {expected}")]
    BadValue {
        /// The key.
        key: String,
        /// The value.
        text: String,
        /// What fits.
        expected: String,
    },
    /// An op that the table does not have.
    #[error("unknown op `{name}`; use one of {known}")]
    UnknownOp {
        /// The name.
        name: String,
        /// The op table's names.
        known: String,
    },
    /// A dtype that the table does not have.
    #[error("unknown dtype `{name}`; use one of {known}")]
    UnknownDType {
        /// The name.
        name: String,
        /// The dtype table's names.
        known: String,
    },
    /// A parameter that the op does not have.
    #[error("`{op}` has no parameter `{name}`; {hint}")]
    UnknownParam {
        /// The op.
        op: &'static str,
        /// The name.
        name: String,
        /// What it has.
        hint: String,
    },
    /// A tensor that cannot exist.
    #[error("{0}")]
    Shape(ShapeError),
    /// Operands or parameters that the op does not take.
    #[error("{0}; change the operands or the parameters")]
    Op(OpError),
    /// The text declares no backend.
    #[error("there is no backend; add a line `backend cpu memory=host`")]
    NoBackend,
    /// The last backend is not on host memory.
    #[error(
        "the last backend, `{backend}`, has memory={memory}; the last must have memory=host, so add one or move it"
    )]
    LastNotHost {
        /// The backend.
        backend: Arc<str>,
        /// Its memory.
        memory: Arc<str>,
    },
}

/// Why a graph could not be made from a text, or a text from a graph.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    /// The number of backends is not that of the text.
    #[error(
        "the text declares {declared} backends, but {given} were given; give one for each `backend` line, in order"
    )]
    BackendCount {
        /// Lines of the text.
        declared: usize,
        /// Backends given.
        given: usize,
    },
    /// The memory of the graph's tensors cannot be addressed, or one tensor exceeds its backend's largest buffer.
    #[error(
        "tensor `{tensor}` takes {size_bytes} bytes in `{buffer}`, but a buffer of `{backend}` holds at most {max_bytes}; make it smaller or put it elsewhere"
    )]
    TooLarge {
        /// The tensor.
        tensor: Arc<str>,
        /// Its bytes.
        size_bytes: u64,
        /// Its buffer.
        buffer: Arc<str>,
        /// The buffer's backend.
        backend: Arc<str>,
        /// What fits.
        max_bytes: u64,
    },
    /// A backend could not make a buffer.
    #[error("buffer `{buffer}` on `{backend}`: {source}")]
    Buffer {
        /// The buffer.
        buffer: Arc<str>,
        /// The backend.
        backend: Arc<str>,
        /// What the backend reports.
        source: BackendError,
    },
    /// Another machine lacks what the graph names.
    #[error(
        "{what} is on backend `{backend}`, which the other machine lacks; add a `backend {backend}` line there, or change the graph"
    )]
    NotOnMachine {
        /// What names the backend.
        what: String,
        /// The backend.
        backend: Arc<str>,
    },
    /// The entity is no graph, or one of its tensors or buffers is gone.
    #[error("{what} does not exist (any more); build the graph again")]
    Gone {
        /// What.
        what: String,
    },
    /// A graph made by hand holds something that `.graph` text has no words for.
    #[error("tensor `{tensor}` cannot be written as text: {reason}")]
    NotExpressible {
        /// The tensor.
        tensor: Arc<str>,
        /// Why not.
        reason: String,
    },
}
