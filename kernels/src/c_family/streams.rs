//! Products with few rows of x, in CUDA C++ only. Memory bandwidth limits their speed, so a product takes as
//! long as the device needs to load its weights.
//!
//! Each warp streams weights through a ring in shared memory. The rings are deep enough to keep memory busy
//! while small kernels run between two products. With programmatic dependent launch, a product may start
//! before the previous launch ends. It then prefetches its first weights without waiting for that launch.

use super::decode::{Compose, Function, MAX_ROWS};
use super::weights::WIDEN_ROWS;
use super::weights::{BLOCKS, QUANTISED};
use super::{Items, program};
use crate::blocks::TensorType;
use crate::composer::composer;
use crate::kernel::{Activations, Kernel};
use crate::layout::{GROUP_ROWS, sections};
use crate::variant::Grid;
use ragtag_hal::{Feature, KernelLanguage};
use std::sync::Arc;

/// Number of rows of x that products with plain weights keep in registers: `M` in their source.
const PLAIN_ROWS: u32 = 4;

/// Number of rows of plain weights in a chunk: `SET` in their sources.
const SET_ROWS: u32 = 4;

/// Number of columns that holds whole blocks of every tensor type.
const WHOLE_COLUMNS: u32 = 256;

/// Maximum number of groups of 16 weight rows per work group, in products for few rows of x: `MAX_GROUPS` in
/// the sources.
const FEW_GROUPS: u32 = 8;

/// Upper bound on the shared memory for barriers, in bytes per work group.
const BARRIERS_BYTES: u32 = 2 << 10;

/// Method by which a product fills its rings with weights.
struct Ring {
    requires: &'static [Feature],
    source: &'static str,
    items: Items,
    /// Upper bound on the shared memory for rings, in bytes per work group: first for one row of x, then for
    /// few rows.
    bytes: [u32; 2],
    /// Number of columns per chunk. Applies to weights of two bytes per value, and to block weights if there
    /// is only one row of x.
    columns: u32,
}

/// Method that uses the bulk copy engine. The rings take so much shared memory that a multiprocessor holds
/// only one work group of a product. If two work groups fitted, overlapping launches would be distributed
/// unevenly, with two work groups on one multiprocessor and none on another.
static BULK: Ring = Ring {
    requires: &[Feature::Sm90],
    source: RING_BULK,
    items: Items(256),
    bytes: [200 << 10, 160 << 10],
    columns: 512,
};

/// Method that uses asynchronous copies by the work items. The rings take little shared memory.
static ASYNC: Ring = Ring {
    requires: &[Feature::Sm80],
    source: include_str!("ring_async.cu"),
    items: Items(128),
    bytes: [36 << 10; 2],
    columns: 256,
};

/// Numbers of rows of x that a product supports.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rows {
    One,
    Few,
}

/// Returns the products of every type, best first: with int8 activations for block weights, and with f32
/// activations for plain weights.
pub(super) fn products() -> Vec<Function> {
    let of_type = |t: TensorType| {
        let few = |blocks, plain| if is_plain(t) { plain } else { blocks };
        [
            function(
                t,
                &BULK,
                Rows::One,
                "cuda-sm90-gemv-1",
                composer!(t, |l, t| source(l, t, &BULK, Rows::One)),
            ),
            function(
                t,
                &BULK,
                Rows::Few,
                few("cuda-sm90-gemv-8", "cuda-sm90-gemv-4"),
                composer!(t, |l, t| source(l, t, &BULK, Rows::Few)),
            ),
            function(
                t,
                &ASYNC,
                Rows::One,
                "cuda-sm80-gemv-1",
                composer!(t, |l, t| source(l, t, &ASYNC, Rows::One)),
            ),
            function(
                t,
                &ASYNC,
                Rows::Few,
                few("cuda-sm80-gemv-8", "cuda-sm80-gemv-4"),
                composer!(t, |l, t| source(l, t, &ASYNC, Rows::Few)),
            ),
        ]
    };
    let has_streams = |t: &TensorType| is_plain(*t) || t.has_integer_quants();
    TensorType::ALL.into_iter().filter(has_streams).flat_map(of_type).collect()
}

fn is_plain(tensor_type: TensorType) -> bool {
    tensor_type.block_values() == 1
}

fn function(
    tensor_type: TensorType,
    ring: &Ring,
    rows: Rows,
    name: &'static str,
    source: Compose,
) -> Function {
    let activations = if is_plain(tensor_type) { Activations::F32 } else { Activations::Int8 };
    let chunks = Chunks::new(tensor_type, ring, rows);
    // Partial sums per warp: one per work item for one row of x, or one per weight row and row of x.
    let (sums, most) = match rows {
        Rows::One => (ring.items.0, ring.items.0 / GROUP_ROWS as u32),
        Rows::Few if is_plain(tensor_type) => (FEW_GROUPS * GROUP_ROWS as u32 * PLAIN_ROWS, FEW_GROUPS),
        Rows::Few => (FEW_GROUPS * GROUP_ROWS as u32 * MAX_ROWS, FEW_GROUPS),
    };
    Function {
        kernel: Kernel::MatMul(tensor_type, activations),
        name,
        requires: ring.requires,
        grid: Grid::PerDevice(if most == FEW_GROUPS {
            grid::<FEW_GROUPS>
        } else {
            grid::<{ 2 * FEW_GROUPS }>
        }),
        // Processes excess rows in several passes. Wide products take over from `WIDEN_ROWS` on.
        max_rows: if rows == Rows::One { 1 } else { WIDEN_ROWS - 1 },
        source,
        function: match (rows, is_plain(tensor_type)) {
            (Rows::One, false) => "matmul_gemv_blocks",
            (Rows::One, true) => "matmul_gemv_rows",
            (Rows::Few, false) => "matmul_few_blocks",
            (Rows::Few, true) => "matmul_few_rows",
        },
        items: ring.items,
        local_bytes: ring.warps() * sums * 4 + BARRIERS_BYTES,
        dynamic_local_bytes: ring.warps() * chunks.stages * chunks.stage,
    }
}

/// Returns the number of work groups. Each work group gets the same number of groups of 16 weight rows, at
/// most `MAX_GROUPS`. If possible, all work groups run at once on `multiprocessors` multiprocessors. Otherwise,
/// they run in as few rounds as `MAX_GROUPS` allows.
fn grid<const MAX_GROUPS: u32>(constants: &[u32], multiprocessors: u32) -> [u32; 3] {
    let groups = constants[2].div_ceil(GROUP_ROWS as u32);
    if constants[0] == 0 || groups == 0 {
        return [0; 3];
    }
    let turns = groups.div_ceil(multiprocessors * MAX_GROUPS);
    [groups.div_ceil(groups.div_ceil(multiprocessors * turns)), 1, 1]
}

impl Ring {
    fn warps(&self) -> u32 {
        self.items.0 / 32
    }
}

/// Size and number of the weight chunks in a warp's ring.
struct Chunks {
    columns: u32,
    /// Bytes per chunk.
    stage: u32,
    /// Number of chunks in the ring.
    stages: u32,
}

impl Chunks {
    fn new(tensor_type: TensorType, ring: &Ring, rows: Rows) -> Self {
        let (columns, stage) = if is_plain(tensor_type) {
            let value_bytes = tensor_type.block_bytes() as u32;
            let columns = ring.columns * 2 / value_bytes;
            (columns, SET_ROWS * columns * value_bytes)
        } else {
            // More columns for several rows of x would exceed the registers.
            let columns = if rows == Rows::One { ring.columns } else { WHOLE_COLUMNS };
            let bytes: u32 = section_bytes(tensor_type).iter().sum();
            (columns, (bytes * columns / WHOLE_COLUMNS).next_multiple_of(128))
        };
        let most = ring.bytes[rows as usize] / (ring.warps() * stage);
        // Powers of two were fastest in measurements.
        Self { columns, stage, stages: 1 << most.max(1).ilog2() }
    }

    fn define(&self) -> String {
        let Self { columns, stage, stages } = self;
        format!("#define CHUNK {columns}\n#define STAGE {stage}\n#define STAGES {stages}\n")
    }
}

/// Returns, for each section of a row group, the number of bytes that hold [`WHOLE_COLUMNS`] columns.
pub(super) fn section_bytes(tensor_type: TensorType) -> Vec<u32> {
    let bytes = sections(tensor_type).iter().map(|s| WHOLE_COLUMNS as usize / s.columns * s.bytes);
    bytes.map(|bytes| bytes as u32).collect()
}

/// Returns macro definitions that pass the results of [`section_bytes`] to the sources.
pub(super) fn define_sections(tensor_type: TensorType) -> String {
    let bytes = section_bytes(tensor_type);
    let of_section = |(s, bytes): (usize, &u32)| format!("(s) == {s} ? {bytes} : ");
    let choices: String = bytes.iter().enumerate().map(of_section).collect();
    format!("#define SECTIONS {}\n#define SECTION_BYTES(s) ({choices}0)\n", bytes.len())
}

/// Rings that the bulk copy engine fills.
pub(super) const RING_BULK: &str = include_str!("ring_bulk.cu");
const LANES: &str = include_str!("lanes.cu");
const SHARES: &str = include_str!("../matmul/shares.cu");
const CHUNKS_BLOCKS: &str = include_str!("../matmul/chunks_blocks.cu");
const CHUNKS_ROWS: &str = include_str!("../matmul/chunks_rows.cu");

/// Composes the source of a product.
fn source(language: KernelLanguage, tensor_type: TensorType, ring: &Ring, rows: Rows) -> Arc<str> {
    let chunks = Chunks::new(tensor_type, ring, rows).define();
    let reader = tensor_type.row().c;
    if is_plain(tensor_type) {
        let values = format!("#define VALUE_BYTES {}\n#define M {PLAIN_ROWS}\n", tensor_type.block_bytes());
        let product = match rows {
            Rows::One => include_str!("../matmul/gemv_rows.cu"),
            Rows::Few => include_str!("../matmul/few_rows.cu"),
        };
        let parts = [&chunks, &values, reader, ring.source, SHARES, LANES, CHUNKS_ROWS, product];
        return program(language, ring.items, &parts);
    }
    let sections = define_sections(tensor_type);
    let product: &[&str] = match rows {
        Rows::One => &[BLOCKS, LANES, include_str!("../matmul/gemv_blocks.cu")],
        Rows::Few => &[tensor_type.row().pairs, include_str!("../matmul/few_blocks.cu")],
    };
    let before = [&chunks, &sections, QUANTISED, reader, ring.source, SHARES, CHUNKS_BLOCKS];
    program(language, ring.items, &[&before, product].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_shared_by_all_multiprocessors() {
        let few = |columns, multiprocessors| grid::<FEW_GROUPS>(&[1, 0, columns, 4096], multiprocessors)[0];
        for (columns, multiprocessors, groups) in [
            (1, 132, 1),
            (2112, 132, 132),
            (4096, 132, 128),
            (4096, 114, 86),
            (4096, 20, 37),
            (16_896, 132, 132),
            (16_897, 132, 212),
            (128_256, 132, 1002),
            (128_256, 108, 1002),
            (4096, 1, 32),
        ] {
            assert_eq!(few(columns, multiprocessors), groups, "{columns} on {multiprocessors}");
        }
        assert_eq!(grid::<16>(&[1, 0, 128_256, 4096], 132)[0], 501);
        assert_eq!([grid::<8>(&[0, 0, 64, 64], 132), grid::<8>(&[1, 0, 0, 64], 132)], [[0; 3]; 2]);
    }
}
