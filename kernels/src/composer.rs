//! Composers: functions that compose the source of a kernel for weights of one tensor type. They are plain
//! function pointers, so the table of variants can store them. This module does not depend on particular
//! sources.

use ragtag_hal::KernelLanguage;
use std::sync::Arc;

/// Composes a source in the given language.
pub(crate) type Compose = fn(KernelLanguage) -> Arc<str>;

/// Returns a [`Compose`] that calls `$compose(language, tensor_type)`. The tensor type is known at compile
/// time.
macro_rules! composer {
    ($tensor_type:expr, $compose:expr) => {
        $crate::types::each_type!(composer $tensor_type, $compose;)
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
