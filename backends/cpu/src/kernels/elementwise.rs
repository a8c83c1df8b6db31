//! Ops that make each element of one or two elements.
#![expect(unsafe_code, reason = "writes the rows of its chunk")]

use super::Grid;
use crate::{
    math::silu,
    place::Place,
    simd::Level,
    tensor::{Bases, TILE},
};

/// Which function of one element.
#[derive(Clone, Copy, Debug)]
pub(crate) enum UnaryOp {
    Scale(f32),
    Relu,
    Silu,
}

/// A function of one element.
#[derive(Debug)]
pub(crate) struct Unary {
    pub(crate) op: UnaryOp,
    pub(crate) x: Place,
    pub(crate) out: Place,
    pub(crate) grid: Grid,
}

impl Unary {
    #[inline(always)]
    pub(crate) fn run<L: Level>(&self, level: L, bases: Bases<'_>, chunk: usize) {
        match self.op {
            UnaryOp::Scale(by) => self.map(level, bases, chunk, |x| x * by),
            UnaryOp::Relu => self.map(level, bases, chunk, |x| if x > 0.0 { x } else { 0.0 }),
            UnaryOp::Silu => self.map(level, bases, chunk, silu),
        }
    }

    #[inline(always)]
    fn map<L: Level>(&self, level: L, bases: Bases<'_>, chunk: usize, f: impl Fn(f32) -> f32) {
        let (x, out) = (bases.tensor(&self.x), bases.tensor(&self.out));
        let mut tile = [0.0; TILE];
        for piece in self.grid.chunk(chunk) {
            let at = self.out.row_at(piece.row);
            // SAFETY: the piece belongs to this chunk.
            let (x, out) = (x.row(at), unsafe { out.row_mut(at) });
            for (start, len) in piece.tiles() {
                x.load(level, start, &mut tile[..len]);
                tile[..len].iter_mut().for_each(|v| *v = f(*v));
                out.store(level, start, &tile[..len]);
            }
        }
    }
}

/// Which function of two elements.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BinaryOp {
    Add,
    Mul,
    /// `silu(a) · b`.
    Gate,
}

/// A function of two elements, the second operand repeated over the first.
#[derive(Debug)]
pub(crate) struct Binary {
    pub(crate) op: BinaryOp,
    pub(crate) a: Place,
    pub(crate) b: Place,
    pub(crate) out: Place,
    pub(crate) grid: Grid,
}

impl Binary {
    #[inline(always)]
    pub(crate) fn run<L: Level>(&self, level: L, bases: Bases<'_>, chunk: usize) {
        match self.op {
            BinaryOp::Add => self.map(level, bases, chunk, |a, b| a + b),
            BinaryOp::Mul => self.map(level, bases, chunk, |a, b| a * b),
            BinaryOp::Gate => self.map(level, bases, chunk, |a, b| silu(a) * b),
        }
    }

    #[inline(always)]
    fn map<L: Level>(&self, level: L, bases: Bases<'_>, chunk: usize, f: impl Fn(f32, f32) -> f32) {
        let (a, b, out) = (bases.tensor(&self.a), bases.tensor(&self.b), bases.tensor(&self.out));
        let (mut first, mut second) = ([0.0; TILE], [0.0; TILE]);
        let repeats = self.b.shape[0] != self.a.shape[0];
        for piece in self.grid.chunk(chunk) {
            let at = self.out.row_at(piece.row);
            // SAFETY: the piece belongs to this chunk.
            let (a, out) = (a.row(at), unsafe { out.row_mut(at) });
            let b = b.row([at[0] % self.b.shape[1], at[1] % self.b.shape[2], at[2] % self.b.shape[3]]);
            for (start, len) in piece.tiles() {
                a.load(level, start, &mut first[..len]);
                if repeats {
                    b.load_repeated(level, start, &mut second[..len]);
                } else {
                    b.load(level, start, &mut second[..len]);
                }
                first[..len].iter_mut().zip(&second[..len]).for_each(|(a, b)| *a = f(*a, *b));
                out.store(level, start, &first[..len]);
            }
        }
    }
}
