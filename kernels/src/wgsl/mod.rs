//! The kernels in WGSL, for Vulkan and wgpu: which source texts make a program, and the rows of the table of variants.
//!
//! A text is one kernel: what kernels share, then the kernel's own file, whose `Constants` begin with the place of the first
//! work group. What a text needs beside the language (f16, sub-groups, matrices) its row requires. Pure data: nothing here
//! knows how a text is translated or launched.

mod matrices;
mod rows;
mod weights;

use crate::kernel::Kernel;
use crate::layout::Layout;
use crate::table::{Code, Text, Variant};
use ragtag_hal::{EntryAbi, Feature, KernelLanguage};
use std::sync::Arc;

/// All variants, better ones first.
pub(crate) fn variants() -> Vec<Variant> {
    let mut out = rows::variants();
    out.extend(matrices::variants());
    out.extend(weights::variants());
    out
}

/// The text of a program that has parameters: the number of work items, what kernels share, then `parts`.
fn program(items: u32, parts: &[&str]) -> Arc<str> {
    bare_program(items, &[&[include_str!("common.wgsl")], parts].concat())
}

/// The text of a program without parameters.
fn bare_program(items: u32, parts: &[&str]) -> Arc<str> {
    let items = format!("const ITEMS: u32 = {items}u;\n");
    std::iter::once(items.as_str()).chain(parts.iter().copied()).collect::<Vec<_>>().join("\n").into()
}

/// The text with each line that has a mark (`$` and a letter) as often as `times` says, 0, 1, … in the mark's place: loops
/// whose indices are constant for every compiler, and variables with numbers in their names.
fn repeat(text: &str, times: &[(&str, u32)]) -> String {
    times.iter().fold(text.to_owned(), |text, (mark, times)| {
        let lines = text.split_inclusive('\n');
        lines
            .flat_map(|line| {
                (0..if line.contains(mark) { *times } else { 1 }).map(|i| line.replace(mark, &i.to_string()))
            })
            .collect()
    })
}

/// One kernel in one text. The entry's name is the function's.
#[derive(Clone, Copy)]
struct Function {
    kernel: Kernel,
    name: &'static str,
    requires: &'static [Feature],
    abi: &'static EntryAbi,
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
            abi: self.abi,
            grid: self.grid,
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
