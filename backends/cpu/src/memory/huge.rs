//! Memory in pages of 2 MiB, where the system gives them.
//!
//! A stream through ordinary memory needs a translation for every 4 KiB, and the hardware's prefetching begins anew there. On large pages
//! the same stream is some 5 to 20 % faster. The system is asked for them, not told: where it refuses, or has none left, the bytes lie on
//! ordinary pages, and how many do not is counted from what the system says.

use std::ops::Range;

use entensor_components::{BackendError, HostMemory};

/// Bytes of a large page.
const PAGE_BYTES: usize = 2 << 20;

/// Where a buffer's bytes lie, to be found again in what the system says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Span(Range<usize>);

/// Zeroed memory on pages of 2 MiB, and where it lies; on ordinary pages where the system has no others.
#[cfg(target_os = "linux")]
pub(crate) fn zeroed(size_bytes: u64) -> Result<(HostMemory, Option<Span>), BackendError> {
    let out_of_memory = BackendError::OutOfMemory { size_bytes };
    let len = usize::try_from(size_bytes).map_err(|_| out_of_memory.clone())?;
    if len == 0 {
        return Ok((HostMemory::zeroed(0)?, None));
    }
    // Room for a start at a whole page; what nobody touches takes no memory.
    let room = len.checked_next_multiple_of(PAGE_BYTES).and_then(|len| len.checked_add(PAGE_BYTES));
    let room = room.filter(|&room| isize::try_from(room).is_ok()).ok_or_else(|| out_of_memory.clone())?;
    let pages = memmap2::MmapMut::map_anon(room).map_err(|_| out_of_memory)?;
    // A system without large pages says no, and the mapping is as good as any other memory.
    let is_asked = pages.advise(memmap2::Advice::HugePage).is_ok();
    let first = pages.as_ptr().addr();
    let skipped = first.next_multiple_of(PAGE_BYTES) - first;
    let start = first + skipped;
    let memory = HostMemory::allocated(Box::new(Pages { pages, bytes: skipped..skipped + len }));
    Ok((memory, is_asked.then_some(Span(start..start + len))))
}

/// Ordinary memory: other systems hand out large pages to those only who may lock memory.
#[cfg(not(target_os = "linux"))]
pub(crate) fn zeroed(size_bytes: u64) -> Result<(HostMemory, Option<Span>), BackendError> {
    Ok((HostMemory::zeroed(size_bytes)?, None))
}

/// A mapping of nobody's file, from its first whole page on.
#[cfg(target_os = "linux")]
struct Pages {
    pages: memmap2::MmapMut,
    bytes: Range<usize>,
}

#[cfg(target_os = "linux")]
impl AsRef<[u8]> for Pages {
    fn as_ref(&self) -> &[u8] {
        &self.pages[self.bytes.clone()]
    }
}

#[cfg(target_os = "linux")]
impl AsMut<[u8]> for Pages {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.pages[self.bytes.clone()]
    }
}

/// Why the system gives no such pages, if it does not.
pub(crate) fn refusal() -> Option<&'static str> {
    if !cfg!(target_os = "linux") {
        return Some("this system hands out no 2 MiB pages on request");
    }
    match std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled") {
        Ok(text) if text.contains("[never]") => {
            Some("/sys/kernel/mm/transparent_hugepage/enabled says never; `madvise` lets programs ask for 2 MiB pages")
        }
        Ok(_) => None,
        Err(_) => Some("the kernel has no transparent huge pages"),
    }
}

/// How many bytes of these lie on large pages; 0 where the system does not say.
pub(crate) fn bytes_on_large_pages<'a>(spans: impl Iterator<Item = &'a Span> + Clone) -> u64 {
    if spans.clone().next().is_none() {
        return 0;
    }
    let text = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    counted(&text, spans)
}

/// The same from the system's list of mappings. A mapping may be larger than what was asked for, since neighbours are merged, so that no
/// span counts more than its own bytes.
fn counted<'a>(text: &str, spans: impl Iterator<Item = &'a Span> + Clone) -> u64 {
    let mut mapping = 0..0;
    let mut total_bytes = 0;
    for line in text.lines() {
        if let Some(range) = mapping_of(line) {
            mapping = range;
        } else if let Some(rest) = line.strip_prefix("AnonHugePages:") {
            let kib: u64 = rest.trim().strip_suffix("kB").and_then(|kib| kib.trim().parse().ok()).unwrap_or(0);
            let shared = |span: &Span| span.0.end.min(mapping.end).saturating_sub(span.0.start.max(mapping.start));
            let ours_bytes: usize = spans.clone().map(shared).sum();
            total_bytes += (ours_bytes as u64).min(kib.saturating_mul(1024));
        }
    }
    total_bytes
}

/// The addresses at the start of a mapping's first line.
fn mapping_of(line: &str) -> Option<Range<usize>> {
    let (range, _) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    Some(address(start)?..address(end)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_pages_are_counted_once_and_never_beyond_what_is_ours() {
        let text = "7f0000000000-7f0000800000 rw-p 00000000 00:00 0 \nSize: 8192 kB\nAnonHugePages:      6144 kB\n\
                    7f0001000000-7f0001200000 rw-p 00000000 00:00 0\nAnonHugePages:         0 kB\n\
                    7f0002000000-7f0002200000 rw-p 00000000 00:00 0 [heap]\nAnonHugePages:   nonsense\n";
        let span = |start: usize, end: usize| Span(start..end);
        let one = [span(0x7f00_0020_0000, 0x7f00_0040_0000)];
        assert_eq!(counted(text, one.iter()), 2 << 20, "no more than it has");
        let two = [one[0].clone(), span(0x7f00_0040_0000, 0x7f00_0080_0000), span(0x7f00_0100_0000, 0x7f00_0120_0000)];
        assert_eq!(counted(text, two.iter()), 6 << 20, "what the mapping has, and nothing of one without");
        assert_eq!(counted(text, [span(0x1000, 0x2000)].iter()), 0);
        assert_eq!(counted("", one.iter()), 0);
    }

    #[test]
    fn memory_is_zeroed_writable_and_as_large_as_asked_for() {
        for size in [0_u64, 1, 4097, (2 << 20) - 1, (4 << 20) + 12_345] {
            let (memory, span) = zeroed(size).expect("a little memory");
            assert_eq!(memory.size_bytes(), size);
            assert!(memory.read().iter().all(|&byte| byte == 0));
            memory.write().expect("writable").fill(7);
            assert!(memory.read().iter().all(|&byte| byte == 7));
            let Some(Span(range)) = &span else { continue };
            assert_eq!((range.start % PAGE_BYTES, range.len() as u64), (0, size));
            let large_bytes = bytes_on_large_pages(span.iter());
            assert!(large_bytes <= size && (refusal().is_none() || large_bytes == 0));
        }
        assert!(matches!(zeroed(u64::MAX), Err(BackendError::OutOfMemory { .. })));
        assert!(matches!(zeroed(1 << 62), Err(BackendError::OutOfMemory { .. })));
    }
}
