//! Kernels for decode steps on NVIDIA's devices, in CUDA C++ only. They compute all operations of a step with
//! few rows, except products. Latency rather than throughput limits these kernels, so they issue all loads at
//! once and sum over the lanes of a warp. With programmatic dependent launch, a kernel may start before the
//! previous launch ends. It waits for that launch only before it reads data that another launch writes.

use super::streams::products;
use super::{HALF_ROWS, Items, program};
use crate::add;
use crate::attention::partial;
use crate::kernel::{Activations, Kernel, KvType};
use crate::layout::{Layout, layout_in};
use crate::variant::{Code, Grid, Text, Variant};
use ragtag_hal::{Feature, KernelLanguage};
use std::sync::Arc;

pub(super) type Compose = fn(KernelLanguage) -> Arc<str>;

/// Maximum number of rows in a step.
pub(super) const MAX_ROWS: u32 = 8;

const NORM_ITEMS: Items = Items(1024);
const COLUMN_ITEMS: Items = Items(128);
const ROPE_ITEMS: Items = Items(64);
const PARTIAL_ITEMS: Items = Items(256);
/// Work items per group of split attention with many rows. Three groups of this size fit on a multiprocessor, so
/// one group loads keys while another one merges its warps.
const MANY_ITEMS: Items = Items(128);

/// Number of columns per work item of `silu_mul`.
const SILU_COLUMNS: u32 = 4;

/// Returns all variants, best first.
pub(super) fn variants() -> Vec<Variant> {
    let mut out = products();
    out.extend([Activations::F32, Activations::Int8, Activations::F16].into_iter().flat_map(row_functions));
    out.extend([KvType::F32, KvType::F16].into_iter().flat_map(cache_functions));
    out.into_iter().map(Function::variant).collect()
}

/// One kernel function of a program in CUDA C++.
#[derive(Clone, Copy)]
pub(super) struct Function {
    pub kernel: Kernel,
    pub name: &'static str,
    pub requires: &'static [Feature],
    pub grid: Grid,
    pub max_rows: u32,
    pub source: Compose,
    pub function: &'static str,
    pub items: Items,
    /// Upper bound on the shared memory that the source declares, in bytes per group.
    pub local_bytes: u32,
    pub dynamic_local_bytes: u32,
}

impl Function {
    fn variant(self) -> Variant {
        let language = KernelLanguage::CudaC;
        let layout: Option<Layout> = self.kernel.layout(|tensor_type| layout_in(tensor_type, language));
        Variant {
            kernel: self.kernel,
            name: self.name,
            class: self.kernel.class(),
            requires: self.requires,
            abi: self.kernel.abi(layout),
            grid: self.grid,
            layout,
            min_rows: 0,
            max_rows: self.max_rows,
            code: Code::Text(Text {
                language,
                compose: self.source,
                function: self.function,
                work_group: [self.items.0, 1, 1],
                local_bytes: (self.local_bytes + self.dynamic_local_bytes).into(),
                dynamic_local_bytes: self.dynamic_local_bytes,
            }),
        }
    }
}

/// Returns the row kernels with output of type `form`.
fn row_functions(form: Activations) -> [Function; 3] {
    let name = |names: [&'static str; 3]| match form {
        Activations::F32 => names[0],
        Activations::Int8 => names[1],
        Activations::F16 => names[2],
    };
    let norm = Function {
        kernel: Kernel::RmsNorm(form),
        name: "cuda-few",
        requires: &[Feature::Sm70],
        grid: Grid::Fixed(add::grid),
        max_rows: MAX_ROWS,
        source: norm_source,
        function: name(["rms_norm_f32", "rms_norm_int8", "rms_norm_f16"]),
        items: NORM_ITEMS,
        local_bytes: 1 << 10,
        dynamic_local_bytes: 0,
    };
    let silu = Function {
        kernel: Kernel::SiluMul(form),
        grid: Grid::Fixed(silu_grid),
        source: silu_source,
        function: name(["silu_mul_f32", "silu_mul_int8", "silu_mul_f16"]),
        items: COLUMN_ITEMS,
        ..norm
    };
    let merge = Function {
        kernel: Kernel::AttentionMerge(form),
        grid: Grid::Fixed(merge_grid),
        source: merge_source,
        function: name(["attention_merge_f32", "attention_merge_int8", "attention_merge_f16"]),
        items: COLUMN_ITEMS,
        local_bytes: 5 << 10,
        ..norm
    };
    [norm, silu, merge]
}

/// Returns the kernels that access a KV cache of type `kv_type`, f32 or f16.
fn cache_functions(kv_type: KvType) -> Vec<Function> {
    let is_f16 = kv_type == KvType::F16;
    let [append_source, few_source, many_source]: [Compose; 3] = if is_f16 {
        [
            |l| cache_source(l, "1", ROPE_ITEMS, &APPEND),
            |l| cache_source(l, "1", PARTIAL_ITEMS, &PARTIAL_LANES),
            |l| cache_source(l, "1", MANY_ITEMS, &PARTIAL_LANES),
        ]
    } else {
        [
            |l| cache_source(l, "0", ROPE_ITEMS, &APPEND),
            |l| cache_source(l, "0", PARTIAL_ITEMS, &PARTIAL_LANES),
            |l| cache_source(l, "0", MANY_ITEMS, &PARTIAL_LANES),
        ]
    };
    let append = Function {
        kernel: Kernel::RopeAppend(kv_type),
        name: "cuda-few",
        requires: &[Feature::Sm70],
        grid: Grid::Fixed(append_grid),
        max_rows: MAX_ROWS,
        source: append_source,
        function: "rope_append",
        items: ROPE_ITEMS,
        local_bytes: 0,
        dynamic_local_bytes: 0,
    };
    let few = Function {
        kernel: Kernel::AttentionPartial(kv_type),
        grid: Grid::Fixed(partial::grid),
        source: few_source,
        function: "attention_partial",
        items: PARTIAL_ITEMS,
        local_bytes: 22 << 10,
        ..append
    };
    let many =
        Function { name: "cuda-many", max_rows: u32::MAX, source: many_source, items: MANY_ITEMS, ..few };
    let few_units = Function {
        name: "cuda-sm80-few",
        requires: &[Feature::Sm80],
        source: |l| cache_source(l, "1", PARTIAL_ITEMS, &PARTIAL_UNITS),
        ..few
    };
    let many_units = Function {
        name: "cuda-sm80-many",
        requires: &[Feature::Sm80],
        source: |l| cache_source(l, "1", MANY_ITEMS, &PARTIAL_UNITS),
        ..many
    };
    let units = if is_f16 { vec![few_units, many_units] } else { vec![] };
    [vec![append], units, vec![few, many]].concat()
}

const OUTPUT: &str = include_str!("../quantize/output.cu");
const APPEND: [&str; 2] = [HALF_ROWS, include_str!("../rope_append/rope_append.cu")];
const PARTIAL: &str = include_str!("../attention/partial.cu");
const PARTIAL_LANES: [&str; 3] =
    [include_str!("lanes.cu"), include_str!("../attention/partial_lanes.cu"), PARTIAL];
const PARTIAL_UNITS: [&str; 2] = [include_str!("../attention/partial_units.cu"), PARTIAL];

fn norm_source(language: KernelLanguage) -> Arc<str> {
    program(language, NORM_ITEMS, &[HALF_ROWS, OUTPUT, include_str!("../rms_norm/rms_norm.cu")])
}

fn silu_source(language: KernelLanguage) -> Arc<str> {
    program(language, COLUMN_ITEMS, &[HALF_ROWS, OUTPUT, include_str!("../silu_mul/silu_mul.cu")])
}

fn merge_source(language: KernelLanguage) -> Arc<str> {
    program(language, COLUMN_ITEMS, &[HALF_ROWS, include_str!("../attention/merge.cu")])
}

fn cache_source(language: KernelLanguage, is_f16: &str, items: Items, parts: &[&str]) -> Arc<str> {
    let cache = [&format!("#define KV_F16 {is_f16}\n"), include_str!("kv.cl"), include_str!("lists.cl")];
    program(language, items, &[&cache, parts].concat())
}

/// Returns a grid with one group per row and per block of `SILU_COLUMNS` · `COLUMN_ITEMS` columns.
fn silu_grid(constants: &[u32]) -> [u32; 3] {
    [constants[0], constants[2].div_ceil(SILU_COLUMNS * COLUMN_ITEMS.0), 1]
}

/// Returns a grid with one group per row and per block of `COLUMN_ITEMS` columns. The last block of a row
/// covers its padding.
fn merge_grid(constants: &[u32]) -> [u32; 3] {
    let width = constants[2].saturating_mul(constants[3]);
    [constants[0], width.div_ceil(COLUMN_ITEMS.0), 1]
}

/// Returns a grid with one group per head (of queries, keys and values) and per row.
fn append_grid(constants: &[u32]) -> [u32; 3] {
    [constants[4].saturating_add(constants[5].saturating_mul(2)), constants[0], 1]
}
