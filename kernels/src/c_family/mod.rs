//! The kernels in OpenCL C: which source texts make a program, and the rows of the table of variants.
//!
//! A text is a prelude, what kernels share, and kernels, one file after the other. Those for weights are written once over a
//! few functions that each tensor type has: a new type is one more file in `weights/`. The prelude is all that is OpenCL's
//! own. Pure data: nothing here knows how a text is compiled or launched.

mod rows;
mod weights;

use crate::kernel::Kernel;
use crate::layout::Layout;
use crate::table::{Code, Text, Variant};
use ragtag_hal::{EntryAbi, KernelLanguage};
use std::sync::Arc;

/// All variants, better ones first.
pub(crate) fn variants() -> Vec<Variant> {
    let mut out = rows::variants();
    out.extend(weights::variants());
    out
}

/// Work items of a group.
#[derive(Clone, Copy)]
struct Items(u32);

impl Items {
    /// The definition that the sources read.
    fn define(self) -> String {
        format!("#define ITEMS {}\n", self.0)
    }
}

/// A program's text: the prelude, the number of work items, what kernels share, then `parts`.
fn program(language: KernelLanguage, items: Items, parts: &[&str]) -> Arc<str> {
    let before = [prelude(language), &items.define(), include_str!("common.cl")];
    before.into_iter().chain(parts.iter().copied()).collect::<Vec<_>>().join("\n").into()
}

/// What the parts rely on, in terms of a language.
fn prelude(language: KernelLanguage) -> &'static str {
    match language {
        KernelLanguage::OpenClC => include_str!("prelude.cl"),
        other => unreachable!("no row of the table is in {other:?}"),
    }
}

/// One function of a program.
struct Function {
    kernel: Kernel,
    name: &'static str,
    abi: &'static EntryAbi,
    grid: fn(constants: &[u32]) -> [u32; 3],
    layout: Option<Layout>,
    min_rows: u32,
    max_rows: u32,
    source: fn(KernelLanguage) -> Arc<str>,
    function: &'static str,
    items: Items,
    local_bytes: u64,
}

impl Function {
    fn variant(self) -> Variant {
        Variant {
            kernel: self.kernel,
            name: self.name,
            class: self.kernel.class(),
            requires: &[],
            abi: self.abi,
            grid: self.grid,
            layout: self.layout,
            min_rows: self.min_rows,
            max_rows: self.max_rows,
            code: Code::Text(Text {
                language: KernelLanguage::OpenClC,
                compose: self.source,
                function: self.function,
                work_group: [self.items.0, 1, 1],
                local_bytes: self.local_bytes,
                dynamic_local_bytes: 0,
            }),
        }
    }
}
