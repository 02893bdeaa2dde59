//! Row kernels that read no matrix weights.

use super::{Function, bare_program, function, program};
use crate::kernel::Kernel;
use crate::rows::{ITEMS, RowKernel, row_kernels};
use crate::variant::Variant;
use crate::{checksum, head_norm};
use ragtag_hal::Feature;
use std::sync::Arc;

/// Number of work items in a group that normalises one head.
const HEAD_ITEMS: u32 = 128;

/// Work items per group for kernels that reduce values within sub-groups. These kernels can use more work
/// items per row than other kernels.
const SUB_GROUP_ITEMS: u32 = 1024;

pub(super) fn variants() -> Vec<Variant> {
    let mut out: Vec<Function> = row_kernels().flat_map(functions).collect();
    out.push(Function {
        compose: |_| {
            let parts = [include_str!("groups.wgsl"), include_str!("../head_norm/head_norm.wgsl")];
            program(HEAD_ITEMS, &parts)
        },
        ..function(Kernel::HeadNorm, head_norm::grid, "head_norm", HEAD_ITEMS)
    });
    out.push(Function {
        compose: |_| bare_program(ITEMS, &[include_str!("../checksum/checksum.wgsl")]),
        ..function(Kernel::Checksum, checksum::grid, "checksum", ITEMS)
    });
    out.into_iter().map(Function::variant).collect()
}

/// Returns the functions of a row kernel, best first.
fn functions((kernel, row): (Kernel, RowKernel)) -> Vec<Function> {
    let narrow =
        Function { compose: row.wgsl.compose, ..function(kernel, row.grid, row.wgsl.function, ITEMS) };
    let wide = row.wgsl.sub_groups.map(|compose| Function {
        name: "wgsl-sub-groups",
        requires: &[Feature::SubGroups],
        compose,
        items: SUB_GROUP_ITEMS,
        local_bytes: 12 << 10,
        ..narrow
    });
    wide.into_iter().chain([narrow]).collect()
}

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
            compose: |_| $crate::wgsl::rows::in_groups(&$parts),
            sub_groups: Some(|_| $crate::wgsl::rows::in_sub_groups(&$parts)),
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
