//! Parameter values: how each prints, parses and enters a plan's key.

use crate::{
    dtype::DType,
    shape::{MAX_DIMS, Shape, Strides},
};

/// A parameter's value. Implemented for the few types that op parameters have.
pub trait OpParam {
    /// What a constructor takes for it.
    type Arg;
    /// The text form in words, for messages: "a number, such as 0.5".
    const FORM: &'static str;
    /// The parameter from what a constructor was given.
    fn from_arg(arg: Self::Arg) -> Self
    where
        Self: Sized;
    /// The text form; `None` for an absent optional value.
    fn text(&self) -> Option<String>;
    /// Reads the text form.
    fn parse(text: &str) -> Option<Self>
    where
        Self: Sized;
    /// Appends what identifies the value to a plan key.
    fn key(&self, key: &mut Vec<u64>);
}

/// Why a parameter could not be set from text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParamError {
    /// The op has no such parameter.
    #[error("`{op}` has no parameter `{name}`; it has {known}")]
    Unknown {
        /// The op.
        op: &'static str,
        /// The name given.
        name: String,
        /// The names that exist.
        known: String,
    },
    /// The text is no value of the parameter's type.
    #[error("`{op}`: `{text}` is no value for `{name}`; write {expected}")]
    Value {
        /// The op.
        op: &'static str,
        /// The parameter.
        name: &'static str,
        /// The text given.
        text: String,
        /// The form expected.
        expected: &'static str,
    },
}

impl OpParam for f32 {
    type Arg = Self;
    const FORM: &str = "a number, such as 0.125 or inf";

    fn from_arg(arg: Self) -> Self {
        arg
    }

    fn text(&self) -> Option<String> {
        Some(format!("{self:?}"))
    }

    fn parse(text: &str) -> Option<Self> {
        match text {
            "inf" => Some(Self::INFINITY),
            "-inf" => Some(Self::NEG_INFINITY),
            _ => text.parse().ok().filter(|v: &Self| v.is_finite()),
        }
    }

    fn key(&self, key: &mut Vec<u64>) {
        key.push(u64::from(self.to_bits()));
    }
}

impl OpParam for u64 {
    type Arg = Self;
    const FORM: &str = "a whole number, such as 128 or 4K";

    fn from_arg(arg: Self) -> Self {
        arg
    }

    fn text(&self) -> Option<String> {
        Some(self.to_string())
    }

    fn parse(text: &str) -> Option<Self> {
        parse_number(text)
    }

    fn key(&self, key: &mut Vec<u64>) {
        key.push(*self);
    }
}

impl OpParam for u32 {
    type Arg = Self;
    const FORM: &str = "a whole number, such as 128 or 4K";

    fn from_arg(arg: Self) -> Self {
        arg
    }

    fn text(&self) -> Option<String> {
        Some(self.to_string())
    }

    fn parse(text: &str) -> Option<Self> {
        parse_number(text).and_then(|v| Self::try_from(v).ok())
    }

    fn key(&self, key: &mut Vec<u64>) {
        key.push(u64::from(*self));
    }
}

impl OpParam for DType {
    type Arg = Self;
    const FORM: &str = "a dtype, such as f16";

    fn from_arg(arg: Self) -> Self {
        arg
    }

    fn text(&self) -> Option<String> {
        Some(self.name().into())
    }

    fn parse(text: &str) -> Option<Self> {
        Self::from_name(text)
    }

    fn key(&self, key: &mut Vec<u64>) {
        key.push(*self as u64);
    }
}

impl OpParam for bool {
    type Arg = Self;
    const FORM: &str = "`true` or `false`";

    fn from_arg(arg: Self) -> Self {
        arg
    }

    fn text(&self) -> Option<String> {
        Some(self.to_string())
    }

    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }

    fn key(&self, key: &mut Vec<u64>) {
        key.push(u64::from(*self));
    }
}

impl OpParam for [u32; MAX_DIMS] {
    type Arg = Self;
    const FORM: &str = "four numbers, such as [0,2,1,3]";

    fn from_arg(arg: Self) -> Self {
        arg
    }

    fn text(&self) -> Option<String> {
        Some(format!("[{},{},{},{}]", self[0], self[1], self[2], self[3]))
    }

    fn parse(text: &str) -> Option<Self> {
        let values = parse_list(text)?;
        let values: Vec<u32> = values.into_iter().map(|v| u32::try_from(v).ok()).collect::<Option<_>>()?;
        values.try_into().ok()
    }

    fn key(&self, key: &mut Vec<u64>) {
        key.extend(self.iter().map(|&v| u64::from(v)));
    }
}

impl OpParam for [i32; MAX_DIMS] {
    type Arg = Self;
    const FORM: &str = "four whole numbers, such as [0,-1,0,0]";

    fn from_arg(arg: Self) -> Self {
        arg
    }

    fn text(&self) -> Option<String> {
        Some(format!("[{},{},{},{}]", self[0], self[1], self[2], self[3]))
    }

    fn parse(text: &str) -> Option<Self> {
        let inner = text.strip_prefix('[')?.strip_suffix(']')?;
        let values: Vec<i32> = inner.split(',').map(|v| v.trim().parse().ok()).collect::<Option<_>>()?;
        values.try_into().ok()
    }

    fn key(&self, key: &mut Vec<u64>) {
        key.extend(self.iter().map(|&v| u64::from(v.cast_unsigned())));
    }
}

impl OpParam for Shape {
    type Arg = [u64; MAX_DIMS];
    const FORM: &str = "one to four numbers, such as [64,2]";

    fn from_arg(arg: Self::Arg) -> Self {
        Self(arg)
    }

    fn text(&self) -> Option<String> {
        Some(self.to_string())
    }

    fn parse(text: &str) -> Option<Self> {
        let dims = parse_list(text)?;
        if dims.is_empty() { None } else { Self::new(&dims) }
    }

    fn key(&self, key: &mut Vec<u64>) {
        key.extend(self.0);
    }
}

impl OpParam for Option<Strides> {
    type Arg = Option<[u64; MAX_DIMS]>;
    const FORM: &str = "the bytes of four strides, such as [4,256,512,512]";

    fn from_arg(arg: Self::Arg) -> Self {
        arg.map(Strides)
    }

    fn text(&self) -> Option<String> {
        self.map(|strides| strides.to_string())
    }

    fn parse(text: &str) -> Option<Self> {
        let strides: [u64; MAX_DIMS] = parse_list(text)?.try_into().ok()?;
        Some(Some(Strides(strides)))
    }

    fn key(&self, key: &mut Vec<u64>) {
        match self {
            Some(strides) => {
                key.push(1);
                key.extend(strides.0);
            }
            None => key.push(0),
        }
    }
}

/// A number, with `K`, `M` or `G` (×1024 each).
pub(crate) fn parse_number(text: &str) -> Option<u64> {
    let (digits, shift) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 10),
        b'M' => (&text[..text.len() - 1], 20),
        b'G' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    if !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// `[1,2,3]`, numbers as in [`parse_number`].
fn parse_list(text: &str) -> Option<Vec<u64>> {
    let inner = text.strip_prefix('[')?.strip_suffix(']')?;
    inner.split(',').map(|v| parse_number(v.trim())).collect()
}

/// Reads a number as `.graph` text writes it: digits with an optional `K`, `M` or `G` (×1024).
///
/// ```
/// assert_eq!(entensor_components::parse_size("4K"), Some(4096));
/// assert_eq!(entensor_components::parse_size("-1"), None);
/// ```
#[must_use]
pub fn parse_size(text: &str) -> Option<u64> {
    parse_number(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::UpscaleMode;

    /// Printed text parses to the value, and other texts to none.
    #[track_caller]
    fn reads<T: OpParam + PartialEq + std::fmt::Debug>(good: &[(&str, T)], bad: &[&str]) {
        for (text, value) in good {
            assert_eq!(T::parse(text).as_ref(), Some(value), "{text}");
            assert_eq!(value.text().as_deref(), Some(*text));
        }
        for text in bad {
            assert_eq!(T::parse(text), None, "{text}");
        }
    }

    #[test]
    fn texts_and_values() {
        reads(&[("true", true), ("false", false)], &["1", "True", "yes", ""]);
        reads(&[("nearest", UpscaleMode::Nearest), ("bilinear", UpscaleMode::Bilinear)], &["Nearest", "cubic", ""]);
        reads(
            &[("[0,-1,7,-2147483648]", [0, -1, 7, i32::MIN])],
            &["[0,1,2]", "[0,1,2,3,4]", "[0,1,2,2147483648]", "0,1,2,3", "[a,0,0,0]", "[]", "[1K,0,0,0]"],
        );
        reads(
            &[("0.5", 0.5), ("inf", f32::INFINITY), ("-inf", f32::NEG_INFINITY), ("3.4028235e38", f32::MAX)],
            &["NaN", "nan", "1e39", "infinity", "two", ""],
        );
    }

    #[test]
    fn keys_tell_values_apart() {
        let key = |value: &dyn Fn(&mut Vec<u64>)| {
            let mut key = Vec::new();
            value(&mut key);
            key
        };
        assert_ne!(key(&|k| true.key(k)), key(&|k| false.key(k)));
        assert_ne!(key(&|k| UpscaleMode::Nearest.key(k)), key(&|k| UpscaleMode::Bilinear.key(k)));
        assert_ne!(key(&|k| [0, -1, 0, 0].key(k)), key(&|k| [0, 1, 0, 0].key(k)));
    }
}
