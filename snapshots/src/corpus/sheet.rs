//! A text under construction: every node's shape is checked by the op table as it is written.

use std::fmt::Write as _;

use entensor_components::{DType, Op, OpError, OpKind, ParamError, Shape, ShapeError, TensorDesc};

use super::CorpusFile;

/// Why a family of the corpus cannot be written.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CorpusError {
    /// Operands or parameters that the op refuses.
    #[error("node `{node}`: {source}")]
    Op {
        /// The node.
        node: String,
        /// What the op table says.
        source: OpError,
    },
    /// An op that the table does not have.
    #[error("node `{node}`: the op table has no op `{op}`; write one of its names")]
    UnknownOp {
        /// The node.
        node: String,
        /// The word.
        op: String,
    },
    /// A parameter that the op does not have, or a value that is none.
    #[error("node `{node}`: `{word}`: {source}")]
    Param {
        /// The node.
        node: String,
        /// The word.
        word: String,
        /// Why.
        source: ParamError,
    },
    /// A leaf that cannot exist.
    #[error("leaf `{leaf}`: {source}")]
    Leaf {
        /// The leaf.
        leaf: String,
        /// Why.
        source: ShapeError,
    },
}

/// A tensor of a sheet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tensor(usize);

/// The text of one file. The first fault is kept until [`Sheet::finish`], so that families read as the nets they are.
pub(super) struct Sheet {
    machine: String,
    buffers: String,
    body: String,
    tensors: Vec<(String, TensorDesc)>,
    fault: Option<CorpusError>,
}

impl Sheet {
    /// A sheet for a machine, its backends by priority.
    pub(super) fn new(backends: &[&str]) -> Self {
        let machine = backends.iter().map(|line| format!("backend {line}\n")).collect();
        Self { machine, buffers: String::new(), body: String::new(), tensors: Vec::new(), fault: None }
    }

    /// A buffer that exists, for caches.
    pub(super) fn buffer(&mut self, name: &str, backend: &str) {
        let _ = writeln!(self.buffers, "buffer {name} on {backend}");
    }

    fn push(&mut self, name: &str, desc: TensorDesc) -> Tensor {
        self.tensors.push((name.into(), desc));
        Tensor(self.tensors.len() - 1)
    }

    fn fail(&mut self, error: CorpusError) -> Tensor {
        self.fault.get_or_insert(error);
        Tensor(usize::MAX)
    }

    fn leaf(&mut self, word: &str, name: &str, dtype: DType, dims: &[u64], place: &str) -> Tensor {
        let shape = Shape::new(dims).ok_or(ShapeError::TooManyAxes { rank: dims.len() });
        match shape.and_then(|shape| TensorDesc::packed(dtype, shape)) {
            Ok(desc) => {
                let _ = writeln!(self.body, "{word} {name} {dtype} {}{place}", desc.shape);
                self.push(name, desc)
            }
            Err(source) => self.fail(CorpusError::Leaf { leaf: name.into(), source }),
        }
    }

    /// A weight on a backend.
    pub(super) fn weight(&mut self, name: &str, dtype: DType, dims: &[u64], backend: &str) -> Tensor {
        self.leaf("weight", name, dtype, dims, &format!(" on {backend}"))
    }

    /// A tensor in a buffer.
    pub(super) fn tensor(&mut self, name: &str, dtype: DType, dims: &[u64], buffer: &str) -> Tensor {
        self.leaf("tensor", name, dtype, dims, &format!(" in {buffer}"))
    }

    /// An input.
    pub(super) fn input(&mut self, name: &str, dtype: DType, dims: &[u64]) -> Tensor {
        self.leaf("input", name, dtype, dims, "")
    }

    /// A node: `op` is its word and its parameters, as in the text.
    pub(super) fn op(&mut self, name: &str, op: &str, operands: &[Tensor]) -> Tensor {
        self.node(name, op, operands, "")
    }

    /// A node that is wanted.
    pub(super) fn output(&mut self, name: &str, op: &str, operands: &[Tensor]) -> Tensor {
        self.node(name, op, operands, " output")
    }

    fn node(&mut self, name: &str, op: &str, operands: &[Tensor], flag: &str) -> Tensor {
        let known = operands.iter().map(|operand| self.tensors.get(operand.0).map(|(_, desc)| *desc));
        // An operand that is missing has left its fault already.
        let Some(descs) = known.collect::<Option<Vec<_>>>() else { return Tensor(usize::MAX) };
        let made = parse_op(name, op).and_then(|op| match op.result(&descs) {
            Ok(result) => Ok((op, result.desc)),
            Err(source) => Err(CorpusError::Op { node: name.into(), source }),
        });
        let (op, desc) = match made {
            Ok(made) => made,
            Err(error) => return self.fail(error),
        };
        let _ = write!(self.body, "{name} = {}", op.kind());
        for operand in operands {
            let _ = write!(self.body, " {}", self.tensors[operand.0].0);
        }
        if let Some((_, params)) = op.to_string().split_once(' ') {
            let _ = write!(self.body, " {params}");
        }
        let _ = writeln!(self.body, "{flag}");
        self.push(name, desc)
    }

    /// The axes of a tensor; ones for a tensor that failed.
    pub(super) fn shape(&self, tensor: Tensor) -> [u64; 4] {
        self.tensors.get(tensor.0).map_or([1; 4], |(_, desc)| desc.shape.0)
    }

    /// The strides of a tensor in bytes.
    pub(super) fn strides(&self, tensor: Tensor) -> [u64; 4] {
        self.tensors.get(tensor.0).map_or([1; 4], |(_, desc)| desc.strides.0)
    }

    /// The file.
    pub(super) fn finish(
        self,
        name: &'static str,
        about: &'static str,
        copies: u32,
    ) -> Result<CorpusFile, CorpusError> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        let mut text = format!("# {about}\n{}{}{}", self.machine, self.buffers, self.body);
        if copies != 1 {
            let _ = writeln!(text, "copies {copies}");
        }
        Ok(CorpusFile { name, about, text })
    }
}

fn parse_op(node: &str, text: &str) -> Result<Op, CorpusError> {
    let mut words = text.split_whitespace();
    let word = words.next().unwrap_or_default();
    let kind = OpKind::from_name(word);
    let unknown = || CorpusError::UnknownOp { node: node.into(), op: word.into() };
    let mut op = kind.ok_or_else(unknown)?.default_op();
    for word in words {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        op.set_param(key, value).map_err(|source| CorpusError::Param {
            node: node.into(),
            word: word.into(),
            source,
        })?;
    }
    Ok(op)
}

/// A list as parameters take it: `[1,2,3]`.
pub(super) fn list(values: &[u64]) -> String {
    let words: Vec<String> = values.iter().map(u64::to_string).collect();
    format!("[{}]", words.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_fault_is_told() {
        let mut s = Sheet::new(&["cpu"]);
        let x = s.input("x", DType::F32, &[4, 2]);
        let w = s.weight("w", DType::F32, &[5, 2], "cpu");
        let y = s.op("y", "mul_mat", &[w, x]);
        s.op("z", "relu", &[y]);
        let error = s.finish("name", "about", 1).expect_err("it does not fit");
        assert!(matches!(&error, CorpusError::Op { node, .. } if node == "y"), "{error}");

        for (op, word) in [("rellu", "rellu"), ("scale bye=2", "bye"), ("scale by=x", "by=x")] {
            let mut s = Sheet::new(&["cpu"]);
            let x = s.input("x", DType::F32, &[4]);
            s.op("y", op, &[x]);
            let error = s.finish("name", "about", 1).expect_err("no such op or parameter").to_string();
            assert!(error.contains("`y`") && error.contains(word), "{error}");
        }
        let mut s = Sheet::new(&["cpu"]);
        s.weight("w", DType::Q4_1, &[5], "cpu");
        assert!(matches!(s.finish("name", "about", 1), Err(CorpusError::Leaf { .. })));
    }
}
