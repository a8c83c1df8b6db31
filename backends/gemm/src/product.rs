//! One product: its grid of chunks, and what a worker does with a chunk.
//!
//! A chunk is a panel of rows of one plane of weights times all columns of the plane of activations that it serves. The panel is
//! decoded once, unless it is f32 already; sums over rows longer than [`DEPTH`] go on in the result. Sizes depend on
//! the shapes alone.
#![expect(unsafe_code, reason = "locked memory as slices of rows, and the call of `gemm`")]

use std::sync::Arc;

use entensor_components::{BackendError, DType, NodeDesc, OpDesc, Support, TensorDesc};

use crate::{
    decode::decode,
    place::Place,
    support::support,
    work::{Sizes, Work},
};

/// Rows of a panel: a multiple of what the kernels of `gemm` work on at a time, on every level.
const PANEL_ROWS: usize = 96;

/// Elements of a row that are decoded at once: whole blocks of every dtype.
const DEPTH: usize = 4096;

/// Activations that are decoded at once.
const DECODED_ACTIVATIONS: usize = 256 * 1024;

/// Where a memory slot begins in this run, and how long it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Base {
    pub(crate) bytes: *mut u8,
    pub(crate) len: usize,
}

// SAFETY: a base is an address; whoever reads or writes there promises by itself that it may.
unsafe impl Send for Base {}
// SAFETY: as above.
unsafe impl Sync for Base {}

/// A product that is ready to run.
#[derive(Debug)]
pub(crate) struct Product {
    weights: Place,
    x: Place,
    out: Place,
    /// How many planes of activations one plane of weights serves, along each outer axis.
    group: [usize; 2],
    panels: usize,
}

/// What one call of `gemm` multiplies.
struct Block {
    /// Rows of the weights from `row` on.
    row: usize,
    rows: usize,
    /// Columns of the result from `column` on.
    column: usize,
    columns: usize,
    /// Elements of the rows from `depth` on.
    depth: usize,
    depths: usize,
}

/// A matrix of f32: its first element, and the elements from one to the next along a row of the operand and from row to row.
#[derive(Clone, Copy)]
struct Matrix {
    first: *const f32,
    along: isize,
    across: isize,
}

impl Product {
    /// Checks a node and lowers it.
    pub(crate) fn new(node: &NodeDesc, min_columns: u64) -> Result<Self, BackendError> {
        let refused = |reason: String| BackendError::UnsupportedNode {
            node: Arc::clone(&node.name),
            op: node.op.row().name,
            reason,
        };
        let descs: Vec<TensorDesc> = node.operands.iter().map(|operand| operand.desc).collect();
        if let Support::No(reason) =
            support(&OpDesc { op: &node.op, output: node.output.desc, operands: &descs }, min_columns)
        {
            return Err(refused(reason.into_owned()));
        }
        let place = |tensor| Place::new(tensor).ok_or_else(|| refused("a tensor's end overflows".into()));
        let [weights, x] = &node.operands[..] else { return Err(refused("a product has two operands".into())) };
        let (weights, x, out) = (place(weights)?, place(x)?, place(&node.output)?);
        if out.overlaps(&weights) || out.overlaps(&x) {
            return Err(refused("its result lies in the memory of an operand".into()));
        }
        if !out.is_aligned() {
            return Err(refused("its result begins at no whole element".into()));
        }
        let group = [2, 3].map(|axis| x.shape[axis] / weights.shape[axis].max(1));
        Ok(Self { weights, x, out, group, panels: weights.shape[1].div_ceil(PANEL_ROWS) })
    }

    /// The tensors, and which of them is written.
    pub(crate) fn places(&self) -> [(&Place, bool); 3] {
        [(&self.weights, false), (&self.x, false), (&self.out, true)]
    }

    /// How many chunks there are.
    pub(crate) fn chunks(&self) -> usize {
        // No more than the elements of the result, which are countable.
        if self.out.is_empty() { 0 } else { self.panels * self.out.shape[2] * self.out.shape[3] }
    }

    /// Multiplications, to tell small work from large.
    pub(crate) fn cost(&self) -> usize {
        if self.out.is_empty() {
            return 0;
        }
        let elements: usize = self.out.shape.iter().product();
        elements.saturating_mul(self.x.shape[0])
    }

    /// What a worker needs. Both are kept for f32 operands too: imported memory may begin at an odd address.
    pub(crate) fn work_sizes(&self) -> Sizes {
        if self.chunks() == 0 {
            return Sizes::default();
        }
        let depth = self.x.shape[0].min(DEPTH);
        let rows = self.weights.shape[1].min(PANEL_ROWS);
        Sizes { weights: rows * depth, activations: self.x.shape[1].min(columns_at_once(depth)) * depth }
    }

    /// Computes one chunk. `stop` is asked between the calls of `gemm`; after a stop the result holds anything.
    ///
    /// # Safety
    /// Each base points to its slot's bytes, at least as many as the places need, readable and, for the result's slot, writable;
    /// nobody writes the operands or touches the result while this runs, but for workers on other chunks of this product.
    pub(crate) unsafe fn run(&self, bases: &[Base], chunk: usize, work: &mut Work, stop: &dyn Fn() -> bool) {
        let (panel, plane) = (chunk % self.panels, chunk / self.panels);
        let plane = [plane % self.out.shape[2], plane / self.out.shape[2]];
        let weights_plane = [plane[0] / self.group[0], plane[1] / self.group[1]];
        let row = panel * PANEL_ROWS;
        let rows = (self.weights.shape[1] - row).min(PANEL_ROWS);
        let (columns, k) = (self.x.shape[1], self.x.shape[0]);
        let mut depth = 0;
        loop {
            let depths = (k - depth).min(DEPTH);
            let whole = Block { row, rows, column: 0, columns, depth, depths };
            // SAFETY: nobody writes the operands, and the bases hold them; the caller promises both.
            let (weights, x_in_place) = unsafe {
                let weights = match in_place(&self.weights, bases, [depth, row], weights_plane) {
                    Some(matrix) => matrix,
                    None => {
                        let out = &mut work.weights;
                        decoded(&self.weights, bases, [depth, row], [depths, rows], weights_plane, out)
                    }
                };
                (weights, in_place(&self.x, bases, [depth, 0], plane))
            };
            match x_in_place {
                // SAFETY: as this function.
                Some(x) => unsafe { self.multiply(bases, plane, &whole, weights, x) },
                None => {
                    let at_once = columns_at_once(depths);
                    for column in (0..columns).step_by(at_once) {
                        let columns = (columns - column).min(at_once);
                        let out = &mut work.activations;
                        // SAFETY: as above.
                        unsafe {
                            let x = decoded(&self.x, bases, [depth, column], [depths, columns], plane, out);
                            self.multiply(bases, plane, &Block { column, columns, ..whole }, weights, x);
                        }
                        if stop() {
                            return;
                        }
                    }
                }
            }
            depth += depths;
            if depth >= k || stop() {
                return;
            }
        }
    }

    /// Adds a block's product to the result, or sets it where the block is the first along the rows.
    ///
    /// # Safety
    /// As [`Self::run`]; the matrices hold the block.
    unsafe fn multiply(&self, bases: &[Base], plane: [usize; 2], block: &Block, weights: Matrix, x: Matrix) {
        let at = self.out.at([block.row, block.column, plane[0], plane[1]]);
        let first = bases[self.out.slot].bytes.wrapping_add(at).cast::<f32>();
        // A packed f32 result: strides are whole elements. Where there is one column only, its stride is none.
        let column_stride =
            if self.out.shape[1] > 1 { elements(self.out.strides[1]) } else { elements(self.out.shape[0] * 4) };
        // SAFETY: the block lies inside of the operands and of the result, whose bytes the caller promises; all addresses and
        // strides are whole elements; `gemm` reads the result only where `read_dst` says so.
        unsafe {
            gemm::gemm(
                block.rows,
                block.columns,
                block.depths,
                first,
                column_stride,
                1,
                block.depth > 0,
                weights.first,
                weights.along,
                weights.across,
                x.first,
                x.across,
                x.along,
                1.0_f32,
                1.0_f32,
                false,
                false,
                false,
                gemm::Parallelism::None,
            );
        }
    }
}

/// Columns of activations whose rows, of so many elements, are decoded at once.
fn columns_at_once(depth: usize) -> usize {
    (DECODED_ACTIVATIONS / depth.max(1)).max(1)
}

/// Bytes as elements of f32. Strides of places are countable.
fn elements(bytes: usize) -> isize {
    (bytes / 4) as isize
}

/// An f32 operand where it lies, from an element and a row on; `None` for other dtypes, and at odd addresses.
///
/// # Safety
/// The bases hold the operand.
unsafe fn in_place(place: &Place, bases: &[Base], from: [usize; 2], plane: [usize; 2]) -> Option<Matrix> {
    if place.dtype != DType::F32 || place.is_empty() {
        return None;
    }
    let at = place.at([from[0], from[1], plane[0], plane[1]]);
    let first = bases[place.slot].bytes.wrapping_add(at).cast::<f32>().cast_const();
    let (along, across) = (elements(place.strides[0]), elements(place.strides[1]));
    first.is_aligned().then_some(Matrix { first, along, across })
}

/// Decodes `len[0]` elements of each of `len[1]` rows, from `from` on. Where the rows lie across each other in memory, as those of
/// a transposed cache, it goes along what is in one piece, and the result is as `gemm` likes it best.
///
/// # Safety
/// The bases hold the operand, and nobody writes it meanwhile.
unsafe fn decoded(
    place: &Place,
    bases: &[Base],
    from: [usize; 2],
    len: [usize; 2],
    plane: [usize; 2],
    out: &mut [f32],
) -> Matrix {
    let base = bases[place.slot];
    // SAFETY: asked for below with elements of the operand only, which the base holds and nobody writes.
    let bytes = |at: usize, span: usize| unsafe {
        debug_assert!(at + span <= base.len, "the locks hold what the places need");
        std::slice::from_raw_parts(base.bytes.add(at).cast_const(), span)
    };
    let is_across =
        !place.dtype.is_block() && place.strides[0] != place.unit_bytes() && place.strides[1] == place.unit_bytes();
    let [width, height] = if is_across { [len[1], len[0]] } else { len };
    if width > 0 {
        for (line, out) in out.chunks_exact_mut(width).take(height).enumerate() {
            if is_across {
                let at = place.at([from[0] + line, from[1], plane[0], plane[1]]);
                decode(place.dtype, bytes(at, width * place.unit_bytes()), place.unit_bytes(), out);
            } else {
                let at = place.at([from[0], from[1] + line, plane[0], plane[1]]);
                decode(place.dtype, bytes(at, place.row_span(width)), place.strides[0], out);
            }
        }
    }
    let (one, width) = (1, width as isize);
    let (along, across) = if is_across { (width, one) } else { (one, width) };
    Matrix { first: out.as_ptr(), along, across }
}
