//! Copies, repetition, and what else moves elements or makes them from nothing.

use entensor_components::{DType, MAX_DIMS, Shape, UpscaleMode};

use super::repeated;
use crate::access::{Evaluated, Operand, index, rows};

pub(super) fn copy(x: &Operand<'_>, dtype: DType) -> Evaluated {
    if x.desc.dtype == dtype {
        Evaluated::Units(rows(x.desc.shape).flat_map(|at| x.row_units(at)).collect())
    } else {
        Evaluated::Values(x.values())
    }
}

pub(super) fn repeat(x: &Operand<'_>, shape: Shape) -> Evaluated {
    let mut out = Vec::new();
    if !shape.is_empty() {
        let times = index(shape.0[0] / x.desc.shape.0[0].max(1));
        for at in rows(shape) {
            out.extend(x.row_units(repeated(at, x.desc.shape)).repeat(times));
        }
    }
    Evaluated::Units(out)
}

pub(super) fn concat(operands: &[Operand<'_>], dim: usize, shape: Shape) -> Evaluated {
    let (a, b) = (&operands[0], &operands[1]);
    let mut out = Vec::new();
    for at in rows(shape) {
        if dim == 0 {
            out.extend(a.row_units(at));
            out.extend(b.row_units(at));
            continue;
        }
        let (along, first) = (at[dim - 1], a.desc.shape.0[dim]);
        if along < first {
            out.extend(a.row_units(at));
        } else {
            let mut of_b = at;
            of_b[dim - 1] = along - first;
            out.extend(b.row_units(of_b));
        }
    }
    Evaluated::Units(out)
}

pub(super) fn pad(x: &Operand<'_>, left: [u32; MAX_DIMS], shape: Shape) -> Evaluated {
    let unit = index(x.desc.dtype.block_bytes());
    let row_bytes = index(shape.0[0]) * unit;
    let before = left[0] as usize * unit;
    let mut out = Vec::new();
    for at in rows(shape) {
        let mut row = vec![0; row_bytes];
        // Where the row was before it was moved; outside, wrapping makes it larger than any axis.
        let of_x: [u64; 3] = std::array::from_fn(|axis| at[axis].wrapping_sub(u64::from(left[axis + 1])));
        if (0..3).all(|axis| of_x[axis] < x.desc.shape.0[axis + 1]) {
            let units = x.row_units(of_x);
            row[before..before + units.len()].copy_from_slice(&units);
        }
        out.extend(row);
    }
    Evaluated::Units(out)
}

pub(super) fn roll(x: &Operand<'_>, shifts: [i32; MAX_DIMS]) -> Evaluated {
    let shape = x.desc.shape.0;
    // How far back along an axis what arrives at its start comes from.
    let back = |axis: usize| {
        let length = shape[axis].max(1);
        u64::try_from((-i128::from(shifts[axis])).rem_euclid(i128::from(length))).unwrap_or(0)
    };
    let unit = index(x.desc.dtype.block_bytes());
    let mut out = Vec::new();
    for at in rows(x.desc.shape) {
        let from = std::array::from_fn(|axis| (at[axis] + back(axis + 1)) % shape[axis + 1].max(1));
        let mut row = x.row_units(from);
        row.rotate_left(index(back(0)) * unit);
        out.extend(row);
    }
    Evaluated::Units(out)
}

/// Where along an axis of `old` elements the i-th of `new` lies, as a fraction: exact, so that every backend can agree.
fn position(i: u64, old: u64, new: u64, align_corners: bool, centres: bool) -> (i128, i128) {
    let (i, old, new) = (i128::from(i), i128::from(old), i128::from(new));
    if align_corners && old > 1 && new > 1 {
        (i * (old - 1), new - 1)
    } else if centres {
        ((2 * i + 1) * old - new, 2 * new)
    } else {
        (i * old, new)
    }
}

/// The elements below and above a position, and the weight of the one above.
fn neighbours(i: u64, old: u64, new: u64, align_corners: bool) -> (u64, u64, f64) {
    let (above, below) = position(i, old, new, align_corners, true);
    let last = i128::from(old - 1);
    let kept = above.clamp(0, last * below);
    let first = kept / below;
    let small = |v: i128| u64::try_from(v).unwrap_or(0);
    (small(first), small((first + 1).min(last)), (kept % below) as f64 / below as f64)
}

pub(super) fn upscale(x: &Operand<'_>, ne: Shape, mode: UpscaleMode, align_corners: bool) -> Evaluated {
    let (old, new) = (x.desc.shape.0, ne.0);
    let nearest = |i: u64, axis: usize, align_corners: bool| {
        let (above, below) = position(i, old[axis], new[axis], align_corners, false);
        u64::try_from(above / below).unwrap_or(0)
    };
    let mut out = Vec::new();
    for [i1, i2, i3] in rows(ne).filter(|_| !ne.is_empty()) {
        let (i2, i3) = (nearest(i2, 2, false), nearest(i3, 3, false));
        if mode == UpscaleMode::Nearest {
            let row = x.row([nearest(i1, 1, align_corners), i2, i3]);
            out.extend((0..new[0]).map(|i0| row[index(nearest(i0, 0, align_corners))]));
            continue;
        }
        let (first, second, down) = neighbours(i1, old[1], new[1], align_corners);
        let (first, second) = (x.row([first, i2, i3]), x.row([second, i2, i3]));
        out.extend((0..new[0]).map(|i0| {
            let (left, right, across) = neighbours(i0, old[0], new[0], align_corners);
            let mean = |row: &[f64]| row[index(left)] * (1.0 - across) + row[index(right)] * across;
            mean(&first) * (1.0 - down) + mean(&second) * down
        }));
    }
    Evaluated::Values(out)
}

pub(super) fn arange(start: f64, step: f64, shape: Shape) -> Evaluated {
    Evaluated::Values((0..shape.0[0]).map(|i| start + i as f64 * step).collect())
}

pub(super) fn timestep_embedding(timesteps: &Operand<'_>, dim: u32, max_period: u32) -> Evaluated {
    let half = dim / 2;
    let mut out = Vec::new();
    for t in timesteps.values() {
        let angle = |j: u32| t * libm::pow(f64::from(max_period), -f64::from(j) / f64::from(half));
        out.extend((0..half).map(|j| libm::cos(angle(j))));
        out.extend((0..half).map(|j| libm::sin(angle(j))));
        out.extend((2 * half..dim).map(|_| 0.0));
    }
    Evaluated::Values(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_those_of_the_pictures() {
        // Four cells over two: centres at -1/4, 1/4, 3/4, 5/4, kept between 0 and 1.
        let centres: Vec<_> = (0..4).map(|i| neighbours(i, 2, 4, false)).collect();
        assert_eq!(centres, [(0, 1, 0.0), (0, 1, 0.25), (0, 1, 0.75), (1, 1, 0.0)]);
        // Four corners over two: thirds.
        let corners: Vec<_> = (0..4).map(|i| neighbours(i, 2, 4, true)).collect();
        assert_eq!(corners, [(0, 1, 0.0), (0, 1, 1.0 / 3.0), (0, 1, 2.0 / 3.0), (1, 1, 0.0)]);
        // One to one is the element itself, whatever the corners.
        for align_corners in [false, true] {
            assert!((0..7).all(|i| neighbours(i, 7, 7, align_corners).0 == i));
            assert!((0..7).all(|i| neighbours(i, 7, 7, align_corners).2 == 0.0));
            assert_eq!(neighbours(0, 1, 3, align_corners), (0, 0, 0.0));
            assert_eq!(neighbours(0, 5, 1, align_corners), (2, 3, 0.0));
        }
    }
}
