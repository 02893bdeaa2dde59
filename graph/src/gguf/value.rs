//! Metadata values and their conversion to Rust types.

use super::reader::Reader;
use super::types::ValueType;
use crate::error::{FormatError, Quoted};
use std::marker::PhantomData;

/// A metadata value. Strings and arrays borrow from the file.
#[derive(Clone)]
pub enum Value<'a> {
    /// Unsigned 8-bit integer.
    U8(u8),
    /// Signed 8-bit integer.
    I8(i8),
    /// Unsigned 16-bit integer.
    U16(u16),
    /// Signed 16-bit integer.
    I16(i16),
    /// Unsigned 32-bit integer.
    U32(u32),
    /// Signed 32-bit integer.
    I32(i32),
    /// Single-precision float.
    F32(f32),
    /// Boolean.
    Bool(bool),
    /// UTF-8 text.
    Str(&'a str),
    /// Elements of one type.
    Array(Array<'a>),
    /// Unsigned 64-bit integer.
    U64(u64),
    /// Signed 64-bit integer.
    I64(i64),
    /// Double-precision float.
    F64(f64),
}

impl Value<'_> {
    /// Returns the value if it is an integer.
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

/// Formats the value with its type for tables and messages. Truncates long strings. For an array, shows only
/// the element type and the length.
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

/// An array in the metadata. Its elements are read from the file on demand.
#[derive(Clone)]
pub struct Array<'a> {
    pub(super) element: ValueType,
    pub(super) count: u64,
    pub(super) label: &'a str,
    pub(super) nesting: u32,
    pub(super) elements: Reader<'a>,
}

impl<'a> Array<'a> {
    /// Returns the type of the elements.
    pub fn element_type(&self) -> ValueType {
        self.element
    }

    /// Returns the number of elements.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns an iterator that converts each element to `T`.
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
    /// Returns the number of elements in the array, including those already returned.
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
        // The array was checked when the file was opened, so this fails only if the file has changed.
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

/// Rust type to which a metadata value can be converted. An integer converts to any integer type that can
/// hold it.
pub trait FromValue<'a>: Sized {
    /// Name of the type in error messages.
    const EXPECTED: &'static str;

    /// Converts `value`. Returns `None` if it has a different type or does not fit.
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
    u8: "an unsigned 8-bit integer"
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
