//! Convolutions and pooling: windows that move over rows.

mod conv;
mod depthwise;
mod im2col;
mod pool;

use std::ops::Range;

pub(crate) use conv::{Conv, NARROW, PackKernel, WIDE};
pub(crate) use depthwise::Depthwise;
pub(crate) use im2col::{Im2col, LINES};
pub(crate) use pool::Pool;

/// Terms that are summed in f32 before the sum goes on in f64: what rounding may lose in so many stays below the
/// tolerance, whatever the signs.
const MOST_TERMS: usize = 128;

/// How one axis of a result, the taps of a window over it and the same axis of the input meet. The op's rule checked that
/// positions with padding fit in 64 bits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Axis {
    pub(crate) input: usize,
    pub(crate) output: usize,
    pub(crate) taps: usize,
    pub(crate) stride: u64,
    pub(crate) padding: u64,
    pub(crate) dilation: u64,
}

impl Axis {
    /// What lies under a tap; none if that is padding.
    #[inline(always)]
    fn input_at(&self, output: usize, tap: usize) -> Option<usize> {
        let position = (output as u64 * self.stride + tap as u64 * self.dilation).checked_sub(self.padding)?;
        (position < self.input as u64).then_some(position as usize)
    }

    /// Multiples of `step` from `shift` on that meet the input: from the first to just past the last.
    #[inline(always)]
    fn meeting(&self, shift: u64, step: u64, most: usize) -> Range<usize> {
        let first = self.padding.saturating_sub(shift).div_ceil(step);
        let end = (self.padding + self.input as u64).saturating_sub(shift).div_ceil(step);
        // Both are at most `most` behind these, so they fit.
        (first.min(most as u64) as usize)..(end.min(most as u64) as usize)
    }

    /// The outputs for which a tap meets the input.
    #[inline(always)]
    fn outputs_of(&self, tap: usize) -> Range<usize> {
        self.meeting(tap as u64 * self.dilation, self.stride, self.output)
    }

    /// The taps of an output that meet the input.
    #[inline(always)]
    fn taps_of(&self, output: usize) -> Range<usize> {
        self.meeting(output as u64 * self.stride, self.dilation, self.taps)
    }

    /// The taps that meet the input for some of the outputs, of which there is at least one.
    #[inline(always)]
    fn taps_of_any(&self, outputs: &Range<usize>) -> Range<usize> {
        self.taps_of(outputs.end - 1).start..self.taps_of(outputs.start).end
    }
}

#[inline(always)]
fn common(a: &Range<usize>, b: &Range<usize>) -> Range<usize> {
    a.start.max(b.start)..a.end.min(b.end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_what_positions_say() {
        for (input, taps, stride, padding, dilation) in
            [(9, 3, 1, 0, 1), (9, 3, 2, 1, 1), (5, 2, 3, 7, 2), (1, 4, 1, 6, 3), (0, 2, 1, 3, 1), (8, 8, 70, 2, 1)]
        {
            let room = input + 2 * padding - dilation * (taps - 1) - 1;
            let axis = Axis {
                input,
                output: room / stride + 1,
                taps,
                stride: stride as u64,
                padding: padding as u64,
                dilation: dilation as u64,
            };
            for tap in 0..taps {
                let meets = |&output: &usize| axis.input_at(output, tap).is_some();
                let met: Vec<usize> = (0..axis.output).filter(meets).collect();
                assert_eq!(axis.outputs_of(tap).collect::<Vec<_>>(), met, "{axis:?} tap {tap}");
            }
            for output in 0..axis.output {
                let meets = |&tap: &usize| axis.input_at(output, tap).is_some();
                let met: Vec<usize> = (0..taps).filter(meets).collect();
                assert_eq!(axis.taps_of(output).collect::<Vec<_>>(), met, "{axis:?} output {output}");
                let any = axis.taps_of_any(&(output..axis.output));
                assert!(met.iter().all(|tap| any.contains(tap)), "{axis:?}");
            }
        }
    }
}
