//! Lines into words: blanks part them, except inside brackets; `#` starts a comment.

/// One word and the column of its first character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Word<'a> {
    /// The text.
    pub(super) text: &'a str,
    /// From 1, in characters.
    pub(super) column: u32,
}

impl<'a> Word<'a> {
    /// `key=value` in its parts, the value with its own column.
    pub(super) fn key_value(self) -> Option<(&'a str, Self)> {
        let (key, value) = self.text.split_once('=')?;
        let column = self.column + columns(key) + 1;
        Some((key, Self { text: value, column }))
    }

    /// The parts of a comma list, each with its own column.
    pub(super) fn list(self) -> impl Iterator<Item = Self> {
        let mut column = self.column;
        self.text.split(',').map(move |text| {
            let word = Self { text, column };
            column += columns(text) + 1;
            word
        })
    }
}

/// Characters of a text, which is what columns count.
pub(super) fn columns(text: &str) -> u32 {
    u32::try_from(text.chars().count()).unwrap_or(u32::MAX - 1)
}

/// The words of a line, its comment left out.
pub(super) fn words(line: &str) -> Vec<Word<'_>> {
    let line = line.split('#').next().unwrap_or_default();
    let mut words = Vec::new();
    let mut start = None;
    let mut depth = 0_u32;
    let mut column = 0_u32;
    for (at, c) in line.char_indices() {
        column = column.saturating_add(1);
        if c.is_whitespace() && depth == 0 {
            if let Some((from, column)) = start.take() {
                words.push(Word { text: &line[from..at], column });
            }
            continue;
        }
        start.get_or_insert((at, column));
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    if let Some((from, column)) = start {
        // An open bracket holds blanks up to the end of the line.
        words.push(Word { text: line[from..].trim_end(), column });
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brackets_hold_blanks_and_columns_count_characters() {
        let words: Vec<_> = words("  ä = view x shape=[64, 2]# rest").iter().map(|w| (w.text, w.column)).collect();
        assert_eq!(words, [("ä", 3), ("=", 5), ("view", 7), ("x", 12), ("shape=[64, 2]", 14)]);
    }

    #[test]
    fn parts_know_their_columns() {
        let word = Word { text: "ops=all,-add", column: 5 };
        let (key, value) = word.key_value().expect("has `=`");
        assert_eq!((key, value.column), ("ops", 9));
        assert_eq!(value.list().map(|w| w.column).collect::<Vec<_>>(), [9, 13]);
    }
}
