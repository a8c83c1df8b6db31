//! How much memory the machine has.

/// The machine's memory and what of it is free, in bytes, where the system tells.
#[must_use]
pub fn host_memory() -> (Option<u64>, Option<u64>) {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    (entry(&text, "MemTotal:"), entry(&text, "MemAvailable:"))
}

/// An entry of the kernel's table, which counts in KiB.
fn entry(text: &str, key: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(key))?;
    let kib: u64 = rest.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_read_and_nonsense_is_nothing() {
        let text = "MemTotal:       16384 kB\nMemFree: 1 kB\nMemAvailable:   8192 kB\nOdd: x kB\nHuge: 99999999999999999999 kB\n";
        assert_eq!((entry(text, "MemTotal:"), entry(text, "MemAvailable:")), (Some(16 << 20), Some(8 << 20)));
        assert_eq!((entry(text, "Odd:"), entry(text, "Huge:"), entry(text, "Nowhere:")), (None, None, None));
        if cfg!(target_os = "linux") {
            let (total, free) = host_memory();
            assert!(total.is_some_and(|total| free.is_some_and(|free| free <= total)));
        }
    }
}
