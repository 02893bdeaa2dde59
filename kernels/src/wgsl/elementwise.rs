//! The general operators other than products.

use super::{Function, bare_program, function};
use crate::elements::{ITEMS, operators};
use crate::file_blocks;
use crate::kernel::Kernel;
use crate::types::Row;
use crate::variant::Variant;
use std::sync::Arc;

pub(super) fn variants() -> Vec<Variant> {
    let variant = |(kernel, operator): (Kernel, crate::elements::Operator)| {
        let function = Function {
            compose: operator.wgsl,
            local_bytes: 1 << 10,
            ..function(kernel, operator.grid, kernel.abi(None).name, ITEMS)
        };
        function.variant()
    };
    operators().map(variant).collect()
}

/// Composes the source of an operator.
pub(crate) fn elements(parts: &[&str]) -> Arc<str> {
    bare_program(ITEMS, &[&[include_str!("elements.wgsl")], parts].concat())
}

/// Composes the source of an operator on file blocks. `of_type` returns the part that handles one tensor
/// type.
pub(crate) fn blocks(part: &str, of_type: fn(&Row) -> &'static str) -> Arc<str> {
    let shared = [include_str!("../file_blocks/formats.wgsl"), part].map(file_blocks::repeat);
    let types: Vec<&str> = file_blocks::types().map(|t| of_type(t.row())).collect();
    elements(&[&[&*shared[0], &shared[1]], &types[..]].concat())
}

/// Composes the source of a kernel that tests for infinities and NaN.
pub(crate) fn numbers(parts: &[&str]) -> Arc<str> {
    elements(&[&[include_str!("numbers.wgsl")], parts].concat())
}

/// Composes the source of a kernel whose groups each process several columns of `[axis, inner]`.
pub(crate) fn in_columns(part: &str) -> Arc<str> {
    numbers(&[include_str!("columns.wgsl"), part])
}

/// Source of the function `tanh_of`.
pub(crate) const TANH: &str = include_str!("tanh.wgsl");
