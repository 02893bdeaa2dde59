//! Metadata values and their conversion to Rust types.

use super::reader::Reader;
use super::types::ValueType;
use crate::error::{FormatError, Quoted};
use std::fmt::Arguments;
use std::marker::PhantomData;

/// Maximum nesting depth of arrays.
const MAX_NESTING: u32 = 4;

/// A metadata value. Strings and arrays borrow from the file.
#[derive(Clone)]
pub enum Value<'a> {
    /// Integer of this type.
    Integer(ValueType, i128),
    /// Single-precision float.
    F32(f32),
    /// Double-precision float.
    F64(f64),
    /// Boolean.
    Bool(bool),
    /// UTF-8 text.
    Str(&'a str),
    /// Elements of one type.
    Array(Array<'a>),
}

/// Formats the value with its type for tables and messages. Truncates long strings. For an array, shows only
/// the element type and the length.
impl std::fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Value::Integer(kind, v) => write!(f, "{} {v}", kind.name()),
            Value::F32(v) => write!(f, "f32 {v}"),
            Value::F64(v) => write!(f, "f64 {v}"),
            Value::Bool(v) => write!(f, "bool {v}"),
            Value::Str(v) => write!(f, "string \"{}\"", Quoted(v)),
            Value::Array(v) => write!(f, "array of {} {}", v.count, v.element.name()),
        }
    }
}

/// An array in the metadata. Its elements are parsed on demand.
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

impl<'a> Reader<'a> {
    /// Reads a metadata value of type `kind`. `label` is the key of the value, for messages.
    pub(crate) fn value(&mut self, kind: ValueType, label: &'a str) -> Result<Value<'a>, FormatError> {
        self.nested_value(kind, label, 0, format_args!("the value of metadata {}", Quoted(label)))
    }

    /// Reads a value that is nested in `nesting` arrays.
    pub(crate) fn nested_value(
        &mut self,
        kind: ValueType,
        label: &'a str,
        nesting: u32,
        what: Arguments<'_>,
    ) -> Result<Value<'a>, FormatError> {
        let integer = match kind {
            ValueType::U8 => u8::from_le_bytes(self.fixed(what)?).into(),
            ValueType::I8 => i8::from_le_bytes(self.fixed(what)?).into(),
            ValueType::U16 => u16::from_le_bytes(self.fixed(what)?).into(),
            ValueType::I16 => i16::from_le_bytes(self.fixed(what)?).into(),
            ValueType::U32 => self.u32(what)?.into(),
            ValueType::I32 => i32::from_le_bytes(self.fixed(what)?).into(),
            ValueType::U64 => self.u64(what)?.into(),
            ValueType::I64 => i64::from_le_bytes(self.fixed(what)?).into(),
            ValueType::F32 => return Ok(Value::F32(f32::from_le_bytes(self.fixed(what)?))),
            ValueType::F64 => return Ok(Value::F64(f64::from_le_bytes(self.fixed(what)?))),
            ValueType::Str => return Ok(Value::Str(self.string(what)?)),
            ValueType::Array => return Ok(Value::Array(self.array(label, nesting, what)?)),
            ValueType::Bool => {
                let at = self.at();
                return match self.fixed::<1>(what)? {
                    [0] => Ok(Value::Bool(false)),
                    [1] => Ok(Value::Bool(true)),
                    [other] => Err(self.invalid(at, what, format!("a bool is 0 or 1, not {other}"))),
                };
            }
        };
        Ok(Value::Integer(kind, integer))
    }

    /// Checks an array and all its elements. Returns an [`Array`] that reads the elements on demand.
    fn array(&mut self, label: &'a str, nesting: u32, what: Arguments<'_>) -> Result<Array<'a>, FormatError> {
        let start = self.at();
        if nesting >= MAX_NESTING {
            return Err(self.invalid(start, what, format!("arrays are nested deeper than {MAX_NESTING}")));
        }
        let element = self.value_type(format_args!("the element type of {what}"))?;
        let count = self.u64(format_args!("the count of {what}"))?;
        let elements = self.clone();
        match element.fixed_bytes() {
            // All byte patterns are valid numbers, so only the count needs a check.
            Some(bytes) if element != ValueType::Bool => {
                let all = count.checked_mul(bytes).ok_or_else(|| {
                    self.invalid(
                        start,
                        what,
                        format!("{count} elements of {bytes} bytes are more than a file can hold"),
                    )
                })?;
                self.take(all, format_args!("{count} elements of {what}"))?;
            }
            // Elements of the other types take at least one byte each, so the number of bytes bounds this
            // loop.
            _ => {
                for number in 0..count {
                    let what = format_args!("element {number} of {count} of {what}");
                    self.nested_value(element, label, nesting + 1, what)?;
                }
            }
        }
        Ok(Array { element, count, label, nesting: nesting + 1, elements })
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
                if let Value::Integer(_, v) = value { v.try_into().ok() } else { None }
            }
        }
    )*};
}

integers! {
    u8: "an unsigned 8-bit integer"
    u32: "an unsigned 32-bit integer"
    i32: "a signed 32-bit integer"
    u64: "an unsigned 64-bit integer"
    i128: "an integer"
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
        if let Value::Bool(v) = value { Some(v) } else { None }
    }
}

impl<'a> FromValue<'a> for &'a str {
    const EXPECTED: &'static str = "a string";

    fn from_value(value: Value<'a>) -> Option<Self> {
        if let Value::Str(v) = value { Some(v) } else { None }
    }
}

impl<'a> FromValue<'a> for Array<'a> {
    const EXPECTED: &'static str = "an array";

    fn from_value(value: Value<'a>) -> Option<Self> {
        if let Value::Array(v) = value { Some(v) } else { None }
    }
}
