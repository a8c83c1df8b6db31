//! What attention layers need beside products.

use entensor_components::{BackendError, DType, Op, RopeMode};
use smallvec::SmallVec;

use super::{
    AnglesKey, Builder, Work,
    nodes::{cost, whole_rows},
};
use crate::{
    kernels::{Cut, FlashAttn, FlashMerge, Grid, Kernel, Rope, RopeTable, partial_width},
    place::Place,
};

impl Builder {
    pub(super) fn rope(&mut self, op: &Op, operands: &[Place], out: Place) -> Result<(), BackendError> {
        let Op::Rope { mode, n_dims, .. } = op else { unreachable!("called for `rope`") };
        if out.is_empty() {
            return Ok(());
        }
        let (x, positions, factors) = (operands[0], operands[1], operands.get(2).copied());
        let rotated = if *n_dims == 0 || *mode == RopeMode::Vision { x.shape[0] } else { *n_dims as usize };
        let pairs = rotated / 2;
        let table = self.work(Work::Angles, DType::F32, [2 * pairs, x.shape[2], 1, 1])?;
        let (frequencies, kinds, magnitude) = angles(op, pairs);
        let key = AnglesKey { positions, factors, frequencies, kinds, magnitude };
        if self.angles.as_ref() != Some(&key) {
            let grid = Grid::rows(x.shape[2], 2 * pairs, pairs.saturating_mul(cost::SIN_COS));
            let (frequencies, kinds) = (key.frequencies.clone(), key.kinds.clone());
            let kernel = RopeTable { positions, factors, frequencies, kinds, magnitude, table, grid };
            self.push(
                Kernel::RopeTable(kernel),
                grid.chunks(),
                &operands[1..],
                Some(&table),
                (pairs * x.shape[2]).saturating_mul(cost::SIN_COS),
            );
            self.angles = Some(key);
        }
        let grid = whole_rows(&out, out.shape[0], cost::CONVERT);
        let kernel = Kernel::Rope(Rope { mode: *mode, x, table, out, grid });
        self.push(kernel, grid.chunks(), &[x, table], Some(&out), out.elements().saturating_mul(cost::CONVERT));
        Ok(())
    }

    pub(super) fn flash_attn_ext(&mut self, op: &Op, operands: &[Place], out: Place) -> Result<(), BackendError> {
        let &Op::FlashAttnExt { scale, max_bias, logit_softcap: softcap } = op else {
            unreachable!("called for `flash_attn_ext`")
        };
        if out.is_empty() {
            return Ok(());
        }
        let (q, k, v) = (operands[0], operands[1], operands[2]);
        let (mask, sinks) = (operands.get(3).copied(), operands.get(4).copied());
        let cut = Cut::new(&q, &k);
        let partials = match cut.parts {
            1 => None,
            parts => Some(self.work(Work::Partials, DType::F32, [partial_width(v.shape[0]), out.rows(), parts, 1])?),
        };
        // A few multiply-adds cost as much as moving a byte.
        let cost = out.rows().saturating_mul(k.shape[1].saturating_mul(k.shape[0] + v.shape[0]) / 2);
        let kernel = FlashAttn { q, k, v, mask, sinks, out, partials, scale, max_bias, softcap, cut };
        self.push(Kernel::FlashAttn(Box::new(kernel)), cut.chunks(), operands, Some(&partials.unwrap_or(out)), cost);
        if let Some(partials) = partials {
            let grid = Grid::rows(out.rows(), out.shape[0], (partials.shape[0] * cut.parts).saturating_mul(cost::MOVE));
            let kernel = FlashMerge { partials, sinks, out, grid };
            let reads: SmallVec<[Place; 2]> = [partials].into_iter().chain(sinks).collect();
            let cost = partials.elements().saturating_mul(cost::MOVE);
            self.push(Kernel::FlashMerge(kernel), grid.chunks(), &reads, Some(&out), cost);
        }
        Ok(())
    }
}

/// What each pair's position is multiplied by, which position that is, and what rotated elements are multiplied by.
fn angles(op: &Op, pairs: usize) -> (Box<[f64]>, Option<Box<[u8]>>, f64) {
    let Op::Rope { mode, base, freq_scale, ext_factor, attn_factor, sections, .. } = op else {
        unreachable!("called for `rope`")
    };
    let (base, freq_scale, ext_factor) = (f64::from(*base), f64::from(*freq_scale), f64::from(*ext_factor));
    // What frequencies are spread over: the rotated elements, and in vision half of them.
    let spread = if *mode == RopeMode::Vision { pairs } else { 2 * pairs };
    let sectors: Vec<Sector> = if mode.has_sections() {
        let cycle = sectors(*mode, sections.map(|count| count as usize), pairs);
        (0..pairs).map(|pair| cycle[pair % cycle.len()]).collect()
    } else {
        Vec::new()
    };
    let yarn = (ext_factor != 0.0).then(|| ramp(op, base, spread));
    let frequency = |pair: usize| {
        let since = sectors.get(pair).and_then(|sector| sector.since).unwrap_or(pair);
        let power = libm::pow(base, -2.0 * since as f64 / spread as f64);
        match yarn {
            None => freq_scale * power,
            Some([low, high]) => {
                let scaled = ((pair as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
                let kept = (1.0 - scaled) * ext_factor;
                (freq_scale * (1.0 - kept) + kept) * power
            }
        }
    };
    let mut magnitude = f64::from(*attn_factor);
    if yarn.is_some() {
        magnitude *= 1.0 + 0.1 * libm::log(1.0 / freq_scale);
    }
    let kinds = mode.has_sections().then(|| sectors.iter().map(|sector| sector.kind).collect());
    ((0..pairs).map(frequency).collect(), kinds, magnitude)
}

/// YaRN: between which pairs frequencies go over from trained to scaled.
fn ramp(op: &Op, base: f64, spread: usize) -> [f64; 2] {
    let Op::Rope { n_ctx_orig, beta_fast, beta_slow, .. } = op else { unreachable!("called for `rope`") };
    // The pair that turns `times` times over the trained context.
    let turning = |times: f32| {
        let wavelength = f64::from(*n_ctx_orig) / (std::f64::consts::TAU * f64::from(times));
        spread as f64 * libm::log(wavelength) / (2.0 * libm::log(base))
    };
    [turning(*beta_fast).floor().max(0.0), turning(*beta_slow).ceil().min(spread as f64 - 1.0)]
}

/// What the pairs of a sector turn by.
#[derive(Clone, Copy)]
struct Sector {
    /// Time, height, width or extra.
    kind: u8,
    /// Where frequencies begin anew: how many sectors ago they did.
    since: Option<usize>,
}

/// The first `pairs` sectors of one round, or fewer.
fn sectors(mode: RopeMode, sections: [usize; 4], pairs: usize) -> Vec<Sector> {
    let ordered = sections.iter().zip(0_u8..).flat_map(|(&count, kind)| {
        let since = move |index: usize| (mode == RopeMode::Vision).then_some(index);
        (0..count).map(move |index| Sector { kind, since: since(index) })
    });
    if mode != RopeMode::Imrope {
        return ordered.take(pairs.max(1)).collect();
    }
    // Time, height and width take turns as long as each has pairs left; what is left over is extra.
    let turn = |sector: usize| if sector / 3 < sections[sector % 3] { (sector % 3) as u8 } else { 3 };
    let count: usize = sections.iter().sum();
    (0..count.min(pairs.max(1))).map(|sector| Sector { kind: turn(sector), since: None }).collect()
}
