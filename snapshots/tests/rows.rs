//! Ops that look at whole rows, through the engine: on permuted operands, on masked rows, with slopes and sinks.

use std::sync::Arc;

use entensor::{Backend, BuildError, DType, Engine, GraphBuilder, SortOrder, Tensor};
use entensor_cpu::{CpuBackend, CpuConfig};
use entensor_oracle::OracleBackend;

const BACKENDS: [&str; 2] = ["oracle", "cpu"];

fn engine(backend: &str) -> Engine {
    let backend: Arc<dyn Backend> = match backend {
        "cpu" => Arc::new(CpuBackend::new(CpuConfig::default()).expect("the CPU is there")),
        name => Arc::new(OracleBackend::new(name)),
    };
    Engine::builder().backend_instance(backend).build().expect("the backend starts")
}

/// What a graph of one input computes.
fn run(
    backend: &str,
    dims: &[u64],
    x: &[f32],
    build: impl FnOnce(&mut GraphBuilder, Tensor) -> Result<Tensor, BuildError>,
) -> Vec<u8> {
    let mut g = GraphBuilder::new("rows");
    let input = g.input("x", DType::F32, dims).expect("a small input");
    let y = build(&mut g, input).expect("shapes fit");
    let y = g.cont(y).expect("a copy");
    let y = g.output("y", y).expect("a free name");
    let mut engine = engine(backend);
    let graph = engine.add_graph(g);
    engine.write(graph, input, x).expect("all values");
    engine.run(graph).expect("it runs");
    let mut bytes = vec![0; usize::try_from(y.desc.size_bytes()).expect("small")];
    engine.read(graph, y, &mut bytes).expect("the result");
    bytes
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

fn noise(len: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 7919 + 13) % 1009) as f32 / 250.0 - 2.0).collect()
}

type Build = fn(&mut GraphBuilder, Tensor) -> Result<Tensor, BuildError>;

/// Ops of one operand whose bits do not depend on its layout.
const OPS: &[(&str, Build)] = &[
    ("scale", |g, x| g.scale(x, 0.3)),
    ("relu", |g, x| g.relu(x)),
    ("silu", |g, x| g.silu(x)),
    ("norm", |g, x| g.norm(x, 1e-5)),
    ("rms_norm", |g, x| g.rms_norm(x, 1e-5)),
    ("l2_norm", |g, x| g.l2_norm(x, 1e-12)),
    ("soft_max", |g, x| g.soft_max(x, None, None, 0.5, 0.0)),
    ("diag_mask_inf", |g, x| g.diag_mask_inf(x, 1)),
    ("argmax", |g, x| g.argmax(x)),
    ("argsort", |g, x| g.argsort(x, SortOrder::Descending)),
    ("top_k", |g, x| g.top_k(x, 2)),
    ("sum_rows", |g, x| g.sum_rows(x)),
    ("mean", |g, x| g.mean(x)),
    ("cumsum", |g, x| g.cumsum(x)),
];

fn permutations() -> Vec<[u32; 4]> {
    let all = (0..256_u32).map(|i| [i & 3, i >> 2 & 3, i >> 4 & 3, i >> 6]);
    all.filter(|axes| (0..4).all(|axis| axes.contains(&axis))).collect()
}

/// REPORTS 58, the whole kind: an op on a permuted view computes what it computes on a packed copy of it.
#[test]
fn report_58_permuted_operands_compute_what_their_copies_do() {
    let dims = [6, 5, 4, 3];
    let x = noise(360);
    assert_eq!(permutations().len(), 24);
    for backend in BACKENDS {
        for axes in permutations() {
            for (name, op) in OPS {
                let view = run(backend, &dims, &x, |g, x| {
                    let x = g.permute(x, axes)?;
                    op(g, x)
                });
                let copy = run(backend, &dims, &x, |g, x| {
                    let x = g.permute(x, axes)?;
                    let x = g.cont(x)?;
                    op(g, x)
                });
                assert_eq!(view, copy, "{name} of {axes:?} on {backend}");
            }
        }
    }
}

/// REPORTS 58, the example: `permute`, then `scale`, with every element where it belongs.
#[test]
fn report_58_permute_then_scale() {
    let (dims, x) = ([6_usize, 5, 4, 3], noise(360));
    for backend in BACKENDS {
        for axes in permutations() {
            let found = floats(&run(backend, &dims.map(|d| d as u64), &x, |g, x| {
                let x = g.permute(x, axes)?;
                g.scale(x, 0.25)
            }));
            let mut permuted = [0; 4];
            (0..4).for_each(|i| permuted[axes[i] as usize] = dims[i]);
            for (linear, &value) in x.iter().enumerate() {
                let mut rest = linear;
                let mut at = [0; 4];
                for i in 0..4 {
                    at[axes[i] as usize] = rest % dims[i];
                    rest /= dims[i];
                }
                let to = at[0] + permuted[0] * (at[1] + permuted[1] * (at[2] + permuted[2] * at[3]));
                assert_eq!(found[to].to_bits(), (value * 0.25).to_bits(), "{axes:?} on {backend}");
            }
        }
    }
}

/// Which rows of a case are masked.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Masked {
    /// The scores themselves are minus infinity.
    Scores,
    /// The mask is.
    Mask(DType),
}

const WIDTH: usize = 37;
const ROWS: usize = 5;
const HEADS: usize = 3;

/// Softmax of `HEADS` planes in which some rows are masked.
fn masked_softmax(backend: &str, masked: Masked, rows: &[usize], sinks: bool, max_bias: f32) -> Vec<f32> {
    let mut scores = noise(WIDTH * ROWS * HEADS);
    let mut mask: Vec<f32> = (0..WIDTH * ROWS).map(|i| if i % 4 == 3 { f32::NEG_INFINITY } else { 0.0 }).collect();
    for &row in rows {
        let of = |plane: usize| (plane * ROWS + row) * WIDTH..(plane * ROWS + row + 1) * WIDTH;
        match masked {
            Masked::Scores => (0..HEADS).for_each(|head| scores[of(head)].fill(f32::NEG_INFINITY)),
            Masked::Mask(_) => mask[of(0)].fill(f32::NEG_INFINITY),
        }
    }
    let mut g = GraphBuilder::new("attention");
    let x = g.input("x", DType::F32, &[WIDTH as u64, ROWS as u64, HEADS as u64]).expect("an input");
    let mask_dtype = if let Masked::Mask(dtype) = masked { dtype } else { DType::F32 };
    let m = g.input("mask", mask_dtype, &[WIDTH as u64, ROWS as u64]).expect("an input");
    let s = g.input("sinks", DType::F32, &[HEADS as u64]).expect("an input");
    let y = g.soft_max(x, Some(m), sinks.then_some(s), 0.5, max_bias).expect("shapes fit");
    let y = g.output("y", y).expect("a free name");
    let mut engine = engine(backend);
    let graph = engine.add_graph(g);
    engine.write(graph, x, &scores).expect("all values");
    let mut bytes = vec![0; usize::try_from(m.desc.size_bytes()).expect("small")];
    (mask_dtype.row().quantize)(&mask, &mut bytes);
    engine.write(graph, m, &bytes).expect("all values");
    if sinks {
        engine.write(graph, s, &[0.5_f32, -1.0, 3.0]).expect("all values");
    }
    engine.run(graph).expect("it runs");
    let mut found = vec![0.0; WIDTH * ROWS * HEADS];
    engine.read(graph, y, &mut found).expect("the result");
    found
}

/// REPORTS 59: fully masked rows give zeros, however they are masked, and every other row keeps its bits.
#[test]
fn report_59_masked_rows_are_zeros_and_the_others_do_not_change() {
    for backend in BACKENDS {
        for masked in [Masked::Scores, Masked::Mask(DType::F32), Masked::Mask(DType::F16)] {
            for (sinks, max_bias) in [(false, 0.0), (true, 0.0), (false, 8.0), (true, 8.0)] {
                let free = masked_softmax(backend, masked, &[], sinks, max_bias);
                for rows in [&[0_usize][..], &[4], &[1, 2], &[0, 1, 2, 3, 4]] {
                    let found = masked_softmax(backend, masked, rows, sinks, max_bias);
                    for (row, (found, free)) in found.chunks(WIDTH).zip(free.chunks(WIDTH)).enumerate() {
                        let case = format!("row {row} of {rows:?}, {masked:?}, sinks {sinks}, {max_bias} on {backend}");
                        if rows.contains(&(row % ROWS)) {
                            assert!(found.iter().all(|v| v.to_bits() == 0), "{case}: {found:?}");
                        } else {
                            let bits = |row: &[f32]| row.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                            assert_eq!(bits(found), bits(free), "{case}");
                            let sum: f32 = found.iter().sum();
                            assert!(if sinks { sum < 0.9999 } else { (sum - 1.0).abs() < 1e-5 }, "{case}: {sum}");
                        }
                    }
                }
            }
        }
    }
}

/// A sink that no score can be below takes nothing.
#[test]
fn sinks_of_minus_infinity_change_no_bit() {
    let x = noise(WIDTH * ROWS * HEADS);
    let dims = [WIDTH, ROWS, HEADS].map(|dim| dim as u64);
    for backend in BACKENDS {
        let with = |sinks: bool| {
            run(backend, &dims, &x, |g, x| {
                // Zeros for the mask, and minus infinity for the sinks, made of `x`.
                let mask = g.view(x, 0, [WIDTH as u64, ROWS as u64, 1, 1], None)?;
                let mask = g.scale(mask, 0.0)?;
                let corner = g.view(x, 0, [HEADS as u64, 1, 1, 1], None)?;
                let masked = g.diag_mask_inf(corner, 0)?;
                let last = g.view(masked, 4, [1, 1, 1, 1], None)?;
                let all = g.repeat(last, [HEADS as u64, 1, 1, 1])?;
                g.soft_max(x, Some(mask), sinks.then_some(all), 0.5, 0.0)
            })
        };
        assert_eq!(with(true), with(false), "{backend}");
    }
}

/// The slopes of the ALiBi paper (8 heads: a half to the powers 1 to 8), what 12 heads have behind those, and sinks.
#[test]
fn slopes_and_sinks_are_those_of_the_papers() {
    let powers = (1..=8).map(|power| 0.5_f64.powi(power));
    let between = (0..4).map(|power| std::f64::consts::FRAC_1_SQRT_2 * 0.5_f64.powi(power));
    let slopes: Vec<f64> = powers.chain(between).collect();
    for backend in BACKENDS {
        for heads in [8, 12] {
            for sink in [None, Some(0.75_f32)] {
                let mut g = GraphBuilder::new("slopes");
                let x = g.input("x", DType::F32, &[2, 1, heads]).expect("an input");
                let mask = g.input("mask", DType::F32, &[2]).expect("an input");
                let sinks = g.input("sinks", DType::F32, &[heads]).expect("an input");
                let y = g.soft_max(x, Some(mask), sink.map(|_| sinks), 2.0, 8.0).expect("shapes fit");
                let y = g.output("y", y).expect("a free name");
                let mut engine = engine(backend);
                let graph = engine.add_graph(g);
                let heads = usize::try_from(heads).expect("few");
                engine.write(graph, x, &vec![0.0; 2 * heads]).expect("all values");
                engine.write(graph, mask, &[0.0, -3.0]).expect("all values");
                if let Some(sink) = sink {
                    engine.write(graph, sinks, &vec![sink; heads]).expect("all values");
                }
                engine.run(graph).expect("it runs");
                let mut found = vec![0.0_f32; 2 * heads];
                engine.read(graph, y, &mut found).expect("the result");
                for (pair, slope) in found.as_chunks::<2>().0.iter().zip(&slopes) {
                    let far = (-3.0 * slope).exp();
                    let sum = 1.0 + far + sink.map_or(0.0, |sink| f64::from(sink).exp());
                    for (found, expected) in pair.iter().zip([1.0 / sum, far / sum]) {
                        assert!((f64::from(*found) - expected).abs() < 1e-6, "{found}, not {expected}, on {backend}");
                    }
                }
            }
        }
    }
}
