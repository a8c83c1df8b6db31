//! The table by which characters are rewritten (`precompiled_charsmap`), most often Unicode's NFKC with a few additions.
//!
//! It is a double-array trie of 32-bit units, preceded by its size in bytes and followed by the replacements, each ended by
//! a zero byte. A unit has a label in its low 8 bits, a flag for "a key ends here" in bit 8, and from bit 10 the distance
//! to its children, in 256s if bit 9 is set. A unit with bit 31 set is the value of a key: where its replacement starts.

use super::super::error::TokenizerError;
use super::super::keys;
use crate::gguf::{Metadata, OptionalKey};

/// A checked table.
#[derive(Debug)]
pub(super) struct CharsMap {
    units: Vec<u32>,
    replacements: String,
}

const VALUE: u32 = 1 << 31;

/// The longest replacement that is believed: a table must not blow texts up at will. NFKC makes at most 33 bytes of one
/// character.
const MOST_REPLACEMENT_BYTES: usize = 255;

/// Where the children of a unit are, relative to it.
fn offset(unit: u32) -> u32 {
    (unit >> 10) << ((unit & 1 << 9) >> 6)
}

/// The byte that leads to a unit; none leads to values.
fn label(unit: u32) -> u32 {
    unit & (VALUE | 0xFF)
}

fn has_value(unit: u32) -> bool {
    unit & 1 << 8 != 0
}

impl CharsMap {
    /// The table of a file; `None` where it has none, or an empty one.
    pub(super) fn read(metadata: &Metadata) -> Result<Option<Self>, TokenizerError> {
        let Some(numbers) = metadata.integers(keys::CHARSMAP).optional()? else { return Ok(None) };
        // Some files say that their bytes are signed.
        let byte = |number: i128| u8::try_from(number).or_else(|_| i8::try_from(number).map(|byte| byte as u8)).ok();
        let Some(bytes) = numbers.map(byte).collect::<Option<Vec<u8>>>() else {
            return Err(TokenizerError::MalformedCharsMap { fault: "it holds numbers that are no bytes" });
        };
        if bytes.is_empty() { Ok(None) } else { Self::parse(&bytes).map(Some) }
    }

    fn parse(bytes: &[u8]) -> Result<Self, TokenizerError> {
        let malformed = |fault| TokenizerError::MalformedCharsMap { fault };
        let (size_bytes, rest) = bytes.split_first_chunk::<4>().ok_or(malformed("it ends in its size"))?;
        let size_bytes = u32::from_le_bytes(*size_bytes) as usize;
        let (trie, replacements) = rest.split_at_checked(size_bytes).ok_or(malformed("it ends in its trie"))?;
        let (units, odd) = trie.as_chunks::<4>();
        if units.is_empty() || !odd.is_empty() {
            return Err(malformed("its trie is no sequence of 32-bit units"));
        }
        let replacements =
            String::from_utf8(replacements.to_vec()).map_err(|_| malformed("its replacements are no valid UTF-8"))?;
        let units: Vec<u32> = units.iter().map(|unit| u32::from_le_bytes(*unit)).collect();
        let map = Self { units, replacements };
        let mut values = map.units.iter().filter(|&&unit| unit & VALUE != 0);
        if values.any(|&unit| map.replacement(unit).is_none()) {
            return Err(malformed("a key of its trie has no replacement, or one of more than 255 bytes"));
        }
        Ok(map)
    }

    /// The longest prefix of `text` that is rewritten: its length in bytes, and what it becomes.
    pub(super) fn longest_prefix(&self, text: &str) -> Option<(usize, &str)> {
        let mut longest = None;
        let mut at = offset(*self.units.first()?);
        for (i, byte) in text.bytes().enumerate() {
            at ^= u32::from(byte);
            let Some(&unit) = self.units.get(at as usize).filter(|&&unit| label(unit) == u32::from(byte)) else {
                break;
            };
            at ^= offset(unit);
            if has_value(unit)
                && text.is_char_boundary(i + 1)
                && let Some(replacement) = self.units.get(at as usize).and_then(|&unit| self.replacement(unit))
            {
                longest = Some((i + 1, replacement));
            }
        }
        longest
    }

    fn replacement(&self, value: u32) -> Option<&str> {
        let text = self.replacements.get((value & !VALUE) as usize..)?;
        let length = text.bytes().take(MOST_REPLACEMENT_BYTES + 1).position(|byte| byte == 0)?;
        Some(&text[..length])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_read_as_they_are_packed() {
        assert_eq!(offset(5 << 10 | 1 << 8 | 0x41), 5);
        assert_eq!(offset(5 << 10 | 1 << 9 | 0x41), 5 << 8);
        assert_eq!((label(5 << 10 | 1 << 8 | 0x41), has_value(5 << 10 | 1 << 8 | 0x41)), (0x41, true));
        assert_eq!((label(VALUE | 0x41), has_value(0x41)), (VALUE | 0x41, false));
    }
}
