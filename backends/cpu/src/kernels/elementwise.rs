//! Ops that make each element of one or two elements.
#![expect(unsafe_code, reason = "writes the rows of its chunk")]

use std::fmt;

use super::Grid;
#[cfg(target_arch = "x86_64")]
use crate::simd::Avx2;
use crate::{
    place::Place,
    simd::{Level, Portable},
    tensor::{Bases, TILE},
};

/// A function of one element, compiled for every level: any closure is one, so an op needs no name here. Called for a
/// tile at a time.
pub(crate) trait Map: Send + Sync {
    fn portable(&self, level: Portable, from: &[f32], to: &mut [f32]);
    #[cfg(target_arch = "x86_64")]
    fn avx2(&self, level: Avx2, from: &[f32], to: &mut [f32]);
}

/// From one tile to another: in place, a function that leaves some elements as they are is compiled to stores of the others alone, which
/// takes ten times as long (`relu` of 1536 elements on a Zen 4 server: 639 ns instead of 54).
#[inline(always)]
fn map<L: Level>(level: L, from: &[f32], to: &mut [f32], f: &impl Fn(f32) -> f32) {
    level.vectorize(
        #[inline(always)]
        || to.iter_mut().zip(from).for_each(|(to, from)| *to = f(*from)),
    );
}

impl<F: Fn(f32) -> f32 + Send + Sync> Map for F {
    fn portable(&self, level: Portable, from: &[f32], to: &mut [f32]) {
        map(level, from, to, self);
    }

    #[cfg(target_arch = "x86_64")]
    fn avx2(&self, level: Avx2, from: &[f32], to: &mut [f32]) {
        map(level, from, to, self);
    }
}

/// A function of two elements, compiled for every level; its result goes to the first.
pub(crate) trait Zip: Send + Sync {
    fn portable(&self, level: Portable, a: &mut [f32], b: &[f32]);
    #[cfg(target_arch = "x86_64")]
    fn avx2(&self, level: Avx2, a: &mut [f32], b: &[f32]);
}

#[inline(always)]
fn zip<L: Level>(level: L, a: &mut [f32], b: &[f32], f: &impl Fn(f32, f32) -> f32) {
    level.vectorize(
        #[inline(always)]
        || a.iter_mut().zip(b).for_each(|(a, b)| *a = f(*a, *b)),
    );
}

impl<F: Fn(f32, f32) -> f32 + Send + Sync> Zip for F {
    fn portable(&self, level: Portable, a: &mut [f32], b: &[f32]) {
        zip(level, a, b, self);
    }

    #[cfg(target_arch = "x86_64")]
    fn avx2(&self, level: Avx2, a: &mut [f32], b: &[f32]) {
        zip(level, a, b, self);
    }
}

/// A function of one element.
pub(crate) struct Unary {
    pub(crate) f: Box<dyn Map>,
    pub(crate) x: Place,
    pub(crate) out: Place,
    pub(crate) grid: Grid,
}

impl Unary {
    #[inline(always)]
    pub(crate) fn run<L: Level>(&self, level: L, bases: Bases<'_>, chunk: usize) {
        let (x, out) = (bases.tensor(&self.x), bases.tensor(&self.out));
        let (mut from, mut to) = ([0.0; TILE], [0.0; TILE]);
        for piece in self.grid.chunk(chunk) {
            let at = self.out.row_at(piece.row);
            // SAFETY: the piece belongs to this chunk.
            let (x, out) = (x.row(at), unsafe { out.row_mut(at) });
            for (start, len) in piece.tiles() {
                x.load(level, start, &mut from[..len]);
                level.map(&*self.f, &from[..len], &mut to[..len]);
                out.store(level, start, &to[..len]);
            }
        }
    }
}

/// A function of two elements, the second operand repeated over the first.
pub(crate) struct Binary {
    pub(crate) f: Box<dyn Zip>,
    pub(crate) a: Place,
    pub(crate) b: Place,
    pub(crate) out: Place,
    pub(crate) grid: Grid,
}

impl Binary {
    #[inline(always)]
    pub(crate) fn run<L: Level>(&self, level: L, bases: Bases<'_>, chunk: usize) {
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
                level.zip(&*self.f, &mut first[..len], &second[..len]);
                out.store(level, start, &first[..len]);
            }
        }
    }
}

/// Rows that are made of two others as they are read.
pub(crate) struct Gate {
    pub(crate) f: Box<dyn Zip>,
    pub(crate) x: Place,
    pub(crate) with: Place,
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { x, with, .. } = self;
        f.debug_struct("Gate").field("x", x).field("with", with).finish_non_exhaustive()
    }
}

impl fmt::Debug for Unary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { x, out, grid, .. } = self;
        f.debug_struct("Unary").field("x", x).field("out", out).field("grid", grid).finish_non_exhaustive()
    }
}

impl fmt::Debug for Binary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { a, b, out, grid, .. } = self;
        f.debug_struct("Binary")
            .field("a", a)
            .field("b", b)
            .field("out", out)
            .field("grid", grid)
            .finish_non_exhaustive()
    }
}
