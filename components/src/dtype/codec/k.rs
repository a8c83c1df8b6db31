//! Blocks of 256 with two levels of scales ("K types"): each 16 or 32 elements have a small integer scale (and minimum),
//! and one f16 (or two) says what those are worth.
//!
//! Bit planes are kept in runs of 32 bytes: byte `l` of a run holds bits of elements `l`, `32 + l`, `64 + l` and so on.

use super::{
    BlockCodec, PART, Part, is_finite,
    k_fit::{Affine, Signed},
    read_f16,
};

/// Parts of a block.
const PARTS: usize = 8;

/// Elements of a block.
const BLOCK: usize = PARTS * PART;

/// Two bits of each element of a part: four parts share a run of 32 bytes.
fn twos(packed: &[u8], index: usize) -> [u8; PART] {
    let run = &packed[index / 4 * PART..][..PART];
    std::array::from_fn(|l| run[l] >> (index % 4 * 2) & 3)
}

/// The inverse of [`twos`]; ignores higher bits.
fn pack_twos(quants: &[u8; BLOCK], packed: &mut [u8]) {
    for (at, byte) in packed[..BLOCK / 4].iter_mut().enumerate() {
        let first = at / PART * 128 + at % PART;
        *byte = (0..4).fold(0, |byte, i| byte | (quants[first + i * PART] & 3) << (2 * i));
    }
}

/// One bit of each element of a part: all parts share one run.
fn ones(packed: &[u8], index: usize) -> [u8; PART] {
    std::array::from_fn(|l| packed[l] >> index & 1)
}

/// Bit `bit` of every quant, as [`ones`] reads them.
fn pack_ones(quants: &[u8; BLOCK], bit: u32, packed: &mut [u8]) {
    for (l, byte) in packed[..PART].iter_mut().enumerate() {
        *byte = (0..PARTS).fold(0, |byte, i| byte | (quants[i * PART + l] >> bit & 1) << i);
    }
}

/// Four bits of each element of a part: two parts share a run.
fn fours(packed: &[u8], index: usize) -> [u8; PART] {
    let run = &packed[index / 2 * PART..][..PART];
    std::array::from_fn(|l| run[l] >> (index % 2 * 4) & 15)
}

/// The inverse of [`fours`]; ignores higher bits.
fn pack_fours(quants: &[u8; BLOCK], packed: &mut [u8]) {
    for (at, byte) in packed[..BLOCK / 2].iter_mut().enumerate() {
        let first = at / PART * 64 + at % PART;
        *byte = quants[first] & 15 | quants[first + PART] << 4;
    }
}

/// The 6-bit scale and minimum of a part of `q4_K` or `q5_K`, in 12 bytes: the first four of each whole in the low bits of
/// bytes 0–3 and 4–7, the other four as nibbles in bytes 8–11, their upper two bits above the first ones.
fn scale_and_minimum(packed: &[u8], part: usize) -> (u8, u8) {
    if part < 4 {
        return (packed[part] & 63, packed[part + 4] & 63);
    }
    let (both, above_scale, above_minimum) = (packed[part + 4], packed[part - 4], packed[part]);
    (both & 15 | above_scale >> 6 << 4, both >> 4 | above_minimum >> 6 << 4)
}

fn pack_scales_and_minima(scales: &[u8; PARTS], minima: &[u8; PARTS], packed: &mut [u8]) {
    for j in 0..4 {
        packed[j] = scales[j] | scales[j + 4] >> 4 << 6;
        packed[j + 4] = minima[j] | minima[j + 4] >> 4 << 6;
        packed[j + 8] = scales[j + 4] & 15 | minima[j + 4] << 4;
    }
}

/// A 6-bit scale of `q3_K`, from −32 to 31, in 12 bytes: nibbles of all sixteen, then their upper two bits.
fn scale_q3_k(packed: &[u8], half: usize) -> i8 {
    let low = packed[half % 8] >> (half / 8 * 4) & 15;
    let high = packed[8 + half % 4] >> (half / 4 * 2) & 3;
    (low | high << 4).cast_signed() - 32
}

fn pack_scales_q3_k(scales: &[i8; 16], packed: &mut [u8]) {
    let scales = scales.map(|s| (s + 32).cast_unsigned());
    for j in 0..8 {
        packed[j] = scales[j] & 15 | scales[j + 8] << 4;
    }
    for j in 0..4 {
        packed[8 + j] = (0..4).fold(0, |byte, i| byte | scales[j + 4 * i] >> 4 << (2 * i));
    }
}

/// The codec of `q2_K`: 16 bytes of scales (low nibbles) and minima (high), 64 bytes of quants, `d`, `dmin`.
pub struct Q2K;

impl BlockCodec for Q2K {
    const ELEMENTS: usize = BLOCK;
    const BYTES: usize = 84;
    const OFFSETS: bool = true;

    fn part(block: &[u8], index: usize) -> Part {
        let (d, dmin) = (read_f16(block, 80), read_f16(block, 82));
        let both = [block[2 * index], block[2 * index + 1]];
        Part {
            quants: twos(&block[16..80], index).map(u8::cast_signed),
            scales: both.map(|b| d * f32::from(b & 15)),
            offsets: both.map(|b| -(dmin * f32::from(b >> 4))),
        }
    }

    fn encode(x: &[f32], block: &mut [u8]) {
        if is_finite(x, block, 80) {
            let Affine { scales, minima, quants } = Affine::<16>::fit::<16>(x, 3, 15, &mut block[80..84]);
            for (byte, (s, m)) in block.iter_mut().zip(scales.iter().zip(&minima)) {
                *byte = s | m << 4;
            }
            pack_twos(&quants, &mut block[16..]);
        }
    }
}

/// The codec of `q3_K`: 32 bytes of third bits, 64 of the other two, 12 of scales, `d`.
pub struct Q3K;

impl BlockCodec for Q3K {
    const ELEMENTS: usize = BLOCK;
    const BYTES: usize = 110;
    const OFFSETS: bool = false;

    fn part(block: &[u8], index: usize) -> Part {
        let (d, scale) = (read_f16(block, 108), |half| f32::from(scale_q3_k(&block[96..108], half)));
        let (high, low) = (ones(&block[..32], index), twos(&block[32..96], index));
        Part {
            quants: std::array::from_fn(|l| (low[l] | high[l] << 2).cast_signed() - 4),
            scales: [d * scale(2 * index), d * scale(2 * index + 1)],
            offsets: [0.0; 2],
        }
    }

    fn encode(x: &[f32], block: &mut [u8]) {
        if is_finite(x, block, 108) {
            let Signed { scales, quants } = Signed::fit(x, 4, 32, &mut block[108..110]);
            pack_ones(&quants, 2, block);
            pack_twos(&quants, &mut block[32..]);
            pack_scales_q3_k(&scales, &mut block[96..]);
        }
    }
}

/// The codec of `q4_K`: `d`, `dmin`, 12 bytes of scales and minima, 128 of quants.
pub struct Q4K;

/// Scale and offset of a part of `q4_K` or `q5_K`.
fn scale_and_offset(block: &[u8], index: usize) -> ([f32; 2], [f32; 2]) {
    let (d, dmin) = (read_f16(block, 0), read_f16(block, 2));
    let (scale, minimum) = scale_and_minimum(&block[4..16], index);
    ([d * f32::from(scale); 2], [-(dmin * f32::from(minimum)); 2])
}

impl BlockCodec for Q4K {
    const ELEMENTS: usize = BLOCK;
    const BYTES: usize = 144;
    const OFFSETS: bool = true;

    fn part(block: &[u8], index: usize) -> Part {
        let (scales, offsets) = scale_and_offset(block, index);
        Part { quants: fours(&block[16..144], index).map(u8::cast_signed), scales, offsets }
    }

    fn encode(x: &[f32], block: &mut [u8]) {
        if is_finite(x, block, 0) {
            let Affine { scales, minima, quants } = Affine::<8>::fit::<32>(x, 15, 63, &mut block[..4]);
            pack_scales_and_minima(&scales, &minima, &mut block[4..]);
            pack_fours(&quants, &mut block[16..]);
        }
    }
}

/// The codec of `q5_K`: as `q4_K`, with 32 bytes of fifth bits before the quants.
pub struct Q5K;

impl BlockCodec for Q5K {
    const ELEMENTS: usize = BLOCK;
    const BYTES: usize = 176;
    const OFFSETS: bool = true;

    fn part(block: &[u8], index: usize) -> Part {
        let (scales, offsets) = scale_and_offset(block, index);
        let (high, low) = (ones(&block[16..48], index), fours(&block[48..176], index));
        Part { quants: std::array::from_fn(|l| (low[l] | high[l] << 4).cast_signed()), scales, offsets }
    }

    fn encode(x: &[f32], block: &mut [u8]) {
        if is_finite(x, block, 0) {
            let Affine { scales, minima, quants } = Affine::<8>::fit::<32>(x, 31, 63, &mut block[..4]);
            pack_scales_and_minima(&scales, &minima, &mut block[4..]);
            pack_ones(&quants, 4, &mut block[16..]);
            pack_fours(&quants, &mut block[48..]);
        }
    }
}

/// The codec of `q6_K`: 128 bytes of lower four bits, 64 of upper two, 16 signed scales, `d`. Parts 0 and 2 (and 4 and 6)
/// share a run of the lower bits, 1 and 3 (5 and 7) the next.
pub struct Q6K;

/// Where the lower bits of a part of `q6_K` lie: the start of its run, and how far they are shifted.
const fn q6_k_run(index: usize) -> (usize, usize) {
    (index / 4 * 64 + index % 2 * 32, index % 4 / 2 * 4)
}

impl BlockCodec for Q6K {
    const ELEMENTS: usize = BLOCK;
    const BYTES: usize = 210;
    const OFFSETS: bool = false;

    fn part(block: &[u8], index: usize) -> Part {
        let d = read_f16(block, 208);
        let (start, shift) = q6_k_run(index);
        let (low, high) = (&block[start..start + PART], twos(&block[128..192], index));
        Part {
            quants: std::array::from_fn(|l| (low[l] >> shift & 15 | high[l] << 4).cast_signed() - 32),
            scales: [0, 1].map(|half| d * f32::from(block[192 + 2 * index + half].cast_signed())),
            offsets: [0.0; 2],
        }
    }

    fn encode(x: &[f32], block: &mut [u8]) {
        if is_finite(x, block, 208) {
            let Signed { scales, quants } = Signed::fit(x, 32, 128, &mut block[208..210]);
            block[..128].fill(0);
            for (i, q) in quants.iter().enumerate() {
                let (start, shift) = q6_k_run(i / PART);
                block[start + i % PART] |= (q & 15) << shift;
            }
            pack_twos(&quants.map(|q| q >> 4), &mut block[128..]);
            for (byte, s) in block[192..208].iter_mut().zip(scales) {
                *byte = s.cast_unsigned();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_scales_survive_packing() {
        let scales: [u8; 8] = [1, 62, 33, 12, 63, 0, 47, 21];
        let minima: [u8; 8] = [63, 3, 32, 16, 15, 48, 0, 60];
        let mut packed = [0xff; 12];
        pack_scales_and_minima(&scales, &minima, &mut packed);
        let unpacked: [(u8, u8); 8] = std::array::from_fn(|part| scale_and_minimum(&packed, part));
        assert_eq!(unpacked, std::array::from_fn(|part| (scales[part], minima[part])));
        let signed: [i8; 16] = std::array::from_fn(|j| (j * 13 % 64) as i8 - 32);
        let mut packed = [0xff; 12];
        pack_scales_q3_k(&signed, &mut packed);
        assert_eq!(std::array::from_fn::<i8, 16, _>(|half| scale_q3_k(&packed, half)), signed);
    }
}
