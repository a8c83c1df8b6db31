//! High-bandwidth memory: with a stand-in for the library, without such memory, and without the library.
//!
//! Libraries are found by the system, so each test runs this program again with a search path of its own.

use std::{
    env, fs,
    path::Path,
    process::{Command, Output},
};

use entensor_components::{Backend, BackendError, DType, Shape, TensorDesc, Usage};
use entensor_cpu::{CpuBackend, CpuConfig, CpuMemory, HIGH_BANDWIDTH, HUGE, REPACKED};

/// Which of [`child`]'s parts to run.
const PART: &str = "ENTENSOR_HBM_PART";

fn hbm() -> Result<CpuBackend, BackendError> {
    CpuBackend::new(CpuConfig { threads: Some(1), memory: CpuMemory::HighBandwidth, ..CpuConfig::default() })
}

/// The part of a test that runs where the library is, or is not.
#[test]
fn child() {
    let Ok(part) = env::var(PART) else { return };
    match part.as_str() {
        "absent" => match hbm().map(|_| ()) {
            Err(error @ BackendError::MissingLibrary { .. }) => {
                let text = error.to_string();
                assert!(text.contains("libmemkind.so.0") && text.contains("libmemkind0"), "{text}");
                assert!(matches!(CpuMemory::HighBandwidth.zeroed(1), Err(BackendError::MissingLibrary { .. })));
                println!("absent: {text}");
            }
            // This machine has the real one.
            other => println!("present: {other:?}"),
        },
        "incomplete" => match hbm().map(|_| ()) {
            Err(BackendError::MissingLibrary { reason, .. }) => assert!(reason.contains("hbw_free"), "{reason}"),
            other => panic!("{other:?}"),
        },
        part => uses_memory(part == "with memory"),
    }
}

fn uses_memory(is_there: bool) {
    let cpu = hbm().expect("the stand-in is there");
    assert_eq!(&*cpu.capabilities().buffer_type, HIGH_BANDWIDTH);
    let types = cpu.buffer_types();
    assert_eq!(types.iter().map(|info| &*info.name).collect::<Vec<_>>(), [HIGH_BANDWIDTH, REPACKED, HUGE]);
    assert!(types[0].is_host(), "every host backend reads it in place");
    assert_eq!(types[0].description.starts_with("high-bandwidth memory"), is_there, "{}", types[0].description);
    assert_eq!(types[0].description.contains("ordinary host memory"), !is_there, "{}", types[0].description);
    let key = cpu.create_buffer(1000, Usage::Any).expect("small");
    let memory = cpu.memory(key).expect("just made");
    let mut bytes = [1; 1000];
    cpu.read(&memory, 0, &mut bytes).expect("in bounds");
    assert_eq!(bytes, [0; 1000], "zeroed, whatever the allocator left there");
    cpu.write(&memory, 996, &[1, 2, 3, 4]).expect("in bounds");
    assert!(matches!(cpu.write(&memory, 997, &[0; 4]), Err(BackendError::OutOfBounds { .. })));
    assert_eq!(memory.as_host().expect("host memory").read()[996..], [1, 2, 3, 4]);
    let empty = cpu.create_buffer(0, Usage::Any).expect("nothing");
    let private = cpu.create_buffer_of(REPACKED, 272, Usage::Weights).expect("small");
    let private_memory = cpu.memory(private).expect("just made");
    let desc = TensorDesc::packed(DType::Q8_0, Shape([32, 8, 1, 1])).expect("small");
    cpu.init_tensor(&private_memory, 0, &desc, 272).expect("there is room");
    let report = cpu.memory_report();
    assert_eq!((report.ours_bytes, report.high_bandwidth_bytes), (1272, if is_there { 1272 } else { 0 }));
    assert!(matches!(cpu.create_buffer(1 << 50, Usage::Any), Err(BackendError::OutOfMemory { .. })));
    assert!(matches!(cpu.create_buffer(u64::MAX, Usage::Any), Err(BackendError::OutOfMemory { .. })));
    for key in [key, empty, private] {
        cpu.destroy_buffer(key).expect("live");
    }
    drop(cpu);
    // Handles keep memory alive, and the library with it.
    cpu_memory_outlives_its_backend(&memory);
}

fn cpu_memory_outlives_its_backend(memory: &entensor_components::MemoryHandle) {
    assert_eq!(memory.as_host().expect("host memory").read()[999], 4);
}

/// Runs a part of [`child`] with a folder to look for libraries in.
fn run(part: &str, libraries: &Path, variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env::current_exe().expect("this program"));
    command.args(["--exact", "child", "--nocapture", "--test-threads=1"]).env(PART, part);
    command.env("LD_LIBRARY_PATH", libraries).envs(variables.iter().copied());
    let output = command.output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{part}: {text}");
    assert!(text.contains("1 passed"), "{part} ran: {text}");
    output
}

/// Builds the stand-in; false where there is no C compiler.
fn build(folder: &Path, defines: &[&str]) -> bool {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake_memkind.c");
    let library = folder.join("libmemkind.so.0");
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(library).arg(source).args(defines).status();
    match built {
        Ok(status) => {
            assert!(status.success(), "the stand-in for libmemkind does not build");
            true
        }
        Err(error) => {
            eprintln!("SKIPPED: no C compiler ({error}), so there is no stand-in for libmemkind");
            false
        }
    }
}

fn said(output: &Output, line: &str) -> usize {
    String::from_utf8_lossy(&output.stderr).lines().filter(|said| said.contains(line)).count()
}

#[test]
fn without_the_library_the_package_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = run("absent", folder.path(), &[]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if text.contains("present: ") {
        eprintln!("SKIPPED: libmemkind is installed here, so it cannot be missing");
    } else {
        assert!(text.contains("absent: "), "{text}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn buffers_lie_in_what_the_library_gives_and_go_back_to_it() {
    let folder = tempfile::tempdir().expect("a folder");
    if !build(folder.path(), &[]) {
        return;
    }
    let output = run("with memory", folder.path(), &[]);
    assert_eq!((said(&output, "allocate 1000 align 64"), said(&output, "allocate 272 align 64")), (1, 1));
    assert_eq!((said(&output, "allocate "), said(&output, "free")), (2, 2), "what was allocated was freed");
}

#[cfg(target_os = "linux")]
#[test]
fn without_such_memory_buffers_are_ordinary_ones() {
    let folder = tempfile::tempdir().expect("a folder");
    if !build(folder.path(), &[]) {
        return;
    }
    let output = run("without memory", folder.path(), &[("FAKE_WITHOUT_MEMORY", "1")]);
    assert_eq!(said(&output, "allocate "), 0, "the library was not asked for any");
}

#[cfg(target_os = "linux")]
#[test]
fn a_library_without_its_functions_is_missing() {
    let folder = tempfile::tempdir().expect("a folder");
    if !build(folder.path(), &["-DWITHOUT_FREE"]) {
        return;
    }
    run("incomplete", folder.path(), &[]);
    // No library at all, but a file of its name.
    fs::write(folder.path().join("libmemkind.so.0"), "no library").expect("a small file");
    run("absent", folder.path(), &[]);
}
