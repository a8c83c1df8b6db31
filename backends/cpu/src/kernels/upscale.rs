//! Stretching: new elements from those nearest to their positions.
#![expect(unsafe_code, reason = "writes the rows of its chunk")]

use super::Grid;
use crate::{
    place::Place,
    simd::Level,
    tensor::{Bases, Row, TILE},
};

/// Where new elements lie along an old axis: the i-th at `(scale · i + shift) / parts`. Whole numbers, so that no rounding
/// ever moves a position to the next element.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Positions {
    scale: i128,
    shift: i128,
    parts: i128,
    /// The last old element.
    last: usize,
}

/// The old elements below and above a position, and the weight of the one above.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Neighbours {
    below: usize,
    above: usize,
    weight: f32,
}

impl Positions {
    /// Positions on an axis of `old` elements that is stretched to `new`, neither of them 0: of corners that stay in place
    /// (where both are more than one), else of the centres of cells, else of their beginnings.
    pub(crate) fn new(old: usize, new: usize, align_corners: bool, centres: bool) -> Self {
        let last = old - 1;
        let (old, new) = (old as i128, new as i128);
        if align_corners && old > 1 && new > 1 {
            Self { scale: old - 1, shift: 0, parts: new - 1, last }
        } else if centres {
            Self { scale: 2 * old, shift: old - new, parts: 2 * new, last }
        } else {
            Self { scale: old, shift: 0, parts: new, last }
        }
    }

    /// The neighbours of elements from `start` on.
    #[inline(always)]
    fn fill(&self, start: usize, out: &mut [Neighbours]) {
        let Self { scale, shift, parts, last } = *self;
        let position = scale * start as i128 + shift;
        // One division here, then steps. Positions lie around the old axis, and twice an axis fits in u64.
        let (mut whole, mut rest) = (position.div_euclid(parts) as isize, position.rem_euclid(parts) as u64);
        let (step_whole, step_rest) = ((scale / parts) as isize, (scale % parts) as u64);
        let carry = parts as u64 - step_rest;
        let part = 1.0 / parts as f64;
        for neighbours in out {
            *neighbours = match usize::try_from(whole) {
                Err(_) => Neighbours { below: 0, above: last.min(1), weight: 0.0 },
                Ok(below) if below < last => {
                    Neighbours { below, above: below + 1, weight: (rest as f64 * part) as f32 }
                }
                Ok(_) => Neighbours { below: last, above: last, weight: 0.0 },
            };
            whole += step_whole;
            if rest >= carry {
                rest -= carry;
                whole += 1;
            } else {
                rest += step_rest;
            }
        }
    }

    #[inline(always)]
    fn at(&self, i: usize) -> Neighbours {
        let mut one = [Neighbours::default()];
        self.fill(i, &mut one);
        one[0]
    }
}

/// A tensor stretched to another shape.
#[derive(Debug)]
pub(crate) struct Upscale {
    /// Weighted means along axes 0 and 1, or only the element below.
    pub(crate) bilinear: bool,
    pub(crate) axes: [Positions; 4],
    pub(crate) x: Place,
    pub(crate) out: Place,
    pub(crate) grid: Grid,
}

impl Upscale {
    #[inline(always)]
    pub(crate) fn run<L: Level>(&self, level: L, bases: Bases<'_>, chunk: usize) {
        let (x, out) = (bases.tensor(&self.x), bases.tensor(&self.out));
        let mut columns = [Neighbours::default(); TILE];
        let mut tile = [0.0; TILE];
        for piece in self.grid.chunk(chunk) {
            let at = self.out.row_at(piece.row);
            let (down, plane) = (self.axes[1].at(at[0]), [self.axes[2].at(at[1]).below, self.axes[3].at(at[2]).below]);
            let below = x.row([down.below, plane[0], plane[1]]);
            let above = self.bilinear.then(|| x.row([down.above, plane[0], plane[1]]));
            // SAFETY: the piece belongs to this chunk.
            let out = unsafe { out.row_mut(at) };
            for (start, len) in piece.tiles() {
                let columns = &mut columns[..len];
                self.axes[0].fill(start, columns);
                match &above {
                    Some(above) => bilinear(level, [&below, above], down.weight, columns, &mut tile[..len]),
                    None => nearest(level, &below, columns, &mut tile[..len]),
                }
                out.store(level, start, &tile[..len]);
            }
        }
    }
}

/// How many columns from the first on lie within a tile of old elements, and how many old elements that is.
#[inline(always)]
fn run_of(columns: &[Neighbours]) -> (usize, usize) {
    let first = columns[0].below;
    let count = columns.iter().take_while(|column| column.above - first < TILE).count();
    (count, columns[count - 1].above - first + 1)
}

#[inline(always)]
fn nearest<L: Level>(level: L, row: &Row, columns: &[Neighbours], tile: &mut [f32]) {
    let mut old = [0.0; TILE];
    let mut done = 0;
    while done < columns.len() {
        let (count, span) = run_of(&columns[done..]);
        let first = columns[done].below;
        row.load(level, first, &mut old[..span]);
        for (v, column) in tile[done..done + count].iter_mut().zip(&columns[done..]) {
            *v = old[column.below - first];
        }
        done += count;
    }
}

#[inline(always)]
fn bilinear<L: Level>(level: L, rows: [&Row; 2], down: f32, columns: &[Neighbours], tile: &mut [f32]) {
    let mut old = [[0.0; TILE]; 2];
    let mut done = 0;
    while done < columns.len() {
        let (count, span) = run_of(&columns[done..]);
        let first = columns[done].below;
        for (old, row) in old.iter_mut().zip(rows) {
            row.load(level, first, &mut old[..span]);
        }
        for (v, column) in tile[done..done + count].iter_mut().zip(&columns[done..]) {
            let mean = |old: &[f32; TILE]| {
                old[column.below - first] * (1.0 - column.weight) + old[column.above - first] * column.weight
            };
            *v = mean(&old[0]) * (1.0 - down) + mean(&old[1]) * down;
        }
        done += count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_and_divisions_agree() {
        for (old, new) in [(1, 1), (1, 5), (5, 1), (2, 4), (7, 3), (3, 7), (1000, 999), (255, 600)] {
            for align_corners in [false, true] {
                for centres in [false, true] {
                    let positions = Positions::new(old, new, align_corners, centres);
                    let mut all = vec![Neighbours::default(); new];
                    positions.fill(0, &mut all);
                    for (i, neighbours) in all.iter().enumerate() {
                        assert_eq!(positions.at(i), *neighbours, "{positions:?} {i}");
                        assert!(neighbours.above < old && neighbours.above - neighbours.below < 2);
                        assert!((0.0..1.0).contains(&neighbours.weight));
                    }
                }
            }
        }
    }
}
