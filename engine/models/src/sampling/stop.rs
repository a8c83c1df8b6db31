//! Ending a text at a string.

/// Why strings cannot end a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StopError {
    /// A string of nothing would end every text at once.
    #[error("a stop string is empty; leave it out")]
    Empty,
}

/// Finds stop strings in a text that comes in pieces.
///
/// The text ends before the stop string that is complete first; of those that are complete at the same place, before the
/// longest. How the text is cut into pieces makes no difference. Only what may still become a stop string is held back.
///
/// ```
/// use entensor_models::sampling::StopStrings;
///
/// let mut stops = StopStrings::new(["\nUser:", "###"])?;
/// assert_eq!(stops.push("Hello!\nUs"), "Hello!");
/// assert_eq!(stops.push("ually\nUser"), "\nUsually");
/// assert_eq!(stops.push(": again"), "");
/// assert_eq!(stops.found(), Some("\nUser:"));
/// # Ok::<(), entensor_models::sampling::StopError>(())
/// ```
///
/// **Cost.** Each byte costs a step per string, whatever the strings are (Knuth, Morris and Pratt, 1977). Nothing is allocated once the
/// buffers have grown.
#[derive(Clone, Debug, Default)]
pub struct StopStrings {
    stops: Vec<Stop>,
    /// What may still become a stop string.
    held: String,
    out: String,
    found: Option<usize>,
}

#[derive(Clone, Debug)]
struct Stop {
    text: String,
    /// For every length of a matched start, the longest shorter start that also ends there.
    shorter: Vec<usize>,
    /// Bytes that the text so far ends with.
    matched: usize,
}

impl Stop {
    fn new(text: String) -> Self {
        let bytes = text.as_bytes();
        let mut shorter = vec![0; bytes.len() + 1];
        let mut length = 0;
        for end in 1..bytes.len() {
            while length > 0 && bytes[end] != bytes[length] {
                length = shorter[length];
            }
            length += usize::from(bytes[end] == bytes[length]);
            shorter[end + 1] = length;
        }
        Self { text, shorter, matched: 0 }
    }

    /// Whether the string is complete with this byte.
    fn step(&mut self, byte: u8) -> bool {
        let bytes = self.text.as_bytes();
        while self.matched > 0 && bytes[self.matched] != byte {
            self.matched = self.shorter[self.matched];
        }
        self.matched += usize::from(bytes[self.matched] == byte);
        let complete = self.matched == bytes.len();
        if complete {
            self.matched = self.shorter[self.matched];
        }
        complete
    }
}

impl StopStrings {
    /// Looks for these strings. With none, texts go through unchanged.
    ///
    /// # Errors
    /// [`StopError::Empty`].
    pub fn new<S: Into<String>>(strings: impl IntoIterator<Item = S>) -> Result<Self, StopError> {
        let mut stops = Vec::new();
        for text in strings {
            let text = text.into();
            if text.is_empty() {
                return Err(StopError::Empty);
            }
            stops.push(Stop::new(text));
        }
        Ok(Self { stops, ..Self::default() })
    }

    /// Takes a piece of text; gives what is certain to come before any stop string. After a stop string that is nothing.
    pub fn push(&mut self, piece: &str) -> &str {
        self.out.clear();
        if self.found.is_some() {
            return &self.out;
        }
        let before = self.held.len();
        self.held.push_str(piece);
        for (i, byte) in piece.bytes().enumerate() {
            // The longest that is complete here. All take the byte, and none starts before what is held.
            let mut longest = 0;
            for (at, stop) in self.stops.iter_mut().enumerate() {
                if stop.step(byte) && stop.text.len() > longest {
                    longest = stop.text.len();
                    self.found = Some(at);
                }
            }
            if longest > 0 {
                self.out.push_str(&self.held[..before + i + 1 - longest]);
                self.held.clear();
                return &self.out;
            }
        }
        let kept = self.stops.iter().map(|stop| stop.matched).max().unwrap_or(0);
        let certain = self.held.len() - kept;
        self.out.push_str(&self.held[..certain]);
        self.held.drain(..certain);
        &self.out
    }

    /// Ends the text: gives what was held back, which is no stop string now.
    pub fn finish(&mut self) -> &str {
        self.out.clear();
        self.out.push_str(&self.held);
        self.held.clear();
        self.stops.iter_mut().for_each(|stop| stop.matched = 0);
        &self.out
    }

    /// The stop string that ended the text.
    #[must_use]
    pub fn found(&self) -> Option<&str> {
        self.found.and_then(|found| self.stops.get(found)).map(|stop| &*stop.text)
    }

    /// Starts a new text.
    pub fn restart(&mut self) {
        self.finish();
        self.found = None;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn stops(strings: &[&str]) -> StopStrings {
        StopStrings::new(strings.iter().copied()).expect("no empty ones")
    }

    /// The text before the stop string, and which it is.
    fn run<'a>(stops: &mut StopStrings, pieces: impl IntoIterator<Item = &'a str>) -> (String, Option<String>) {
        let mut text = String::new();
        for piece in pieces {
            text.push_str(stops.push(piece));
        }
        text.push_str(stops.finish());
        (text, stops.found().map(str::to_owned))
    }

    /// The same, looked for in the whole text.
    fn naive(strings: &[String], text: &str) -> (String, Option<String>) {
        for end in 0..=text.len() {
            let longest =
                strings.iter().filter(|stop| text.as_bytes()[..end].ends_with(stop.as_bytes())).max_by_key(|s| s.len());
            if let Some(stop) = longest {
                return (text[..end - stop.len()].into(), Some(stop.clone()));
            }
        }
        (text.into(), None)
    }

    #[test]
    fn only_what_may_become_a_stop_string_is_held_back() {
        let mut found = stops(&["STOP", "stay"]);
        assert_eq!(found.push("a S"), "a ");
        assert_eq!(found.push("T"), "");
        assert_eq!(found.push("S"), "ST");
        assert_eq!(found.push("TOst"), "STO");
        assert_eq!(found.push("a"), "");
        assert_eq!(found.finish(), "sta");
        assert_eq!(found.found(), None);
        // A new text does not remember the start of a string.
        assert_eq!(found.push("y"), "y");
    }

    #[test]
    fn the_first_that_is_complete_ends_the_text() {
        assert_eq!(run(&mut stops(&["abcd", "bc"]), ["xabcd"]), ("xa".into(), Some("bc".into())));
        assert_eq!(run(&mut stops(&["bc", "abc"]), ["xabc"]), ("x".into(), Some("abc".into())));
        assert_eq!(run(&mut stops(&["aab"]), ["aa", "aab"]), ("aa".into(), Some("aab".into())));
        assert_eq!(run(&mut stops(&["ß\u{1f642}"]), ["ßß", "\u{1f642}x"]), ("ß".into(), Some("ß\u{1f642}".into())));
        assert_eq!(run(&mut stops(&[]), ["a", "b"]), ("ab".into(), None));
        let mut after = stops(&["."]);
        assert_eq!(after.push("a.b"), "a");
        assert_eq!(after.push("c"), "");
        after.restart();
        assert_eq!(after.push("d"), "d");
        assert_eq!(after.found(), None);
    }

    #[test]
    fn empty_strings_are_refused() {
        assert_eq!(StopStrings::new(["a", ""]).err(), Some(StopError::Empty));
    }

    #[test]
    fn a_warm_search_allocates_nothing() {
        let mut warm = stops(&["never seen", "\n\n\n"]);
        let pieces = ["never", " se", "\n\n", "ever", "\n", "text of some length, longer than the others"];
        let mut run = || pieces.iter().map(|piece| warm.push(piece).len()).sum::<usize>();
        run();
        let info = allocation_counter::measure(|| {
            for _ in 0..20 {
                run();
            }
        });
        assert_eq!(info.count_total, 0);
    }

    proptest! {
        #[test]
        fn pieces_make_no_difference(
            text in "[abä]{0,24}",
            strings in prop::collection::vec("[abä]{1,4}", 0..4),
            cuts in prop::collection::vec(any::<bool>(), 24),
        ) {
            let mut pieces = vec![String::new()];
            for (char, cut) in text.chars().zip(cuts) {
                if cut {
                    pieces.push(String::new());
                }
                pieces.last_mut().expect("one at least").push(char);
            }
            let mut found = StopStrings::new(strings.clone()).expect("no empty ones");
            prop_assert_eq!(run(&mut found, pieces.iter().map(String::as_str)), naive(&strings, &text));
        }
    }
}
