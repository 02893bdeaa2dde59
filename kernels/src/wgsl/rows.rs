//! The kernels that have no weights in blocks: row by row, and those of the cache.

use super::{Function, program};
use crate::add;
use crate::kernel::Kernel;
use crate::table::Variant;
use ragtag_hal::EntryAbi;

const ITEMS: u32 = 256;

pub(super) fn variants() -> Vec<Variant> {
    vec![Function {
        compose: |_| program(ITEMS, &[include_str!("../add/add.wgsl")]),
        ..function(Kernel::Add, &add::ABI, part_grid, "add")
    }]
    .into_iter()
    .map(Function::variant)
    .collect()
}

fn function(
    kernel: Kernel,
    abi: &'static EntryAbi,
    grid: fn(&[u32]) -> [u32; 3],
    function: &'static str,
) -> Function {
    Function {
        kernel,
        name: "wgsl",
        requires: &[],
        abi,
        grid,
        layout: None,
        min_rows: 0,
        max_rows: u32::MAX,
        compose: |_| program(ITEMS, &[]),
        function,
        items: ITEMS,
        local_bytes: 4 << 10,
    }
}

/// Rows × parts of a row.
fn part_grid(constants: &[u32]) -> [u32; 3] {
    [constants[0], constants[2].div_ceil(4 * ITEMS), 1]
}
