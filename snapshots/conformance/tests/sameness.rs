//! What backends promise of the sameness of their results: [`Simd::Strict`] and the oracle give the bits of the golden on every machine.
#![cfg(target_arch = "x86_64")]

mod common;

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Write as _,
    path::Path,
    process::Command,
};

use common::cpu;
use entensor_components::{Backend, DType, Sameness};
use entensor_conformance::{Case, Fill, cases, map_cases, run_case, run_case_padded};
use entensor_cpu::Simd;
use entensor_oracle::OracleBackend;

#[test]
fn backends_promise_what_they_keep() {
    let promises = [Simd::Detect, Simd::Avx2, Simd::Portable, Simd::Strict].map(|simd| cpu(1, simd).sameness());
    assert_eq!(promises, [Sameness::Machine, Sameness::Machine, Sameness::Machine, Sameness::Strict]);
    assert_eq!(OracleBackend::new("oracle").sameness(), Sameness::Strict);
    assert_eq!(cpu(1, Simd::Strict).simd_level(), "portable");
}

#[test]
fn strict_bits_are_those_of_the_portable_level_on_any_number_of_threads() {
    let portable = cpu(1, Simd::Portable);
    let strict = [cpu(1, Simd::Strict), cpu(4, Simd::Strict)];
    // Neighbours differ in little, so one of seven meets everything; seven is prime to the lengths of lists that are crossed.
    let sample: Vec<Case> = cases().into_iter().step_by(7).collect();
    map_cases(&sample, |case| {
        let expected = run_case(&portable, case);
        for strict in &strict {
            assert_eq!(run_case(strict, case), expected, "{case}");
        }
    });
}

/// The largest plain case, within reason, of each op, its parameters, the dtype of its first operand, and one row or several in its second:
/// products with one row have kernels of their own.
fn selection() -> Vec<Case> {
    let elements = |case: &Case| -> u64 {
        case.operands.iter().map(|operand| operand.desc.shape.elements().expect("cases are small")).sum()
    };
    let mut places: HashMap<_, usize> = HashMap::new();
    let mut selection: Vec<Case> = Vec::new();
    for case in cases() {
        let is_plain = case.fill == Fill::Plain && case.in_place.is_none();
        let Some(first) = case.operands.first().filter(|_| is_plain && elements(&case) <= 20_000) else { continue };
        let one_row = case.operands.get(1).is_some_and(|second| second.desc.shape.0[1] == 1);
        let place = *places.entry((case.op.to_string(), first.desc.dtype, one_row)).or_insert(selection.len());
        match selection.get_mut(place) {
            None => selection.push(case),
            Some(smaller) if elements(smaller) < elements(&case) => *smaller = case,
            Some(_) => {}
        }
    }
    selection
}

/// A case's result. Which NaN an operation gives is left to the compiler, so all of them are made one.
fn result(backend: &dyn Backend, case: &Case) -> Vec<u8> {
    let mut bytes = run_case_padded(backend, case, 0).unwrap_or_else(|error| panic!("{case}: {error}"));
    if case.output().dtype == DType::F32 {
        for element in bytes.as_chunks_mut::<4>().0 {
            if f32::from_le_bytes(*element).is_nan() {
                *element = f32::NAN.to_le_bytes();
            }
        }
    }
    bytes
}

/// FNV-1a: the hash of some bytes, behind others with the hash so far.
fn hash(so_far: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(so_far, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

/// Made once, and compared wherever this runs: a machine that gives other bits does not keep the promise. Where the number of cases of an op
/// has changed, so may its bits.
#[test]
fn strict_bits_are_those_of_the_golden() {
    let (strict, oracle) = (cpu(2, Simd::Strict), OracleBackend::new("oracle"));
    let selection = selection();
    let results = map_cases(&selection, |case| [result(&strict, case), result(&oracle, case)]);
    let mut ops: BTreeMap<&str, (usize, [u64; 2])> = BTreeMap::new();
    for (case, results) in selection.iter().zip(&results) {
        let (count, hashes) = ops.entry(case.op.row().name).or_insert((0, [0xcbf2_9ce4_8422_2325; 2]));
        *count += 1;
        *hashes = std::array::from_fn(|of| hash(hashes[of], &results[of]));
    }
    let mut text = format!("{:<16}  {:<16}  cases  op\n", "cpu:simd=strict", "oracle");
    for (op, (count, [strict, oracle])) in ops {
        let _ = writeln!(text, "{strict:016x}  {oracle:016x}  {count:>5}  {op}");
    }
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path(Path::new(env!("CARGO_MANIFEST_DIR")).join("golden"));
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!("sameness", text));
}

/// The C library has several of each function and takes the one that suits the processor. Told that the processor is an old one, it takes
/// others, and the bits stay.
#[test]
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn no_function_of_the_c_library_decides_a_bit() {
    let tests = std::env::current_exe().expect("this program");
    let older = Command::new(tests)
        .args(["--exact", "strict_bits_are_those_of_the_golden"])
        .env("GLIBC_TUNABLES", "glibc.cpu.hwcaps=-AVX512F,-AVX2,-FMA,-FMA4,-AVX2_Usable,-FMA_Usable")
        .env("INSTA_UPDATE", "no")
        .output()
        .expect("it starts again");
    let text = String::from_utf8_lossy(&older.stdout);
    assert!(older.status.success() && text.contains("1 passed"), "{text}");
}
