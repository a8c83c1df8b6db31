//! Buffers on pages of 2 MiB: memory like any other, counted by what the system gives.

use entensor_components::{Backend, BackendError, Usage};
use entensor_cpu::{CpuBackend, CpuConfig, HUGE};

#[test]
fn huge_buffers_are_host_memory_that_is_counted() {
    let cpu = CpuBackend::new(CpuConfig { threads: Some(1), ..CpuConfig::default() }).expect("a cpu");
    let info = cpu.buffer_types().into_iter().find(|info| *info.name == *HUGE).expect("a type of the backend");
    assert!(info.is_host(), "every host backend reads it in place");
    assert!(info.description.contains("2 MiB"), "{}", info.description);
    let size_bytes = (5 << 20) + 17;
    let key = cpu.create_buffer_of(HUGE, size_bytes, Usage::Weights).expect("a little memory");
    let memory = cpu.memory(key).expect("just made");
    cpu.write(&memory, size_bytes - 3, &[1, 2, 3]).expect("in bounds");
    assert!(matches!(cpu.write(&memory, size_bytes - 2, &[1, 2, 3]), Err(BackendError::OutOfBounds { .. })));
    let mut end = [9; 5];
    cpu.read(&memory, size_bytes - 5, &mut end).expect("in bounds");
    assert_eq!(end, [0, 0, 1, 2, 3]);
    cpu.fill(&memory, 0, size_bytes, 4).expect("in bounds");
    let report = cpu.memory_report();
    assert_eq!(report.ours_bytes, size_bytes);
    assert!(report.huge_page_bytes <= size_bytes, "no more than there is");
    if info.description.starts_with("ordinary") {
        assert_eq!(report.huge_page_bytes, 0);
    }
    cpu.destroy_buffer(key).expect("known");
    assert_eq!((cpu.memory_report().ours_bytes, cpu.memory_report().huge_page_bytes), (0, 0));
    assert!(matches!(cpu.create_buffer_of(HUGE, u64::MAX, Usage::Any), Err(BackendError::OutOfMemory { .. })));
}
