//! How byte-level vocabularies spell bytes.
//!
//! Token texts must be printable, so that every byte is written as one character: the printable characters of Latin-1
//! stand for their own code, all other bytes for the characters from U+0100 on, in order. A space is `Ġ`, a newline `Ċ`.

/// Whether the byte is written as the character of the same code.
const fn is_own(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)
}

/// The character of every byte.
const CHARS: [char; 256] = {
    let mut chars = ['\0'; 256];
    let mut next = 0x100u32;
    let mut code = 0;
    while code < 256 {
        if is_own(code as u8) {
            chars[code] = code as u8 as char;
        } else {
            if let Some(char) = char::from_u32(next) {
                chars[code] = char;
            }
            next += 1;
        }
        code += 1;
    }
    chars
};

/// The bytes of the characters from U+0100 on.
const SHIFTED: [u8; 68] = {
    let mut bytes = [0; 68];
    let mut next = 0;
    let mut code = 0;
    while code < 256 {
        if !is_own(code as u8) {
            bytes[next] = code as u8;
            next += 1;
        }
        code += 1;
    }
    bytes
};

/// The character that stands for `byte`.
pub(super) fn char_of(byte: u8) -> char {
    CHARS[byte as usize]
}

/// The byte that `char` stands for.
pub(super) fn byte_of(char: char) -> Option<u8> {
    match u8::try_from(char) {
        Ok(byte) => is_own(byte).then_some(byte),
        Err(_) => SHIFTED.get((char as usize).checked_sub(0x100)?).copied(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_its_own_printable_character() {
        let mut seen = std::collections::HashSet::new();
        for byte in 0..=u8::MAX {
            let char = char_of(byte);
            assert!(seen.insert(char) && !char.is_control() && !char.is_whitespace(), "{byte:#x} {char:?}");
            assert_eq!(byte_of(char), Some(byte));
        }
        assert_eq!((char_of(b' '), char_of(b'\n'), char_of(0xAD)), ('Ġ', 'Ċ', 'Ń'));
        assert_eq!([' ', '\u{AD}', '\u{144}', '東'].map(byte_of), [None; 4]);
    }
}
