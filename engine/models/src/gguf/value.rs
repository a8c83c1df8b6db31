//! Metadata values: their types, views of stored ones, and owned ones for writing.

use std::fmt;

macro_rules! value_types {
    ($($variant:ident = $id:literal, $name:literal, $size:literal, $doc:literal;)+) => {
        /// The type of a metadata value, or of an array's elements.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum ValueType {
            $(#[doc = $doc] $variant = $id,)+
        }

        impl ValueType {
            /// The type with this id in a file; arrays (id 9) are no element type and have none.
            #[must_use]
            pub fn from_id(id: u32) -> Option<Self> {
                match id {
                    $($id => Some(Self::$variant),)+
                    _ => None,
                }
            }

            /// The name for messages.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }

            /// Bytes that a value takes in a file; for a string the length prefix, its least.
            #[must_use]
            pub fn size_bytes(self) -> u64 {
                match self {
                    $(Self::$variant => $size,)+
                }
            }
        }
    };
}

value_types! {
    U8 = 0, "u8", 1, "An unsigned byte.";
    I8 = 1, "i8", 1, "A signed byte.";
    U16 = 2, "u16", 2, "An unsigned 16-bit integer.";
    I16 = 3, "i16", 2, "A signed 16-bit integer.";
    U32 = 4, "u32", 4, "An unsigned 32-bit integer.";
    I32 = 5, "i32", 4, "A signed 32-bit integer.";
    F32 = 6, "f32", 4, "IEEE single precision.";
    Bool = 7, "bool", 1, "A byte that is 0 or 1.";
    String = 8, "string", 8, "A length of 64 bits and as many bytes of UTF-8.";
    U64 = 10, "u64", 8, "An unsigned 64-bit integer.";
    I64 = 11, "i64", 8, "A signed 64-bit integer.";
    F64 = 12, "f64", 8, "IEEE double precision.";
}

/// The id of arrays among the value types.
pub(super) const ARRAY_ID: u32 = 9;

impl ValueType {
    /// The id in a file.
    #[must_use]
    pub fn id(self) -> u32 {
        self as u32
    }

    /// Whether values are integers of any width.
    #[must_use]
    pub fn is_integer(self) -> bool {
        !matches!(self, Self::F32 | Self::F64 | Self::Bool | Self::String)
    }

    /// Whether values are floats of any width.
    #[must_use]
    pub fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F64)
    }

    /// Reads one number for the metadata table.
    pub(super) fn number(self, bytes: &[u8]) -> Number {
        // Callers pass exactly `size_bytes` and never a string; zero keeps a slip from becoming a panic.
        self.decode(bytes).unwrap_or(Number::Integer(0))
    }

    /// The number in `bytes`; `None` for strings and for slices of another length than the type's size.
    fn decode(self, bytes: &[u8]) -> Option<Number> {
        Some(match self {
            Self::U8 => Number::Integer(u8::from_le_bytes(bytes.try_into().ok()?).into()),
            Self::I8 => Number::Integer(i8::from_le_bytes(bytes.try_into().ok()?).into()),
            Self::U16 => Number::Integer(u16::from_le_bytes(bytes.try_into().ok()?).into()),
            Self::I16 => Number::Integer(i16::from_le_bytes(bytes.try_into().ok()?).into()),
            Self::U32 => Number::Integer(u32::from_le_bytes(bytes.try_into().ok()?).into()),
            Self::I32 => Number::Integer(i32::from_le_bytes(bytes.try_into().ok()?).into()),
            Self::U64 => Number::Integer(u64::from_le_bytes(bytes.try_into().ok()?).into()),
            Self::I64 => Number::Integer(i64::from_le_bytes(bytes.try_into().ok()?).into()),
            Self::F32 => Number::Float(f32::from_le_bytes(bytes.try_into().ok()?).into()),
            Self::F64 => Number::Float(f64::from_le_bytes(bytes.try_into().ok()?)),
            Self::Bool => Number::Bool(u8::from_le_bytes(bytes.try_into().ok()?) != 0),
            Self::String => return None,
        })
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The shape of a metadata value: one, or an array of so many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueKind {
    /// One value.
    Scalar(ValueType),
    /// An array.
    Array {
        /// The type of the elements.
        element: ValueType,
        /// The number of elements.
        length: u64,
    },
}

impl fmt::Display for ValueKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scalar(ty) => write!(f, "{ty}"),
            Self::Array { element, length } => write!(f, "an array of {length} {element}"),
        }
    }
}

/// A metadata value that is no string, whatever its width in the file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// An integer; every integer type of the format fits.
    Integer(i128),
    /// A float; single precision is widened.
    Float(f64),
    /// A boolean.
    Bool(bool),
}

/// A view of a metadata value.
#[derive(Clone, Copy, Debug)]
pub enum ValueRef<'a> {
    /// A number or a boolean.
    Number(Number),
    /// A string.
    Str(&'a str),
    /// An array of numbers or booleans.
    Numbers(Numbers<'a>),
    /// An array of strings.
    Strings(Strings<'a>),
}

/// A view of an array of numbers or booleans, kept as it lies in the file.
#[derive(Clone, Copy, Debug)]
pub struct Numbers<'a> {
    element: ValueType,
    bytes: &'a [u8],
}

impl<'a> Numbers<'a> {
    pub(super) fn new(element: ValueType, bytes: &'a [u8]) -> Self {
        Self { element, bytes }
    }

    /// The type of the elements.
    #[must_use]
    pub fn element(self) -> ValueType {
        self.element
    }

    /// The number of elements.
    #[must_use]
    pub fn len(self) -> usize {
        self.bytes.len() / self.size()
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.bytes.is_empty()
    }

    /// The element at `index`.
    #[must_use]
    pub fn get(self, index: usize) -> Option<Number> {
        let start = index.checked_mul(self.size())?;
        self.element.decode(self.bytes.get(start..start.checked_add(self.size())?)?)
    }

    /// The elements in order.
    pub fn iter(self) -> impl Iterator<Item = Number> + Clone + 'a {
        self.bytes.chunks_exact(self.size()).filter_map(move |bytes| self.element.decode(bytes))
    }

    fn size(self) -> usize {
        self.element.size_bytes() as usize
    }
}

/// A view of an array of strings.
#[derive(Clone, Copy, Debug)]
pub struct Strings<'a> {
    text: &'a str,
    ends: &'a [usize],
}

impl<'a> Strings<'a> {
    /// `ends` are the ends of the strings in `text`, in ascending order.
    pub(super) fn new(text: &'a str, ends: &'a [usize]) -> Self {
        Self { text, ends }
    }

    /// The number of strings.
    #[must_use]
    pub fn len(self) -> usize {
        self.ends.len()
    }

    /// Whether there are no strings.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.ends.is_empty()
    }

    /// The string at `index`.
    #[must_use]
    pub fn get(self, index: usize) -> Option<&'a str> {
        let end = *self.ends.get(index)?;
        let start = match index.checked_sub(1) {
            Some(previous) => *self.ends.get(previous)?,
            None => 0,
        };
        self.text.get(start..end)
    }

    /// The strings in order.
    pub fn iter(self) -> impl ExactSizeIterator<Item = &'a str> + Clone {
        let mut start = 0;
        self.ends.iter().map(move |&end| {
            let text = &self.text[start..end];
            start = end;
            text
        })
    }

    /// The bytes of all strings together.
    #[must_use]
    pub fn total_bytes(self) -> usize {
        self.text.len()
    }
}

/// An owned metadata value, made with `From` and given to [`GgufBuilder`](super::GgufBuilder).
///
/// Everything that a file can hold converts: integers, floats, booleans, strings, and vectors of them.
#[derive(Clone, Debug, PartialEq)]
pub struct GgufValue {
    pub(super) kind: ValueKind,
    /// The bytes as in a file: elements one after the other, strings with their lengths.
    pub(super) payload: Vec<u8>,
}

macro_rules! from_numbers {
    ($($ty:ty => $variant:ident),+) => {$(
        impl From<$ty> for GgufValue {
            fn from(value: $ty) -> Self {
                Self { kind: ValueKind::Scalar(ValueType::$variant), payload: value.to_le_bytes().to_vec() }
            }
        }

        impl From<Vec<$ty>> for GgufValue {
            fn from(values: Vec<$ty>) -> Self {
                let payload = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                Self { kind: ValueKind::Array { element: ValueType::$variant, length: values.len() as u64 }, payload }
            }
        }
    )+};
}

from_numbers! { u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32, u64 => U64, i64 => I64, f32 => F32, f64 => F64 }

impl From<bool> for GgufValue {
    fn from(value: bool) -> Self {
        Self { kind: ValueKind::Scalar(ValueType::Bool), payload: vec![value.into()] }
    }
}

impl From<Vec<bool>> for GgufValue {
    fn from(values: Vec<bool>) -> Self {
        let payload = values.iter().map(|&value| value.into()).collect();
        Self { kind: ValueKind::Array { element: ValueType::Bool, length: values.len() as u64 }, payload }
    }
}

impl From<&str> for GgufValue {
    fn from(value: &str) -> Self {
        let mut payload = Vec::new();
        put_string(&mut payload, value);
        Self { kind: ValueKind::Scalar(ValueType::String), payload }
    }
}

impl From<String> for GgufValue {
    fn from(value: String) -> Self {
        value.as_str().into()
    }
}

impl<S: AsRef<str>> FromIterator<S> for GgufValue {
    /// An array of strings.
    fn from_iter<I: IntoIterator<Item = S>>(values: I) -> Self {
        let mut payload = Vec::new();
        let mut length = 0;
        for value in values {
            put_string(&mut payload, value.as_ref());
            length += 1;
        }
        Self { kind: ValueKind::Array { element: ValueType::String, length }, payload }
    }
}

impl From<Vec<String>> for GgufValue {
    fn from(values: Vec<String>) -> Self {
        values.into_iter().collect()
    }
}

impl From<Vec<&str>> for GgufValue {
    fn from(values: Vec<&str>) -> Self {
        values.into_iter().collect()
    }
}

/// Appends a length and the bytes of `text`.
pub(super) fn put_string(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&(text.len() as u64).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}
