//! Row kernels that read no matrix weights.

use super::programs::{ORDER, SUB_GROUP_ITEMS, in_groups};
use super::{Function, bare_program, function, program};
use crate::attention::merge_sinks;
use crate::experts::gate;
use crate::kernel::Kernel;
use crate::recurrent::{conv, gated_heads, gated_norm, scan};
use crate::rows::{ITEMS, RowKernel, part_grid, row_kernels};
use crate::variant::Variant;
use crate::{add, checksum, head_norm, latent};
use ragtag_hal::Feature;

/// Number of work items in a group that normalises one head.
const HEAD_ITEMS: u32 = 128;

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
    out.push(Function {
        compose: |_| in_groups(&[ORDER, include_str!("../experts/route.wgsl")]),
        ..function(Kernel::ExpertRoute, add::grid, "expert_route", ITEMS)
    });
    out.push(Function {
        compose: |_| program(ITEMS, &[include_str!("../experts/gate.wgsl")]),
        ..function(Kernel::ExpertGate, gate::grid, "expert_gate", ITEMS)
    });
    out.push(Function {
        compose: |_| program(ITEMS, &[include_str!("../attention/merge_sinks.wgsl")]),
        ..function(Kernel::AttentionMergeSinks, merge_sinks::grid, "attention_merge_sinks", ITEMS)
    });
    out.push(Function {
        compose: |_| program(ITEMS, &[include_str!("../experts/combine.wgsl")]),
        ..function(Kernel::ExpertCombine, part_grid, "expert_combine", ITEMS)
    });
    out.push(Function {
        compose: |_| {
            let parts = [include_str!("groups.wgsl"), include_str!("../latent/latent.wgsl")];
            program(HEAD_ITEMS, &parts)
        },
        ..function(Kernel::LatentRows, latent::grid, "latent_rows", HEAD_ITEMS)
    });
    out.extend(recurrent());
    out.into_iter().map(Function::variant).collect()
}

/// Returns the functions of recurrent layers.
fn recurrent() -> [Function; 4] {
    const TABLES: &str = include_str!("tables.wgsl");
    const STATE: &str = include_str!("../recurrent/state.wgsl");
    [
        Function {
            compose: |_| program(ITEMS, &[include_str!("../recurrent/conv.wgsl"), TABLES, STATE]),
            ..function(Kernel::CausalConv, conv::grid, "causal_conv", ITEMS)
        },
        Function {
            compose: |_| program(scan::ITEMS, &[include_str!("../recurrent/scan.wgsl"), TABLES, STATE]),
            local_bytes: 15 << 10,
            ..function(Kernel::StateScan, scan::grid, "state_scan", scan::ITEMS)
        },
        Function {
            compose: |_| {
                let parts = [include_str!("groups.wgsl"), include_str!("../recurrent/gated_norm.wgsl")];
                program(HEAD_ITEMS, &parts)
            },
            ..function(Kernel::GatedNorm, gated_norm::grid, "gated_norm", HEAD_ITEMS)
        },
        Function {
            compose: |_| {
                let parts = [include_str!("groups.wgsl"), include_str!("../recurrent/gated_heads.wgsl")];
                program(HEAD_ITEMS, &parts)
            },
            ..function(Kernel::GatedHeads, gated_heads::grid, "gated_heads", HEAD_ITEMS)
        },
    ]
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
