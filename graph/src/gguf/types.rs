//! Type numbers of metadata values and tensors in GGUF files. Also names unsupported tensor types, for error
//! messages.
//!
//! Value types follow the GGUF specification. Tensor types follow ggml's type table.

/// Returns the name of the ggml tensor type with number `id`, even if Ragtag does not support the type.
/// Returns `None` if ggml has not assigned the number.
pub fn tensor_type_name(id: u32) -> Option<&'static str> {
    /// Names of tensor types, indexed by number. Types that ggml has removed keep their former names.
    const NAMES: &str = "F32 F16 Q4_0 Q4_1 Q4_2 Q4_3 Q5_0 Q5_1 Q8_0 Q8_1 Q2_K Q3_K Q4_K Q5_K Q6_K Q8_K IQ2_XXS \
        IQ2_XS IQ3_XXS IQ1_S IQ4_NL IQ3_S IQ2_S IQ4_XS I8 I16 I32 I64 F64 IQ1_M BF16 Q4_0_4_4 \
        Q4_0_4_8 Q4_0_8_8 TQ1_0 TQ2_0 IQ4_NL_4_4 IQ4_NL_4_8 IQ4_NL_8_8 MXFP4 NVFP4 Q1_0";
    NAMES.split(' ').nth(usize::try_from(id).ok()?)
}

/// Type of a metadata value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ValueType {
    /// Unsigned 8-bit integer.
    U8,
    /// Signed 8-bit integer.
    I8,
    /// Unsigned 16-bit integer.
    U16,
    /// Signed 16-bit integer.
    I16,
    /// Unsigned 32-bit integer.
    U32,
    /// Signed 32-bit integer.
    I32,
    /// Single-precision float.
    F32,
    /// One byte: 0 or 1.
    Bool,
    /// UTF-8 text, preceded by its length.
    Str,
    /// Elements of one type, preceded by the type and the number of elements.
    Array,
    /// Unsigned 64-bit integer.
    U64,
    /// Signed 64-bit integer.
    I64,
    /// Double-precision float.
    F64,
}

/// Types in the order of their numbers, each with its name and the size of its values in bytes. The size is
/// `None` if it varies.
const TYPES: [(ValueType, &str, Option<u64>); 13] = [
    (ValueType::U8, "u8", Some(1)),
    (ValueType::I8, "i8", Some(1)),
    (ValueType::U16, "u16", Some(2)),
    (ValueType::I16, "i16", Some(2)),
    (ValueType::U32, "u32", Some(4)),
    (ValueType::I32, "i32", Some(4)),
    (ValueType::F32, "f32", Some(4)),
    (ValueType::Bool, "bool", Some(1)),
    (ValueType::Str, "string", None),
    (ValueType::Array, "array", None),
    (ValueType::U64, "u64", Some(8)),
    (ValueType::I64, "i64", Some(8)),
    (ValueType::F64, "f64", Some(8)),
];

impl ValueType {
    /// Returns the type's number in GGUF files.
    pub fn gguf_id(self) -> u32 {
        self as u32
    }

    /// Returns the type whose number is `id`.
    pub fn from_gguf_id(id: u32) -> Option<Self> {
        TYPES.get(usize::try_from(id).ok()?).map(|(value_type, ..)| *value_type)
    }

    /// Returns the type's lower-case name, for messages.
    pub fn name(self) -> &'static str {
        TYPES[self as usize].1
    }

    /// Returns the size of a value in bytes, or `None` for types of variable size.
    pub(crate) fn fixed_bytes(self) -> Option<u64> {
        TYPES[self as usize].2
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ragtag_kernels::TensorType;

    #[test]
    fn names_agree_with_the_supported_types() {
        for t in TensorType::in_gguf() {
            assert_eq!(tensor_type_name(t.gguf_id()), Some(t.name()));
        }
        assert_eq!(tensor_type_name(16), Some("IQ2_XXS"));
        assert_eq!(tensor_type_name(39), Some("MXFP4"));
        assert_eq!(tensor_type_name(42), None);
        assert_eq!(tensor_type_name(u32::MAX), None);
    }

    #[test]
    fn value_types_have_the_numbers_of_the_format() {
        for (id, (t, ..)) in (0..).zip(TYPES) {
            assert_eq!((ValueType::from_gguf_id(id), t.gguf_id()), (Some(t), id));
        }
        assert_eq!(ValueType::F64.gguf_id(), 12);
        assert_eq!(ValueType::from_gguf_id(13), None);
    }
}
