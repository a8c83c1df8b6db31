//! The metadata table: typed access by key.
//!
//! All keys and strings lie in one arena. It is filled from the file while parsing, so that the table neither borrows the
//! file nor notices when somebody changes it later.

use std::ops::Range;

use super::KEY_LIMIT_BYTES;
use super::cursor::Cursor;
use super::error::{GgufError, excerpt};
use super::value::{ARRAY_ID, Number, Numbers, Strings, ValueKind, ValueRef, ValueType};
use crate::name_index::NameIndex;

/// The least that an entry takes in a file: a key of one byte, the type, a value of one byte.
pub(super) const LEAST_ENTRY_BYTES: u64 = 8 + 1 + 4 + 1;

/// The metadata of a GGUF file.
///
/// Getters ask for one type and say what they found instead. Integer getters accept every integer type of the format
/// whose value fits; float getters accept both widths.
#[derive(Clone, Debug, Default)]
pub struct Metadata {
    arena: String,
    entries: Vec<Entry>,
    index: NameIndex,
}

#[derive(Clone, Debug)]
struct Entry {
    key: Span,
    value: Stored,
    /// Where key, type and value lie in the file.
    place: Range<u64>,
}

/// A range of the arena.
#[derive(Clone, Copy, Debug)]
struct Span {
    start: usize,
    end: usize,
}

#[derive(Clone, Debug)]
enum Stored {
    Number(ValueType, Number),
    Text(Span),
    Numbers(ValueType, Box<[u8]>),
    /// `ends` are relative to the start of `text`.
    Texts {
        text: Span,
        ends: Box<[usize]>,
    },
}

impl Metadata {
    /// The number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether the file has this key.
    #[must_use]
    pub fn contains(&self, key: &str) -> bool {
        self.entry(key).is_some()
    }

    /// All keys and values, in the order of the file.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, ValueRef<'_>)> {
        self.entries.iter().map(|entry| (self.text(entry.key), self.view(&entry.value)))
    }

    /// All keys, and where their entries (key, type and value) lie in the file that was parsed, in its order.
    pub fn places(&self) -> impl ExactSizeIterator<Item = (&str, Range<u64>)> {
        self.entries.iter().map(|entry| (self.text(entry.key), entry.place.clone()))
    }

    /// The value of `key`, whatever its type.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<ValueRef<'_>> {
        self.entry(key).map(|entry| self.view(&entry.value))
    }

    /// The type of the value of `key`.
    #[must_use]
    pub fn kind(&self, key: &str) -> Option<ValueKind> {
        self.entry(key).map(|entry| entry.value.kind())
    }

    /// The integer `key` as `u32`.
    ///
    /// # Errors
    /// `MissingKey`, `WrongType`, or `OutOfRange` where the value does not fit.
    pub fn get_u32(&self, key: &str) -> Result<u32, GgufError> {
        self.integer(key, "a u32")
    }

    /// The integer `key` as `u64`.
    ///
    /// # Errors
    /// `MissingKey`, `WrongType`, or `OutOfRange` where the value does not fit.
    pub fn get_u64(&self, key: &str) -> Result<u64, GgufError> {
        self.integer(key, "a u64")
    }

    /// The integer `key` as `i64`.
    ///
    /// # Errors
    /// `MissingKey`, `WrongType`, or `OutOfRange` where the value does not fit.
    pub fn get_i64(&self, key: &str) -> Result<i64, GgufError> {
        self.integer(key, "an i64")
    }

    /// The float `key` as `f32`; double precision is rounded.
    ///
    /// # Errors
    /// `MissingKey` or `WrongType`.
    pub fn get_f32(&self, key: &str) -> Result<f32, GgufError> {
        match self.stored(key)? {
            Stored::Number(_, Number::Float(value)) => Ok(*value as f32),
            other => Err(wrong_type(key, "a float", other)),
        }
    }

    /// The boolean `key`.
    ///
    /// # Errors
    /// `MissingKey` or `WrongType`.
    pub fn get_bool(&self, key: &str) -> Result<bool, GgufError> {
        match self.stored(key)? {
            Stored::Number(_, Number::Bool(value)) => Ok(*value),
            other => Err(wrong_type(key, "a boolean", other)),
        }
    }

    /// The string `key`.
    ///
    /// # Errors
    /// `MissingKey` or `WrongType`.
    pub fn get_str(&self, key: &str) -> Result<&str, GgufError> {
        match self.stored(key)? {
            Stored::Text(span) => Ok(self.text(*span)),
            other => Err(wrong_type(key, "a string", other)),
        }
    }

    /// The number of elements of the array `key`, whatever they are.
    ///
    /// # Errors
    /// `MissingKey` or `WrongType`.
    pub fn array_len(&self, key: &str) -> Result<usize, GgufError> {
        match self.stored(key)? {
            Stored::Numbers(element, bytes) => Ok(Numbers::new(*element, bytes).len()),
            Stored::Texts { ends, .. } => Ok(ends.len()),
            other => Err(wrong_type(key, "an array", other)),
        }
    }

    /// The array of strings `key`.
    ///
    /// # Errors
    /// `MissingKey` or `WrongType`.
    pub fn strings(&self, key: &str) -> Result<Strings<'_>, GgufError> {
        match self.stored(key)? {
            Stored::Texts { text, ends } => Ok(Strings::new(self.text(*text), ends)),
            other => Err(wrong_type(key, "an array of strings", other)),
        }
    }

    /// The array of integers `key`, of any width.
    ///
    /// # Errors
    /// `MissingKey` or `WrongType`.
    pub fn integers(&self, key: &str) -> Result<impl Iterator<Item = i128> + Clone + '_, GgufError> {
        let numbers = self.numbers(key, ValueType::is_integer, "an array of integers")?;
        Ok(numbers.iter().filter_map(|number| match number {
            Number::Integer(value) => Some(value),
            _ => None,
        }))
    }

    /// The array of floats `key`, of any width.
    ///
    /// # Errors
    /// `MissingKey` or `WrongType`.
    pub fn floats(&self, key: &str) -> Result<impl Iterator<Item = f64> + Clone + '_, GgufError> {
        let numbers = self.numbers(key, ValueType::is_float, "an array of floats")?;
        Ok(numbers.iter().filter_map(|number| match number {
            Number::Float(value) => Some(value),
            _ => None,
        }))
    }

    fn numbers(
        &self,
        key: &str,
        accept: impl Fn(ValueType) -> bool,
        expected: &'static str,
    ) -> Result<Numbers<'_>, GgufError> {
        match self.stored(key)? {
            Stored::Numbers(element, bytes) if accept(*element) => Ok(Numbers::new(*element, bytes)),
            other => Err(wrong_type(key, expected, other)),
        }
    }

    fn integer<T: TryFrom<i128>>(&self, key: &str, expected: &'static str) -> Result<T, GgufError> {
        match self.stored(key)? {
            Stored::Number(_, Number::Integer(value)) => {
                T::try_from(*value).map_err(|_| GgufError::OutOfRange { key: excerpt(key), value: *value, expected })
            }
            other => Err(wrong_type(key, expected, other)),
        }
    }

    fn entry(&self, key: &str) -> Option<&Entry> {
        let position = self.index.find(key, |position| self.key(position))?;
        self.entries.get(position as usize)
    }

    fn stored(&self, key: &str) -> Result<&Stored, GgufError> {
        self.entry(key).map(|entry| &entry.value).ok_or_else(|| GgufError::MissingKey { key: excerpt(key) })
    }

    fn key(&self, position: u32) -> &str {
        self.text(self.entries[position as usize].key)
    }

    fn text(&self, span: Span) -> &str {
        &self.arena[span.start..span.end]
    }

    fn view<'a>(&'a self, value: &'a Stored) -> ValueRef<'a> {
        match value {
            Stored::Number(_, number) => ValueRef::Number(*number),
            Stored::Text(span) => ValueRef::Str(self.text(*span)),
            Stored::Numbers(element, bytes) => ValueRef::Numbers(Numbers::new(*element, bytes)),
            Stored::Texts { text, ends } => ValueRef::Strings(Strings::new(self.text(*text), ends)),
        }
    }
}

impl Stored {
    fn kind(&self) -> ValueKind {
        match self {
            Self::Number(ty, _) => ValueKind::Scalar(*ty),
            Self::Text(_) => ValueKind::Scalar(ValueType::String),
            Self::Numbers(element, bytes) => {
                ValueKind::Array { element: *element, length: Numbers::new(*element, bytes).len() as u64 }
            }
            Self::Texts { ends, .. } => ValueKind::Array { element: ValueType::String, length: ends.len() as u64 },
        }
    }
}

fn wrong_type(key: &str, expected: &'static str, found: &Stored) -> GgufError {
    GgufError::WrongType { key: excerpt(key), expected, found: found.kind() }
}

/// Parsing.
impl Metadata {
    /// Reads `count` entries.
    pub(super) fn read(cursor: &mut Cursor<'_>, count: u64) -> Result<Self, GgufError> {
        let mut metadata = Self::default();
        for entry in 0..count {
            metadata.read_entry(cursor, entry)?;
        }
        Ok(metadata)
    }

    fn read_entry(&mut self, cursor: &mut Cursor<'_>, entry: u64) -> Result<(), GgufError> {
        let start = cursor.offset();
        let length = cursor.u64("a metadata key")?;
        if length == 0 {
            return Err(GgufError::EmptyKey { index: entry });
        }
        if length >= KEY_LIMIT_BYTES {
            return Err(GgufError::KeyTooLong { index: entry, length });
        }
        let key = cursor.text(length, "a metadata key")?;
        if self.contains(key) {
            return Err(GgufError::DuplicateKey { key: excerpt(key) });
        }
        let value = self.read_value(cursor, key)?;
        let span = self.store(key)?;
        let position = u32::try_from(self.entries.len()).map_err(|_| GgufError::CountTooLarge {
            what: "metadata entries",
            count: entry,
            most: u32::MAX.into(),
            left: cursor.left(),
        })?;
        self.entries.push(Entry { key: span, value, place: start..cursor.offset() });
        let Self { arena, entries, index } = self;
        let key_of = |position: u32| {
            let span = entries[position as usize].key;
            &arena[span.start..span.end]
        };
        index.insert(key, position, key_of).map_err(|_| GgufError::DuplicateKey { key: excerpt(key) })
    }

    fn read_value(&mut self, cursor: &mut Cursor<'_>, key: &str) -> Result<Stored, GgufError> {
        match cursor.u32("the type of a metadata value")? {
            ARRAY_ID => self.read_array(cursor, key),
            id => match value_type(id, key)? {
                ValueType::String => Ok(Stored::Text(self.store(cursor.string("a metadata string")?)?)),
                ty => {
                    let bytes = cursor.take(ty.size_bytes(), "a metadata value")?;
                    check_bools(ty, bytes, key)?;
                    Ok(Stored::Number(ty, ty.number(bytes)))
                }
            },
        }
    }

    fn read_array(&mut self, cursor: &mut Cursor<'_>, key: &str) -> Result<Stored, GgufError> {
        let element = match cursor.u32("the element type of a metadata array")? {
            ARRAY_ID => return Err(GgufError::NestedArray { key: excerpt(key) }),
            id => value_type(id, key)?,
        };
        let length = cursor.u64("the length of a metadata array")?;
        cursor.check_count(length, element.size_bytes(), "elements of a metadata array")?;
        if element == ValueType::String {
            return self.read_strings(cursor, length);
        }
        // `check_count` bounds the product by the length of the file.
        let bytes = cursor.take(length.saturating_mul(element.size_bytes()), "a metadata array")?;
        check_bools(element, bytes, key)?;
        let mut owned = Vec::new();
        reserve(owned.try_reserve_exact(bytes.len()), bytes.len() as u64)?;
        owned.extend_from_slice(bytes);
        Ok(Stored::Numbers(element, owned.into_boxed_slice()))
    }

    fn read_strings(&mut self, cursor: &mut Cursor<'_>, length: u64) -> Result<Stored, GgufError> {
        let start = self.arena.len();
        let mut ends = Vec::new();
        // At most the bytes that the length prefixes take in the file.
        reserve(ends.try_reserve_exact(usize::try_from(length).unwrap_or(usize::MAX)), length.saturating_mul(8))?;
        for _ in 0..length {
            self.store(cursor.string("a string of a metadata array")?)?;
            ends.push(self.arena.len() - start);
        }
        Ok(Stored::Texts { text: Span { start, end: self.arena.len() }, ends: ends.into_boxed_slice() })
    }

    /// Copies `text` into the arena.
    fn store(&mut self, text: &str) -> Result<Span, GgufError> {
        let start = self.arena.len();
        reserve(self.arena.try_reserve(text.len()), text.len() as u64)?;
        self.arena.push_str(text);
        Ok(Span { start, end: self.arena.len() })
    }
}

fn reserve(result: Result<(), std::collections::TryReserveError>, bytes: u64) -> Result<(), GgufError> {
    result.map_err(|_| GgufError::OutOfMemory { what: "metadata", bytes })
}

fn value_type(id: u32, key: &str) -> Result<ValueType, GgufError> {
    ValueType::from_id(id).ok_or_else(|| GgufError::UnknownValueType { key: excerpt(key), id })
}

fn check_bools(ty: ValueType, bytes: &[u8], key: &str) -> Result<(), GgufError> {
    match bytes.iter().find(|&&byte| byte > 1) {
        Some(&found) if ty == ValueType::Bool => Err(GgufError::InvalidBool { key: excerpt(key), found }),
        _ => Ok(()),
    }
}
