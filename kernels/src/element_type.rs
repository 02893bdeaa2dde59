//! Types of the values in tensors of general operators.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Type of the values that a general operator accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ElementType {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// bfloat16, the upper half of an f32.
    BF16,
}

impl ElementType {
    /// All element types.
    pub const ALL: [ElementType; 3] = [ElementType::F32, ElementType::F16, ElementType::BF16];

    /// Returns the number of bytes in one value.
    pub fn bytes(self) -> u64 {
        match self {
            ElementType::F32 => 4,
            ElementType::F16 | ElementType::BF16 => 2,
        }
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ElementType::F32 => "f32",
            ElementType::F16 => "f16",
            ElementType::BF16 => "bf16",
        })
    }
}
