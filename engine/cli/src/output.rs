//! The two streams: results on standard output, everything for people on standard error.

use std::{
    fmt,
    io::{self, Write},
};

use serde::Serialize;

use crate::error::CliError;

/// Writes a piece of the result and makes it visible at once.
pub(crate) fn print(text: &str) -> Result<(), CliError> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

/// Writes the result as one JSON value on one line.
pub(crate) fn print_json<T: Serialize>(value: &T) -> Result<(), CliError> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    serde_json::to_writer(&mut out, value)?;
    out.write_all(b"\n")?;
    out.flush()?;
    Ok(())
}

/// A line for people. That nobody can read it is no reason to stop.
pub(crate) fn note(text: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Text from a file, made safe for terminals, and cut after `limit` characters.
pub(crate) fn excerpt(text: &str, limit: usize) -> String {
    let mut short = String::new();
    for c in text.chars().take(limit) {
        match c {
            '\'' | '"' => short.push(c),
            c => short.extend(c.escape_debug()),
        }
    }
    if text.chars().nth(limit).is_some() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excerpts_are_short_and_harmless() {
        assert_eq!(excerpt("abc", 3), "abc");
        assert_eq!(excerpt("abcd", 3), "abc…");
        assert_eq!(excerpt("\u{1b}[2J\n'ä'", 9), "\\u{1b}[2J\\n'ä'");
    }
}
