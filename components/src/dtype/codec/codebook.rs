//! Blocks of 32 whose quants are looked up: `iq4_nl` and `mxfp4`.

use super::{BlockCodec, PART, Part, extreme, inverse, is_finite, nearest, nibbles, read_f16, write_f16};

/// The values that a nibble of `iq4_nl` stands for: closer together near zero, where weights are frequent.
pub const CODEBOOK_IQ4_NL: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// The values that a nibble of `mxfp4` stands for, doubled: OCP's e2m1, in which bit 3 is the sign.
pub const CODEBOOK_MXFP4: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Looks up the nibbles of 32 elements.
fn look_up(packed: &[u8], codebook: &[i8; 16]) -> [i8; PART] {
    nibbles(packed).map(|nibble| codebook[usize::from(nibble)])
}

fn pack(indices: impl Fn(usize) -> u8, packed: &mut [u8]) {
    for (i, byte) in packed[..16].iter_mut().enumerate() {
        *byte = indices(i) | indices(i + 16) << 4;
    }
}

/// The codec of `iq4_nl`.
pub struct Iq4Nl;

/// The entry nearest to `v`: as many as there are midpoints below it.
fn nearest_iq4_nl(v: f32) -> u8 {
    CODEBOOK_IQ4_NL.windows(2).map(|w| u8::from(v > 0.5 * f32::from(i16::from(w[0]) + i16::from(w[1])))).sum()
}

/// The entry nearest to each integer from −128 to 127: near enough for a search, and one look instead of fifteen.
const NEAREST_IQ4_NL: [i8; 256] = {
    let mut nearest = [0; 256];
    let (mut v, mut entry) = (-128_i16, 0);
    while v < 128 {
        while entry < 15 && 2 * v > CODEBOOK_IQ4_NL[entry] as i16 + CODEBOOK_IQ4_NL[entry + 1] as i16 {
            entry += 1;
        }
        nearest[(v + 128) as usize] = CODEBOOK_IQ4_NL[entry];
        v += 1;
    }
    nearest
};

/// The scale with which the codebook comes closest to `x`. Candidates lie around those that turn the largest magnitude into
/// either end of the codebook; each is improved by least squares. Larger elements weigh more, since products see them.
fn fit_iq4_nl(x: &[f32]) -> f32 {
    let extreme = extreme(x);
    // No f16 is that small.
    if extreme.abs() < f32::MIN_POSITIVE {
        return 0.0;
    }
    let unit: [f32; PART] = std::array::from_fn(|i| x[i] / extreme);
    let (mut best_gain, mut best) = (0.0, 0.0);
    for end in [-127.0_f32, 113.0] {
        for step in -7_i8..=7 {
            let inverse = end * (1.0 + 0.02 * f32::from(step));
            let (mut with_x, mut with_self) = (0.0, 0.0);
            for v in unit {
                let at = nearest((v * inverse).clamp(-128.0, 127.0)) + 128.0;
                let q = f32::from(NEAREST_IQ4_NL[usize::from(at as u8)]);
                let weight = v * v;
                with_x += weight * q * v;
                with_self += weight * q * q;
            }
            // The squares that the best multiple of the quants takes off.
            let gain = with_x * with_x / with_self;
            if gain > best_gain {
                (best_gain, best) = (gain, with_x / with_self);
            }
        }
    }
    best * extreme
}

impl BlockCodec for Iq4Nl {
    const ELEMENTS: usize = 32;
    const BYTES: usize = 18;
    const OFFSETS: bool = false;

    fn part(block: &[u8], _index: usize) -> Part {
        let quants = look_up(&block[2..18], &CODEBOOK_IQ4_NL);
        Part { quants, scales: [read_f16(block, 0); 2], offsets: [0.0; 2] }
    }

    fn encode(x: &[f32], block: &mut [u8]) {
        if is_finite(x, block, 0) {
            let inverse = inverse(write_f16(block, 0, fit_iq4_nl(x)));
            pack(|i| nearest_iq4_nl(x[i] * inverse), &mut block[2..]);
        }
    }
}

/// The codec of `mxfp4`.
pub struct Mxfp4;

/// Half the power of two that an exponent byte (OCP's e8m0) stands for: `2^(e − 128)`. Half, because the codebook is
/// doubled. The two smallest are subnormal.
#[must_use]
pub fn power_of_two_half(e: u8) -> f32 {
    f32::from_bits(if e < 2 { 0x0020_0000 << e } else { (u32::from(e) - 1) << 23 })
}

impl BlockCodec for Mxfp4 {
    const ELEMENTS: usize = 32;
    const BYTES: usize = 17;
    const OFFSETS: bool = false;

    fn part(block: &[u8], _index: usize) -> Part {
        let quants = look_up(&block[1..17], &CODEBOOK_MXFP4);
        Part { quants, scales: [power_of_two_half(block[0]); 2], offsets: [0.0; 2] }
    }

    /// The exponent is that of the largest magnitude, two less since the largest entry is 6 (OCP Microscaling v1.0,
    /// 6.3): up to a quarter of a largest magnitude may be cut off.
    fn encode(x: &[f32], block: &mut [u8]) {
        if !x.iter().all(|v| v.is_finite()) {
            // The largest entry times the largest scale: infinity.
            block[..17].fill(0x77);
            block[0] = u8::MAX;
            return;
        }
        let exponent = extreme(x).to_bits() >> 23 & 0xff;
        block[0] = exponent.saturating_sub(2) as u8;
        let d = power_of_two_half(block[0]);
        let index = |i: usize| {
            let (mut best, mut error) = (0, x[i].abs());
            for (entry, &value) in CODEBOOK_MXFP4[..8].iter().enumerate() {
                let e = (d * f32::from(value) - x[i].abs()).abs();
                if e < error {
                    (best, error) = (entry as u8, e);
                }
            }
            // Zero has one sign.
            if best != 0 && x[i] < 0.0 { best | 8 } else { best }
        };
        pack(index, &mut block[1..]);
    }
}
