//! Composers: functions that compose a kernel's text for weights of one tensor type. They are plain function
//! pointers, so the table of variants can store them. They know nothing about the texts.

use ragtag_hal::KernelLanguage;
use std::sync::Arc;

/// Composes a text in a language.
pub(crate) type Compose = fn(KernelLanguage) -> Arc<str>;

/// Returns a [`Compose`] that calls `$compose(language, tensor_type)` for a type known at compile time.
macro_rules! composer {
    ($tensor_type:expr, $compose:expr) => {
        $crate::composer::composer!(
            $tensor_type, $compose; F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q4_K Q5_K Q6_K TQ1_0 TQ2_0
        )
    };
    ($tensor_type:expr, $compose:expr; $($name:ident)*) => {
        match $tensor_type {
            $($crate::blocks::TensorType::$name => {
                (|language| $compose(language, $crate::blocks::TensorType::$name)) as $crate::composer::Compose
            })*
        }
    };
}
pub(crate) use composer;
