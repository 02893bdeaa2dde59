//! Kernels in the languages of the C family. This module composes the sources of programs, and lists the
//! variants for the table.
//!
//! A source consists of a prelude, shared code, and one or more kernels. Kernels that read weights call a few
//! functions that each tensor type defines, so a new type needs no new kernels. Only the prelude depends on
//! the language. The module does not compile or launch anything.

mod decode;
mod elementwise;
mod experts;
mod fragments;
mod matrix_units;
mod operators;
mod rows;
mod streams;
mod sub_groups;
mod units;
mod weights;

use crate::kernel::Kernel;
use crate::layout::{Layout, layout_in};
use crate::variant::{Code, Grid, Text, Variant};
use ragtag_hal::KernelLanguage;
use std::sync::Arc;

/// Languages in which the shared sources are compiled.
const LANGUAGES: [KernelLanguage; 3] = [KernelLanguage::OpenClC, KernelLanguage::CudaC, KernelLanguage::HipC];

/// Returns all variants, best first.
pub(crate) fn variants() -> Vec<Variant> {
    let mut out = decode::variants();
    out.extend(sub_groups::rows());
    out.extend(rows::variants());
    out.extend(units::products());
    out.extend(experts::products());
    out.extend(matrix_units::products());
    out.extend(fragments::products());
    out.extend(crate::library::variants());
    let mut products = [sub_groups::products(), weights::variants()].concat();
    // For some types, products in sub-groups are for one row or for many. Others are for a few rows.
    products.sort_by_key(|variant| variant.max_rows);
    out.extend(products);
    out.extend(operators::variants());
    out.extend(elementwise::variants());
    out
}

/// Number of work items per group.
#[derive(Clone, Copy)]
struct Items(u32);

impl Items {
    /// Returns the definition of the macro from which the sources read the number of work items.
    fn define(self) -> String {
        format!("#define ITEMS {}\n", self.0)
    }
}

/// Composes the source of a program: the prelude, the number of work items, shared code, then `parts`.
fn program(language: KernelLanguage, items: Items, parts: &[&str]) -> Arc<str> {
    let before = [prelude(language), &items.define(), include_str!("common.cl")];
    before.into_iter().chain(parts.iter().copied()).collect::<Vec<_>>().join("\n").into()
}

/// Code that all kernels with f16 activations share.
const HALF_ROWS: &str = include_str!("../half_rows/half_rows.cl");

/// Returns the part of a source that depends on the language.
fn prelude(language: KernelLanguage) -> &'static str {
    match language {
        KernelLanguage::OpenClC => include_str!("prelude.cl"),
        KernelLanguage::CudaC | KernelLanguage::HipC => include_str!("prelude.cu"),
        other => unreachable!("no row of the table is in {other:?}"),
    }
}

/// Names of a variant in each language.
#[derive(Clone, Copy)]
struct Names {
    opencl: &'static str,
    cuda: &'static str,
    hip: &'static str,
}

/// Returns the names of a variant in each language, with a common suffix. For example, `names!("-tiled")`
/// gives `opencl-tiled`, `cuda-tiled` and `hip-tiled`.
macro_rules! names {
    ($way:literal) => {
        $crate::c_family::Names {
            opencl: concat!("opencl", $way),
            cuda: concat!("cuda", $way),
            hip: concat!("hip", $way),
        }
    };
}
use names;

/// One function of a program.
#[derive(Clone, Copy)]
struct Function {
    kernel: Kernel,
    names: Names,
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
    /// Returns one variant per language. OpenCL devices store weights in `Rows16`. The row-major sources
    /// nevertheless have variants in OpenCL C, so that tests can run them on any OpenCL driver. CUDA C++ and
    /// HIP C++ have variants only for the layout in which their devices store the weights.
    fn variants(self) -> impl Iterator<Item = Variant> {
        let reads_own = move |language| self.layout == self.kernel.layout(|t| layout_in(t, language));
        let languages = LANGUAGES.into_iter().filter(move |&l| l == KernelLanguage::OpenClC || reads_own(l));
        languages.map(move |language| self.variant(language))
    }

    fn variant(self, language: KernelLanguage) -> Variant {
        Variant {
            kernel: self.kernel,
            name: match language {
                KernelLanguage::CudaC => self.names.cuda,
                KernelLanguage::HipC => self.names.hip,
                _ => self.names.opencl,
            },
            class: self.kernel.class(),
            requires: &[],
            abi: self.kernel.abi(self.layout),
            grid: Grid::Fixed(self.grid),
            layout: self.layout,
            min_rows: self.min_rows,
            max_rows: self.max_rows,
            code: Code::Text(Text {
                language,
                compose: self.source,
                function: self.function,
                work_group: [self.items.0, 1, 1],
                local_bytes: self.local_bytes,
                dynamic_local_bytes: 0,
            }),
        }
    }
}
