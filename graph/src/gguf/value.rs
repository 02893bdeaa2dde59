//! Metadata values, as they stand in the file, and what they may be read as.

use super::reader::Reader;
use super::types::ValueType;
use crate::error::{FormatError, Quoted};
use std::marker::PhantomData;

/// A metadata value. Strings and arrays borrow from the file.
#[derive(Clone)]
pub enum Value<'a> {
    /// Unsigned, 8 bits.
    U8(u8),
    /// Signed, 8 bits.
    I8(i8),
    /// Unsigned, 16 bits.
    U16(u16),
    /// Signed, 16 bits.
    I16(i16),
    /// Unsigned, 32 bits.
    U32(u32),
    /// Signed, 32 bits.
    I32(i32),
    /// Single precision.
    F32(f32),
    /// Truth.
    Bool(bool),
    /// Text.
    Str(&'a str),
    /// Values of one type.
    Array(Array<'a>),
    /// Unsigned, 64 bits.
    U64(u64),
    /// Signed, 64 bits.
    I64(i64),
    /// Double precision.
    F64(f64),
}

impl Value<'_> {
    /// The value as an integer, if it is one.
    fn integer(&self) -> Option<i128> {
        Some(match *self {
            Value::U8(v) => v.into(),
            Value::I8(v) => v.into(),
            Value::U16(v) => v.into(),
            Value::I16(v) => v.into(),
            Value::U32(v) => v.into(),
            Value::I32(v) => v.into(),
            Value::U64(v) => v.into(),
            Value::I64(v) => v.into(),
            _ => return None,
        })
    }
}

/// The value with its type, as a table or a message shows it; long strings are cut, arrays are counted.
impl std::fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Value::U8(v) => write!(f, "u8 {v}"),
            Value::I8(v) => write!(f, "i8 {v}"),
            Value::U16(v) => write!(f, "u16 {v}"),
            Value::I16(v) => write!(f, "i16 {v}"),
            Value::U32(v) => write!(f, "u32 {v}"),
            Value::I32(v) => write!(f, "i32 {v}"),
            Value::F32(v) => write!(f, "f32 {v}"),
            Value::Bool(v) => write!(f, "bool {v}"),
            Value::Str(v) => write!(f, "string \"{}\"", Quoted(v)),
            Value::Array(v) => write!(f, "array of {} {}", v.count, v.element.name()),
            Value::U64(v) => write!(f, "u64 {v}"),
            Value::I64(v) => write!(f, "i64 {v}"),
            Value::F64(v) => write!(f, "f64 {v}"),
        }
    }
}

/// An array of metadata, read from the file element by element.
#[derive(Clone)]
pub struct Array<'a> {
    pub(super) element: ValueType,
    pub(super) count: u64,
    pub(super) label: &'a str,
    pub(super) nesting: u32,
    pub(super) elements: Reader<'a>,
}

impl<'a> Array<'a> {
    /// Type of the elements.
    pub fn element_type(&self) -> ValueType {
        self.element
    }

    /// Number of elements.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The elements as `T`.
    pub fn list<T: FromValue<'a>>(self) -> List<'a, T> {
        List { next: 0, array: self, as_type: PhantomData }
    }
}

/// Iterator over the elements of an [`Array`]. It ends after the first error.
pub struct List<'a, T> {
    array: Array<'a>,
    next: u64,
    as_type: PhantomData<T>,
}

impl<T> List<'_, T> {
    /// Elements in all.
    pub fn count_all(&self) -> u64 {
        self.array.count
    }
}

impl<'a, T: FromValue<'a>> Iterator for List<'a, T> {
    type Item = Result<T, FormatError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.next >= self.array.count {
            return None;
        }
        let number = self.next;
        self.next += 1;
        let Array { element, count, label, nesting, elements } = &mut self.array;
        let what = format_args!("element {number} of {count} of metadata {}", Quoted(label));
        // The array was checked when the file was opened; a file that changed since may still fail here.
        let item = elements.nested_value(*element, label, *nesting, what).and_then(|value| {
            T::from_value(value.clone()).ok_or_else(|| FormatError::WrongType {
                file: elements.file().to_owned(),
                key: format!("{}[{number}]", Quoted(label)),
                expected: T::EXPECTED,
                found: value.to_string(),
            })
        });
        if item.is_err() {
            self.next = self.array.count;
        }
        Some(item)
    }
}

/// What a metadata value may be read as. Integers of any width convert where they fit.
pub trait FromValue<'a>: Sized {
    /// What messages call the type.
    const EXPECTED: &'static str;

    /// The value as this type, or `None` if it is of another kind or does not fit.
    fn from_value(value: Value<'a>) -> Option<Self>;
}

macro_rules! integers {
    ($($type:ty: $expected:literal)*) => {$(
        impl FromValue<'_> for $type {
            const EXPECTED: &'static str = $expected;

            fn from_value(value: Value<'_>) -> Option<Self> {
                <$type>::try_from(value.integer()?).ok()
            }
        }
    )*};
}

integers! {
    u32: "an unsigned 32-bit integer"
    i32: "a signed 32-bit integer"
    u64: "an unsigned 64-bit integer"
}

impl FromValue<'_> for f32 {
    const EXPECTED: &'static str = "a floating-point number";

    fn from_value(value: Value<'_>) -> Option<Self> {
        match value {
            Value::F32(v) => Some(v),
            Value::F64(v) => Some(v as f32),
            _ => None,
        }
    }
}

impl FromValue<'_> for bool {
    const EXPECTED: &'static str = "a bool";

    fn from_value(value: Value<'_>) -> Option<Self> {
        match value {
            Value::Bool(v) => Some(v),
            _ => None,
        }
    }
}

impl<'a> FromValue<'a> for &'a str {
    const EXPECTED: &'static str = "a string";

    fn from_value(value: Value<'a>) -> Option<Self> {
        match value {
            Value::Str(v) => Some(v),
            _ => None,
        }
    }
}

impl<'a> FromValue<'a> for Array<'a> {
    const EXPECTED: &'static str = "an array";

    fn from_value(value: Value<'a>) -> Option<Self> {
        match value {
            Value::Array(v) => Some(v),
            _ => None,
        }
    }
}
