//! Programs of row kernels in WGSL: a kernel's own files after those that reduce values across a group.

use super::program;
use crate::rows::ITEMS;
use std::sync::Arc;

/// Work items per group for kernels that reduce values within sub-groups. These kernels can use more work
/// items per row than other kernels.
pub(super) const SUB_GROUP_ITEMS: u32 = 1024;

/// Returns the program of a kernel whose groups do not reduce values.
macro_rules! plain {
    ($function:literal, $parts:expr) => {
        $crate::rows::Wgsl {
            function: $function,
            compose: |_| $crate::wgsl::program($crate::rows::ITEMS, &$parts),
            sub_groups: None,
        }
    };
}
pub(crate) use plain;

/// Returns the programs of a kernel, one for each method of reducing values across a group.
macro_rules! reducing {
    ($function:literal, $parts:expr) => {
        $crate::rows::Wgsl {
            function: $function,
            compose: |_| $crate::wgsl::programs::in_groups(&$parts),
            sub_groups: Some(|_| $crate::wgsl::programs::in_sub_groups(&$parts)),
        }
    };
}
pub(crate) use reducing;

pub(crate) fn in_groups(parts: &[&str]) -> Arc<str> {
    program(ITEMS, &[&[include_str!("groups.wgsl")], parts].concat())
}

pub(crate) fn in_sub_groups(parts: &[&str]) -> Arc<str> {
    program(SUB_GROUP_ITEMS, &[&[include_str!("subgroups.wgsl")], parts].concat())
}

/// Source of the order in which kernels rank values.
pub(crate) const ORDER: &str = include_str!("order.wgsl");
