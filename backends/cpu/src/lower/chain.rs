//! Chains of small products: found in the order of nodes, where each node reads the one before it and little else.
//!
//! What lies between two products is written only if somebody else reads it: a later node of the split, or anybody outside of it. What a later
//! node of the chain overwrites is nobody's any more.

use entensor_components::{BackendError, DType, NodeDesc, Op, SplitView};

use super::{Builder, Work, fused::is_read_from, nodes::cost};
use crate::{
    kernels::{CHUNK_COST, Chain, Kernel, Layer, TILE_ROWS, Then, WIDEST},
    place::Place,
};

/// Fewer products are no chain.
const LEAST_PRODUCTS: usize = 2;

/// The function that an op would apply to elements: what [`Builder::unary`] and [`Builder::binary`] leave in place of a step.
pub(super) enum Function {
    One(Box<dyn crate::kernels::Map>),
    Two(Box<dyn crate::kernels::Zip>),
}

/// A node of a chain.
struct Link {
    node: NodeDesc,
    operands: [Place; 2],
    out: Place,
}

impl Link {
    /// What it reads beside the node before it.
    fn beside(&self) -> Option<&Place> {
        match &self.node.op {
            Op::MulMat {} => Some(&self.operands[0]),
            op if is_zip(op) => Some(&self.operands[1]),
            _ => None,
        }
    }
}

/// Whether an op is a function of the elements of its only operand, as nets have them between layers. What is not named here is a step
/// of its own.
fn is_map(op: &Op) -> bool {
    matches!(
        op,
        Op::Scale { .. }
            | Op::Sqr {}
            | Op::Neg {}
            | Op::Abs {}
            | Op::Clamp { .. }
            | Op::Relu {}
            | Op::LeakyRelu { .. }
            | Op::Elu {}
            | Op::Sigmoid {}
            | Op::Tanh {}
            | Op::Silu {}
            | Op::Gelu {}
            | Op::GeluQuick {}
            | Op::GeluErf {}
            | Op::Hardsigmoid {}
            | Op::Hardswish {}
    )
}

/// Whether an op is a function of two elements.
fn is_zip(op: &Op) -> bool {
    matches!(op, Op::Add {} | Op::Sub {} | Op::Mul {} | Op::Div {})
}

/// Rows of f32, one behind the other on axis 1.
fn is_matrix(place: &Place) -> bool {
    place.dtype == DType::F32
        && place.is_row_packed()
        && place.shape[2] == 1
        && place.shape[3] == 1
        && place.is_injective()
        && !place.is_empty()
        && place.shape[0] <= WIDEST
}

/// A row that all rows of a matrix of this width share.
fn is_row(place: &Place, width: usize) -> bool {
    place.dtype == DType::F32 && place.shape == [width, 1, 1, 1] && place.is_row_packed()
}

/// A node as a link behind `last`, if it is one.
fn link(node: NodeDesc, last: Option<&Place>) -> Option<Link> {
    let out = Place::new(&node.output).filter(is_matrix)?;
    let place = |index: usize| node.operands.get(index).and_then(Place::new);
    let follows = |x: &Place| last.is_none_or(|last| x == last);
    let operands = match &node.op {
        Op::MulMat {} => {
            let (weights, x) = (place(0).filter(is_matrix)?, place(1).filter(is_matrix)?);
            // Both operands might be the result before.
            (follows(&x) && last != Some(&weights)).then_some([weights, x])?
        }
        op if is_map(op) => {
            let x = place(0).filter(|x| last == Some(x))?;
            (x.shape == out.shape).then_some([x, x])?
        }
        op if is_zip(op) => {
            let x = place(0).filter(|x| last == Some(x))?;
            let row = place(1).filter(|row| is_row(row, x.shape[0]))?;
            (x.shape == out.shape && row != x).then_some([x, row])?
        }
        _ => return None,
    };
    Some(Link { node, operands, out })
}

/// The longest chain that begins at a node.
fn find(split: &dyn SplitView, first: usize) -> Vec<Link> {
    let mut links: Vec<Link> = Vec::new();
    let mut products = 0;
    while first + links.len() < split.len() {
        let last = links.last().map(|link| link.out);
        let node = split.node(first + links.len());
        if last.is_none() && node.op != (Op::MulMat {}) {
            break;
        }
        let Some(next) = link(node, last.as_ref()) else { break };
        // Only the next node can read what is not written.
        let beside = next.beside().map(Place::region);
        if beside.is_some_and(|beside| links.iter().any(|link| link.out.region().overlaps(&beside))) {
            break;
        }
        products += usize::from(next.node.op == (Op::MulMat {}));
        links.push(next);
    }
    if products < LEAST_PRODUCTS { Vec::new() } else { links }
}

/// Which links' results are written.
fn kept(split: &dyn SplitView, first: usize, links: &[Link]) -> Vec<bool> {
    let behind = first + links.len();
    let keep = |(index, link): (usize, &Link)| {
        let (later, region) = (&links[index + 1..], link.out.region());
        let is_lost = later.iter().any(|later| later.out.overwrites(&region));
        let is_last = later.is_empty();
        is_last || !is_lost && (split.is_read_elsewhere(first + index) || is_read_from(split, behind, &region))
    };
    links.iter().enumerate().map(keep).collect()
}

impl Builder {
    /// Lowers the chain that begins at a node, if one does, and says how many nodes it is.
    pub(super) fn lower_chain(&mut self, split: &dyn SplitView, first: usize) -> Result<usize, BackendError> {
        let links = find(split, first);
        let Some(last) = links.last() else { return Ok(0) };
        let kept = kept(split, first, &links);
        let writes: Vec<Place> = links.iter().zip(&kept).filter(|(_, kept)| **kept).map(|(link, _)| link.out).collect();
        let overlaps = |place: &Place| writes.iter().any(|write| write.region().overlaps(&place.region()));
        // Rows are computed in no set order, so what some rows still read must not be written for others. Only the first operand can be set aside.
        let shares = links.iter().filter_map(Link::beside).any(overlaps);
        let doubled =
            writes.iter().enumerate().any(|(i, a)| writes[..i].iter().any(|b| a.region().overlaps(&b.region())));
        if shares || doubled {
            return Ok(0);
        }
        let (rows, x) = (last.out.shape[1], links[0].operands[1]);
        for (index, link) in links.iter().enumerate() {
            self.node = first + index;
            self.check(&link.node)?;
        }
        self.node = first;
        let x = if overlaps(&x) {
            let copy = self.work(Work::Operand(1), x.dtype, x.shape)?;
            self.copy_rows(x, copy);
            copy
        } else {
            x
        };
        let layers = self.layers(&links, &kept)?;
        let mut reads = vec![x];
        for layer in &layers {
            reads.push(layer.weights);
            reads.extend(layer.bias);
            reads.extend(layer.then.iter().filter_map(|then| match then {
                Then::Zip(_, place) => Some(*place),
                Then::Map(_) => None,
            }));
        }
        let multiplied: usize = layers.iter().map(|layer| layer.weights.elements()).sum();
        let row_cost = multiplied / 2 + links.len() * WIDEST.min(last.out.shape[0]) * cost::MOVE;
        // Several tiles: a chunk begins by clearing memory for one.
        let rows_per_chunk = (16 * CHUNK_COST / row_cost.max(1)).next_multiple_of(TILE_ROWS).max(TILE_ROWS);
        let chain = Chain { x, layers, rows_per_chunk };
        let chunks = chain.chunks();
        self.push_writing(Kernel::Chain(chain), chunks, &reads, &writes, rows.saturating_mul(row_cost));
        Ok(links.len())
    }

    fn layers(&mut self, links: &[Link], kept: &[bool]) -> Result<Box<[Layer]>, BackendError> {
        let mut layers: Vec<(Layer, Vec<Then>, Vec<(usize, Place)>)> = Vec::new();
        for (link, kept) in links.iter().zip(kept) {
            if link.node.op == (Op::MulMat {}) {
                let (weights, none) = (link.operands[0], [].into());
                let layer = Layer { weights, bias: None, relu: false, then: none, stores: [].into() };
                layers.push((layer, Vec::new(), Vec::new()));
            }
            let (layer, then, stores) = layers.last_mut().expect("a chain begins with a product");
            match link.node.op {
                Op::MulMat {} => {}
                // With the sums, unless somebody wants them without.
                Op::Add {} if then.is_empty() && stores.is_empty() && layer.bias.is_none() && !layer.relu => {
                    layer.bias = Some(link.operands[1]);
                }
                Op::Relu {} if then.is_empty() && stores.is_empty() => layer.relu = true,
                _ => {
                    self.function = Some(None);
                    self.lower_op(&link.node.op, &link.operands, link.out)?;
                    then.push(match self.function.take().flatten() {
                        Some(Function::One(f)) => Then::Map(f),
                        Some(Function::Two(f)) => Then::Zip(f, link.operands[1]),
                        None => unreachable!("`is_map` and `is_zip` name ops that are functions of elements"),
                    });
                }
            }
            if *kept {
                stores.push((then.len(), link.out));
            }
        }
        let finish = |(layer, then, stores): (Layer, Vec<Then>, Vec<(usize, Place)>)| Layer {
            then: then.into(),
            stores: stores.into(),
            ..layer
        };
        Ok(layers.into_iter().map(finish).collect())
    }
}
