//! Row kernels that read no matrix weights.

use super::{Function, HALF_ROWS, INT8_ROWS, function, program};
use crate::kernel::{Activations, Kernel};
use crate::table::Variant;
use crate::{add, arg_max, gather, head_norm, quantize, rms_norm, silu_mul, softmax, top_k};
use ragtag_hal::Feature;

/// Number of work items per group that every device supports.
const ITEMS: u32 = 256;

/// Number of work items in a group that normalises one head.
const HEAD_ITEMS: u32 = 128;

/// Work items per group for kernels that reduce values within sub-groups. These kernels can use more work
/// items per row than other kernels.
const SUB_GROUP_ITEMS: u32 = 1024;

/// Returns the variants of a kernel, one for each method of reducing values across a group, best first.
macro_rules! reducing {
    ($kernel:expr, $abi:expr, $function:literal, $parts:expr) => {{
        let narrow = Function {
            compose: |_| program(ITEMS, &[&[include_str!("groups.wgsl")], &$parts[..]].concat()),
            ..function($kernel, $abi, add::grid, $function, ITEMS)
        };
        let wide = Function {
            name: "wgsl-sub-groups",
            requires: &[Feature::SubGroups],
            compose: |_| program(SUB_GROUP_ITEMS, &[&[include_str!("subgroups.wgsl")], &$parts[..]].concat()),
            items: SUB_GROUP_ITEMS,
            local_bytes: 12 << 10,
            ..narrow
        };
        [wide, narrow]
    }};
}

const ORDER: &str = include_str!("order.wgsl");
const QUANTIZE: &str = include_str!("../quantize/quantize.wgsl");
const NORM: &str = include_str!("../rms_norm/rms_norm.wgsl");
const NORM_PACKED: &str = include_str!("../rms_norm/rms_norm_packed.wgsl");
const SILU: &str = include_str!("../silu_mul/silu.wgsl");
const SILU_PACKED: &str = include_str!("../silu_mul/silu_mul_packed.wgsl");

pub(super) fn variants() -> Vec<Variant> {
    use Activations::{F16, F32, Int8};
    let part = |kernel, abi, name| function(kernel, abi, part_grid, name, ITEMS);
    let mut out = vec![
        Function {
            compose: |_| program(ITEMS, &[include_str!("../gather/gather.wgsl")]),
            ..function(Kernel::Gather, &gather::ABI, gather::grid, "gather", ITEMS)
        },
        Function {
            compose: |_| {
                let parts = [include_str!("groups.wgsl"), include_str!("../head_norm/head_norm.wgsl")];
                program(HEAD_ITEMS, &parts)
            },
            ..function(Kernel::HeadNorm, &head_norm::ABI, head_norm::grid, "head_norm", HEAD_ITEMS)
        },
        Function {
            compose: |_| program(ITEMS, &[include_str!("../add/add.wgsl")]),
            ..part(Kernel::Add, &add::ABI, "add")
        },
        Function {
            compose: |_| program(ITEMS, &[INT8_ROWS, QUANTIZE]),
            ..part(Kernel::Quantize(Int8), &quantize::ABI_INT8, "quantize")
        },
        Function {
            compose: |_| program(ITEMS, &[HALF_ROWS, QUANTIZE]),
            ..part(Kernel::Quantize(F16), &quantize::ABI_F16, "quantize")
        },
        Function {
            compose: |_| program(ITEMS, &[SILU, include_str!("../silu_mul/silu_mul.wgsl")]),
            ..part(Kernel::SiluMul(F32), &silu_mul::ABI_F32, "silu_mul")
        },
        Function {
            compose: |_| program(ITEMS, &[INT8_ROWS, SILU, SILU_PACKED]),
            ..part(Kernel::SiluMul(Int8), &silu_mul::ABI_INT8, "silu_mul")
        },
        Function {
            compose: |_| program(ITEMS, &[HALF_ROWS, SILU, SILU_PACKED]),
            ..part(Kernel::SiluMul(F16), &silu_mul::ABI_F16, "silu_mul")
        },
    ];
    out.extend(reducing!(Kernel::RmsNorm(F32), &rms_norm::ABI_F32, "rms_norm", [NORM]));
    out.extend(reducing!(Kernel::RmsNorm(Int8), &rms_norm::ABI_INT8, "rms_norm", [INT8_ROWS, NORM_PACKED]));
    out.extend(reducing!(Kernel::RmsNorm(F16), &rms_norm::ABI_F16, "rms_norm", [HALF_ROWS, NORM_PACKED]));
    out.extend(reducing!(
        Kernel::Softmax,
        &softmax::ABI,
        "softmax",
        [ORDER, include_str!("../softmax/softmax.wgsl")]
    ));
    out.extend(reducing!(
        Kernel::ArgMax,
        &arg_max::ABI,
        "arg_max",
        [ORDER, include_str!("../arg_max/arg_max.wgsl")]
    ));
    out.extend(reducing!(Kernel::TopK, &top_k::ABI, "top_k", [ORDER, include_str!("../top_k/top_k.wgsl")]));
    out.into_iter().map(Function::variant).collect()
}

/// Returns a grid with one group per row and per block of `4 · ITEMS` columns.
fn part_grid(constants: &[u32]) -> [u32; 3] {
    [constants[0], constants[2].div_ceil(4 * ITEMS), 1]
}
