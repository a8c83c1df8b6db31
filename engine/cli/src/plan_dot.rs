//! A plan as a drawing: input of Graphviz' `dot`.

use std::{collections::HashSet, fmt::Write as _};

use entensor::{Plan, systems::PlanNode};

/// Fill colours by backend; there are more backends than colours rarely enough to let them repeat.
const COLORS: [&str; 8] = ["#cfe8ff", "#ffe2c4", "#d9f2d0", "#f4d3ea", "#fff3b8", "#d8d6f7", "#cdeeee", "#e6e0d6"];

/// A box for each split, ellipses for leaves, dashed arrows where an operand is copied first.
pub(crate) fn render(plan: &Plan) -> String {
    let mut text = String::from("digraph plan {\n  rankdir=TB;\n  node [style=filled, fontname=\"sans-serif\"];\n");
    for (index, split) in plan.splits.iter().enumerate() {
        let backend = plan.backends.get(split.backend as usize).map_or("", |b| &*b.name);
        let _ = writeln!(text, "  subgraph cluster_{index} {{\n    label={};", quote(&format!("{index} {backend}")));
        for &node in plan.split_nodes(split) {
            let _ = writeln!(text, "    {}", line(&plan.node(node as usize), "box"));
        }
        text.push_str("  }\n");
    }
    // Leaves and views belong to no split.
    for node in plan.nodes().filter(|node| !node.op.row().computes()) {
        let is_leaf = (node.index as usize) < plan.leaves();
        let _ = writeln!(text, "  {}", line(&node, if is_leaf { "ellipse" } else { "box, peripheries=2" }));
    }
    let copies: HashSet<(u32, u32)> = plan.copies.iter().map(|copy| (copy.source, copy.backend)).collect();
    for node in plan.nodes() {
        let index = node.index;
        for &source in node.sources {
            let is_copied = node.op.row().computes() && copies.contains(&(source, node.backend));
            let _ = writeln!(
                text,
                "  n{source} -> n{index}{};",
                if is_copied { " [style=dashed, label=copy]" } else { "" }
            );
        }
    }
    text.push_str("}\n");
    text
}

fn line(node: &PlanNode<'_>, shape: &str) -> String {
    let color = COLORS[node.backend as usize % COLORS.len()];
    let label = format!("{}\n{} {}\n[{}]", node.name, node.op.kind(), node.desc, node.cause);
    format!("n{} [shape={shape}, fillcolor=\"{color}\", label={}];", node.index, quote(&label))
}

/// A quoted string of the dot language.
fn quote(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            c if c.is_control() => quoted.push('?'),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::quote;

    #[test]
    fn names_cannot_leave_their_quotes() {
        assert_eq!(quote("a\"; b\\\n\u{1b}"), "\"a\\\"; b\\\\\\n?\"");
    }
}
