//! What this machine can do at most, measured beside what is compared with it: reading memory, 8-bit dot products, f32 products.
//!
//! Figures move with clocks and neighbours, so they are worth something only next to figures of the same minute.

use std::{
    hint::black_box,
    sync::Barrier,
    time::{Duration, Instant},
};

/// Size of what [`Memory`] reads: several times the largest cache of usual machines.
const READ_BYTES: usize = 256 << 20;

/// Memory that is read to find out how fast memory is.
pub struct Memory(Vec<u64>);

impl Memory {
    /// Takes the memory and touches all of it.
    #[must_use]
    pub fn new() -> Self {
        Self::of(READ_BYTES)
    }

    /// Less of it: what fits into a cache says how fast that is.
    #[must_use]
    pub fn of(size_bytes: usize) -> Self {
        // Zeros would be one page of the system's, mapped again and again.
        Self((0..(size_bytes / 8) as u64).collect())
    }

    /// Gigabytes read per second by so many threads, each from one end of its part to the other.
    #[must_use]
    pub fn gb_per_s(&self, threads: usize) -> f64 {
        let part = self.0.len() / threads.max(1);
        let repetitions = (READ_BYTES / 8 / self.0.len().max(1)).max(1);
        let seconds = together(threads, |thread| {
            let mut sums = [0_u64; 16];
            for _ in 0..repetitions {
                for line in black_box(&self.0)[thread * part..][..part].chunks_exact(16) {
                    for (sum, value) in sums.iter_mut().zip(line) {
                        *sum = sum.wrapping_add(*value);
                    }
                }
            }
            black_box(sums);
        });
        (part * threads.max(1) * 8 * repetitions) as f64 / seconds.as_secs_f64() / 1e9
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

/// How long it takes until all threads have done their part, from when all have started.
fn together(threads: usize, work: impl Fn(usize) + Sync) -> Duration {
    let (threads, work) = (threads.max(1), &work);
    let barrier = &Barrier::new(threads);
    std::thread::scope(|scope| {
        let one = |thread| {
            barrier.wait();
            let start = Instant::now();
            work(thread);
            start.elapsed()
        };
        let others: Vec<_> = (1..threads).map(|thread| scope.spawn(move || one(thread))).collect();
        let mine = one(0);
        others.into_iter().filter_map(|other| other.join().ok()).fold(mine, Duration::max)
    })
}

/// Rounds of a loop of arithmetic: some milliseconds.
const ROUNDS: u64 = 4_000_000;

/// Billions of operations per second, and the instructions they are done with.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// 10⁹ operations per second; a multiplication and an addition are two.
    pub gop_per_s: f64,
    /// The instructions.
    pub by: &'static str,
}

fn rate(threads: usize, (loops, operations, by): (fn(u64), u64, &'static str)) -> Rate {
    let seconds = together(threads, |_| loops(ROUNDS));
    let done = threads.max(1) as u64 * ROUNDS * operations;
    Rate { gop_per_s: done as f64 / seconds.as_secs_f64() / 1e9, by }
}

/// How many 8-bit products are summed up to 32-bit numbers per second.
#[must_use]
pub fn int8_products(threads: usize) -> Rate {
    rate(threads, level::int8())
}

/// How many f32 products are summed up per second.
#[must_use]
pub fn f32_products(threads: usize) -> Rate {
    rate(threads, level::f32())
}

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "instructions that a processor may lack are called behind a check")]
mod level {
    use std::{arch::x86_64::*, hint::black_box};

    /// Chains of dependent instructions that are in flight at once: more than latency times width of any core.
    const CHAINS: usize = 12;

    /// A loop, its operations per round, and its instructions.
    pub(super) fn int8() -> (fn(u64), u64, &'static str) {
        const OPERATIONS: u64 = CHAINS as u64 * 64;
        if is_x86_feature_detected!("avx512vnni") && is_x86_feature_detected!("avx512vl") {
            // SAFETY: the processor has the instructions.
            (|rounds| unsafe { int8_vnni(rounds) }, OPERATIONS, "vpdpbusd")
        } else if is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has the instructions.
            (|rounds| unsafe { int8_avx2(rounds) }, OPERATIONS, "vpmaddubsw, vpmaddwd, vpaddd")
        } else {
            super::portable::int8()
        }
    }

    /// As [`int8`].
    pub(super) fn f32() -> (fn(u64), u64, &'static str) {
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: the processor has the instructions.
            (|rounds| unsafe { f32_fma(rounds) }, CHAINS as u64 * 16, "vfmadd on 256 bits")
        } else {
            super::portable::f32()
        }
    }

    #[target_feature(enable = "avx512vnni,avx512vl,avx2")]
    fn int8_vnni(rounds: u64) {
        let factors = black_box(_mm256_set1_epi8(1));
        let mut sums = [_mm256_setzero_si256(); CHAINS];
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = _mm256_dpbusd_epi32(*sum, factors, factors);
            }
        }
        black_box(sums);
    }

    #[target_feature(enable = "avx2")]
    fn int8_avx2(rounds: u64) {
        let (factors, ones) = (black_box(_mm256_set1_epi8(1)), _mm256_set1_epi16(1));
        let mut sums = [_mm256_setzero_si256(); CHAINS];
        for _ in 0..rounds {
            for sum in &mut sums {
                // The sum is a factor, too, so that no product can be moved out of the loop.
                let pairs = _mm256_maddubs_epi16(*sum, factors);
                *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(pairs, ones));
            }
        }
        black_box(sums);
    }

    #[target_feature(enable = "avx2,fma")]
    fn f32_fma(rounds: u64) {
        let (factor, addend) = (black_box(_mm256_set1_ps(0.5)), black_box(_mm256_set1_ps(1.0)));
        let mut sums = [_mm256_setzero_ps(); CHAINS];
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = _mm256_fmadd_ps(*sum, factor, addend);
            }
        }
        black_box(sums);
    }
}

#[cfg(not(target_arch = "x86_64"))]
use portable as level;

/// What the compiler makes of plain loops, where nothing better is known.
mod portable {
    use std::hint::black_box;

    const LANES: usize = 128;

    /// A loop, its operations per round, and its instructions.
    pub(super) fn int8() -> (fn(u64), u64, &'static str) {
        let loops = |rounds| {
            let factors = black_box([3_i8; LANES]);
            let mut sums = [0_i32; LANES / 4];
            for _ in 0..rounds {
                let values = black_box(&factors);
                for (sum, four) in sums.iter_mut().zip(values.chunks_exact(4)) {
                    *sum = four.iter().fold(*sum, |sum, v| sum.wrapping_add(i32::from(*v) * i32::from(*v)));
                }
            }
            black_box(sums);
        };
        (loops, 2 * LANES as u64, "portable code")
    }

    /// As [`int8`].
    pub(super) fn f32() -> (fn(u64), u64, &'static str) {
        let loops = |rounds| {
            let mut sums = [0_f32; LANES];
            let factor = black_box(0.5);
            for _ in 0..rounds {
                for sum in &mut sums {
                    *sum = *sum * factor + 1.0;
                }
            }
            black_box(sums);
        };
        (loops, 2 * LANES as u64, "portable code")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_found_on_any_number_of_threads() {
        let memory = Memory::new();
        for threads in [0, 1, 3] {
            for found in [memory.gb_per_s(threads), int8_products(threads).gop_per_s, f32_products(threads).gop_per_s] {
                assert!(found.is_finite() && found > 0.0);
            }
        }
        for (loops, operations, _) in [portable::int8(), portable::f32()] {
            loops(3);
            assert!(operations > 0);
        }
    }
}
