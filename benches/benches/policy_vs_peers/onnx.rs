//! A policy as the bytes of an ONNX file, for `rten`, which takes no other models: the few messages of the format that it takes.

use crate::{Policy, WIDTHS};

/// A message of the format in the making.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn number(mut self, field: u64, value: u64) -> Self {
        self.varint(field << 3);
        self.varint(value);
        self
    }

    fn bytes(mut self, field: u64, bytes: &[u8]) -> Self {
        self.varint(field << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
        self
    }

    fn message(self, field: u64, message: &Self) -> Self {
        self.bytes(field, &message.0)
    }
}

/// `TensorProto` of f32.
fn tensor(name: &str, shape: &[usize], values: &[f32]) -> Message {
    let dims = shape.iter().fold(Message::default(), |tensor, dim| tensor.number(1, *dim as u64));
    let raw: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    dims.number(2, 1).bytes(8, name.as_bytes()).bytes(9, &raw)
}

/// `ValueInfoProto` of f32.
fn value(name: &str, shape: &[usize]) -> Message {
    let dim = |dims: Message, dim: &usize| dims.message(1, &Message::default().number(1, *dim as u64));
    let shape = shape.iter().fold(Message::default(), dim);
    let tensor = Message::default().number(1, 1).message(2, &shape);
    Message::default().bytes(1, name.as_bytes()).message(2, &Message::default().message(1, &tensor))
}

/// `NodeProto`.
fn node(op: &str, inputs: &[&str], output: &str) -> Message {
    let inputs = inputs.iter().fold(Message::default(), |node, input| node.bytes(1, input.as_bytes()));
    inputs.bytes(2, output.as_bytes()).bytes(3, output.as_bytes()).bytes(4, op.as_bytes())
}

/// The file: `Gemm` with transposed weights for each layer, and `Relu` where the layer has it.
pub(crate) fn encode(policy: &Policy, batch: usize) -> Vec<u8> {
    let mut graph = Message::default();
    let mut weights = Message::default();
    let mut last = String::from("x");
    for (index, layer) in policy.layers.iter().enumerate() {
        let name = |part: &str| format!("{part}{index}");
        let (w, b, sum, relu) = (name("w"), name("b"), name("sum"), name("relu"));
        // `transB`, an integer.
        let attribute = Message::default().bytes(1, b"transB").number(3, 1).number(20, 2);
        graph = graph.message(1, &node("Gemm", &[&last, &w, &b], &sum).message(5, &attribute));
        if layer.relu {
            graph = graph.message(1, &node("Relu", &[&sum], &relu));
        }
        last = if layer.relu { relu } else { sum };
        weights = weights.message(5, &tensor(&w, &[layer.m, layer.k], &layer.weights));
        weights = weights.message(5, &tensor(&b, &[layer.m], &layer.bias));
    }
    graph = graph.bytes(2, b"policy");
    graph.0.extend(weights.0);
    graph = graph.message(11, &value("x", &[batch, WIDTHS[0]]));
    graph = graph.message(12, &value(&last, &[batch, WIDTHS[WIDTHS.len() - 1]]));
    let opset = Message::default().bytes(1, b"").number(2, 13);
    Message::default().number(1, 8).message(7, &graph).message(8, &opset).0
}
