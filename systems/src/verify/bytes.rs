//! The bytes of one memory as the walk sees them: disjoint segments, each with what it holds and who touched it last.

use std::collections::BTreeMap;

/// What a range of bytes holds: bytes of a root, as they were after so many writes to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Content {
    /// Whose bytes.
    pub(super) root: u32,
    /// After how many writes.
    pub(super) version: u32,
    /// Byte of the root that the range starts with.
    pub(super) root_byte: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Segment {
    pub(super) end: u64,
    pub(super) content: Option<Content>,
    /// Queue and step of the last write.
    pub(super) writer: Option<(u32, usize)>,
    /// Queue and step of reads since: the last one of each queue, which is finished after all before it.
    pub(super) readers: Vec<(u32, usize)>,
}

impl Segment {
    pub(super) fn read_by(&mut self, (queue, step): (u32, usize)) {
        match self.readers.iter_mut().find(|(other, _)| *other == queue) {
            Some((_, last)) => *last = step,
            None => self.readers.push((queue, step)),
        }
    }
}

/// The bytes of one memory as disjoint segments.
#[derive(Default)]
pub(super) struct Bytes(BTreeMap<u64, Segment>);

impl Bytes {
    /// Cuts segments so that one starts at `at`.
    fn cut(&mut self, at: u64) {
        let Some((&start, segment)) = self.0.range_mut(..at).next_back() else { return };
        if segment.end <= at {
            return;
        }
        let mut tail = segment.clone();
        segment.end = at;
        if let Some(content) = &mut tail.content {
            content.root_byte += at - start;
        }
        self.0.insert(at, tail);
    }

    /// Makes `start..end` consist of whole segments, filling holes with unknown bytes, and visits them.
    pub(super) fn visit(&mut self, start: u64, end: u64, mut each: impl FnMut(u64, &mut Segment)) {
        self.cut(start);
        self.cut(end);
        let mut at = start;
        let mut holes = Vec::new();
        for (&s, segment) in self.0.range(start..end) {
            if s > at {
                holes.push((at, s));
            }
            at = segment.end;
        }
        if at < end {
            holes.push((at, end));
        }
        for (s, e) in holes {
            self.0.insert(s, Segment { end: e, content: None, writer: None, readers: Vec::new() });
        }
        for (&s, segment) in self.0.range_mut(start..end) {
            each(s, segment);
        }
    }
}
