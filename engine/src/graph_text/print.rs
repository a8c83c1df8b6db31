//! The canonical text: machine, buffers, tensors in creation order, pins of leaves, `copies`, `run`; defaults left out.

use std::fmt;

use super::{GraphText, Origin, TensorText, machine};

impl fmt::Display for GraphText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, backend) in self.machine.iter().enumerate() {
            machine::print(backend, i + 1 == self.machine.len(), f)?;
        }
        for buffer in &self.buffers {
            write!(f, "buffer {} on {}", buffer.name, self.machine[buffer.backend].name)?;
            if buffer.usage != entensor_components::Usage::default() {
                write!(f, " usage={}", buffer.usage.name())?;
            }
            writeln!(f, "{}", if buffer.opaque { " opaque" } else { "" })?;
        }
        for tensor in &self.tensors {
            self.print_tensor(tensor, f)?;
        }
        for tensor in self.tensors.iter().filter(|t| !matches!(t.origin, Origin::Node { .. })) {
            if let Some(pin) = tensor.pin {
                writeln!(f, "pin {} {}", tensor.name, self.machine[pin].name)?;
            }
        }
        if self.copies != 1 {
            writeln!(f, "copies {}", self.copies)?;
        }
        for (i, &wanted) in self.run.iter().enumerate() {
            write!(f, "{}{}", if i == 0 { "run " } else { "," }, self.tensors[wanted].name)?;
        }
        if self.run.is_empty() { Ok(()) } else { writeln!(f) }
    }
}

impl GraphText {
    fn print_tensor(&self, tensor: &TensorText, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TensorText { name, desc, origin, pin, output } = tensor;
        let (dtype, shape) = (desc.dtype, desc.shape);
        let (op, operands) = match origin {
            Origin::Tensor { buffer } => {
                return writeln!(f, "tensor {name} {dtype} {shape} in {}", self.buffers[*buffer].name);
            }
            Origin::Weight { backend } => {
                return writeln!(f, "weight {name} {dtype} {shape} on {}", self.machine[*backend].name);
            }
            Origin::Input => return writeln!(f, "input {name} {dtype} {shape}"),
            Origin::Scratch => return writeln!(f, "scratch {name} {dtype} {shape}"),
            Origin::Node { op, operands } => (op, operands),
        };
        write!(f, "{name} = {}", op.kind())?;
        for &operand in operands {
            write!(f, " {}", self.tensors[operand].name)?;
        }
        // An op prints its word and then its parameters; the operands stand between the two.
        let text = op.to_string();
        if let Some((_, params)) = text.split_once(' ') {
            write!(f, " {params}")?;
        }
        if let Some(pin) = pin {
            write!(f, " pin={}", self.machine[*pin].name)?;
        }
        writeln!(f, "{}", if *output { " output" } else { "" })
    }
}
