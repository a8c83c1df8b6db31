//! `RESULTS.md`: what benches printed, each in a section of its own that the next run replaces.

use std::{
    fmt::Write as _,
    fs, io,
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

const HEAD: &str = "# Results\n\nWritten by the benches themselves when they are given the word `record`; a run replaces its own section. \
                    Figures of different sections\nare of different minutes, often of different machines: compare within one.\n";

/// Puts a bench's output into `RESULTS.md`, in place of what it said before, with the machine, the command and the date.
///
/// # Errors
/// A file that cannot be read or written.
pub fn record(bench: &str, command: &str, output: &str) -> io::Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("RESULTS.md");
    let old = match fs::read_to_string(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => HEAD.to_owned(),
        other => other?,
    };
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let facts = format!("{}, {}\n\n`{command}`", date(seconds), machine());
    fs::write(&path, replaced(&old, bench, &format!("{facts}\n\n{}", output.trim())))
}

/// The page with the section of this name replaced, or added at the end.
fn replaced(page: &str, name: &str, body: &str) -> String {
    let heading = format!("## {name}\n");
    let (before, after) = match page.find(&heading) {
        Some(start) => {
            let rest = &page[start + heading.len()..];
            let end = rest.find("\n## ").map_or(rest.len(), |at| at + 1);
            (&page[..start], &rest[end..])
        }
        None => (page, ""),
    };
    let mut new = before.trim_end().to_owned();
    write!(new, "\n\n{heading}\n{}\n", body.trim()).ok();
    if !after.is_empty() {
        write!(new, "\n{}\n", after.trim_end()).ok();
    }
    new
}

/// The processor, its caches and memory, as far as the system tells.
#[must_use]
pub fn machine() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let info = read("/proc/cpuinfo");
    let line = |key: &str| info.lines().find(|line| line.starts_with(key)).and_then(|line| line.split_once(": "));
    let model = line("model name").map_or(std::env::consts::ARCH, |(_, value)| value.trim());
    let flags: Vec<&str> = line("flags").map(|(_, value)| value.split(' ').collect()).unwrap_or_default();
    let known = ["avx2", "fma", "f16c", "avx512f", "avx512_vnni", "avx512_bf16", "avx_vnni"];
    let simd: Vec<&str> = known.into_iter().filter(|flag| flags.contains(flag)).collect();
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let cache = read("/sys/devices/system/cpu/cpu0/cache/index3/size");
    let memory = read("/proc/meminfo");
    let kilobytes = memory.split_ascii_whitespace().nth(1).and_then(|kb| kb.parse::<u64>().ok()).unwrap_or(0);
    format!(
        "{model}, {cores} cores seen, {}, L3 {}, {} GiB of memory, {}",
        simd.join(" "),
        cache.trim(),
        kilobytes >> 20,
        std::env::consts::OS
    )
}

/// The day, in UTC, of so many seconds after 1970.
fn date(seconds: u64) -> String {
    let mut days = seconds / 86_400;
    let is_leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 1;
    for length in lengths {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    format!("{year}-{month:02}-{:02}", days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_those_of_the_calendar() {
        let days =
            [(0, "1970-01-01"), (68_169_600, "1972-02-29"), (951_868_799, "2000-02-29"), (4_102_444_800, "2100-01-01")];
        for (seconds, day) in days {
            assert_eq!(date(seconds), day);
        }
    }

    #[test]
    fn a_run_replaces_its_own_section_only() {
        let page = replaced(&replaced(HEAD, "one", "first"), "two", "second");
        assert!(page.starts_with(HEAD.trim_end()));
        let again = replaced(&page, "one", "third");
        assert!(again.contains("## one\n\nthird\n\n## two\n\nsecond\n") && !again.contains("first"), "{again}");
        assert_eq!(replaced(&again, "one", "first"), page);
        assert_eq!(replaced(&page, "two", "second"), page);
    }
}
