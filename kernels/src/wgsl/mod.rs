//! WGSL kernels for Vulkan and wgpu. This module composes the sources of programs, and lists the variants for
//! the table.
//!
//! A source contains one kernel: shared code, followed by the kernel's own file. The first fields of its
//! `Constants` are the coordinates of the first work group. If a source uses a feature beyond base WGSL (f16,
//! sub-groups, matrices), its variant requires this feature. The module does not translate or launch
//! anything.

mod cache;
pub(crate) mod elementwise;
mod matrices;
mod operators;
pub(crate) mod programs;
mod rows;
mod weights;

use crate::kernel::Kernel;
use crate::layout::Layout;
use crate::variant::{Code, Grid, Text, Variant};
use ragtag_hal::{Feature, KernelLanguage};
use std::sync::Arc;

/// Returns all variants, best first.
pub(crate) fn variants() -> Vec<Variant> {
    let all = [
        rows::variants(),
        cache::variants(),
        matrices::variants().to_vec(),
        weights::variants(),
        elementwise::variants(),
        operators::variants(),
    ];
    all.concat()
}

/// Composes the source of a program with a parameter block: the number of work items, shared code, then
/// `parts`.
pub(crate) fn program(items: u32, parts: &[&str]) -> Arc<str> {
    program_with("", items, parts)
}

/// Like [`program`], but the source starts with `directives`, which are `enable` directives.
fn program_with(directives: &str, items: u32, parts: &[&str]) -> Arc<str> {
    bare_program_with(directives, items, &[&[include_str!("common.wgsl")], parts].concat())
}

/// Composes the source of a program without a parameter block.
fn bare_program(items: u32, parts: &[&str]) -> Arc<str> {
    bare_program_with("", items, parts)
}

fn bare_program_with(directives: &str, items: u32, parts: &[&str]) -> Arc<str> {
    let items = format!("{directives}const ITEMS: u32 = {items}u;\n");
    std::iter::once(items.as_str()).chain(parts.iter().copied()).collect::<Vec<_>>().join("\n").into()
}

/// Unrolls loops in `text`. Repeats each line that contains a mark (`$` and a letter), and replaces the mark
/// by 0, 1, … in the copies. `times` gives the number of copies for each mark. In the unrolled source, every
/// compiler sees constant indices and separate variables.
pub(crate) fn repeat(text: &str, times: &[(&str, u32)]) -> String {
    times.iter().fold(text.to_owned(), |text, (mark, times)| {
        let lines = text.split_inclusive('\n');
        lines
            .flat_map(|line| {
                (0..if line.contains(mark) { *times } else { 1 }).map(|i| line.replace(mark, &i.to_string()))
            })
            .collect()
    })
}

/// Sources that write rows of f32, int8 or f16 activations. They define the functions `put` and `padded`.
pub(crate) const F32_ROWS: &str = include_str!("f32_rows.wgsl");
pub(crate) const INT8_ROWS: &str = include_str!("../quantize/int8.wgsl");
pub(crate) const HALF_ROWS: &str =
    concat!(include_str!("../half_rows/half_range.wgsl"), "\n", include_str!("../half_rows/half_rows.wgsl"));
/// Source of the function `in_half_range`, for f16 values that are not rows of activations.
const HALF_RANGE: &str = include_str!("../half_rows/half_range.wgsl");

/// One kernel with its own source. Its entry point is named `function`.
#[derive(Clone, Copy)]
struct Function {
    kernel: Kernel,
    name: &'static str,
    requires: &'static [Feature],
    grid: fn(constants: &[u32]) -> [u32; 3],
    layout: Option<Layout>,
    min_rows: u32,
    max_rows: u32,
    compose: fn(KernelLanguage) -> Arc<str>,
    function: &'static str,
    items: u32,
    local_bytes: u64,
}

impl Function {
    fn variant(self) -> Variant {
        Variant {
            kernel: self.kernel,
            name: self.name,
            class: self.kernel.class(),
            requires: self.requires,
            abi: self.kernel.abi(self.layout),
            grid: Grid::Fixed(self.grid),
            layout: self.layout,
            min_rows: self.min_rows,
            max_rows: self.max_rows,
            code: Code::Text(Text {
                language: KernelLanguage::Wgsl,
                compose: self.compose,
                function: self.function,
                work_group: [self.items, 1, 1],
                local_bytes: self.local_bytes,
                dynamic_local_bytes: 0,
            }),
        }
    }
}

/// Returns a kernel that reads no weights and supports any device and any number of rows. The caller sets its
/// source.
fn function(kernel: Kernel, grid: fn(&[u32]) -> [u32; 3], function: &'static str, items: u32) -> Function {
    Function {
        kernel,
        name: "wgsl",
        requires: &[],
        grid,
        layout: None,
        min_rows: 0,
        max_rows: u32::MAX,
        compose: |_| program(0, &[]),
        function,
        items,
        local_bytes: 4 << 10,
    }
}
