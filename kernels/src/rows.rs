//! Row kernels: kernels whose groups each compute a row or a part of a row, and read no matrix weights.

use crate::composer::Compose;
use crate::kernel::Kernel;

/// Number of work items per group that every device supports.
pub(crate) const ITEMS: u32 = 256;

/// Sources of a row kernel for GPUs.
pub(crate) struct RowKernel {
    pub grid: fn(constants: &[u32]) -> [u32; 3],
    /// Function in the languages of the C family, if its name is not that of the ABI.
    pub function: Option<&'static str>,
    /// Part of the program that the row kernels share in the languages of the C family.
    pub c: &'static str,
    /// Upper bound of the local memory of a group in the languages of the C family, in bytes.
    pub local_bytes: u64,
    pub wgsl: Wgsl,
}

impl RowKernel {
    pub fn new(grid: fn(constants: &[u32]) -> [u32; 3], c: &'static str, wgsl: Wgsl) -> Self {
        Self { grid, function: None, c, local_bytes: 4 << 10, wgsl }
    }
}

/// Programs of a row kernel in WGSL.
#[derive(Clone, Copy)]
pub(crate) struct Wgsl {
    pub function: &'static str,
    pub compose: Compose,
    /// Composes the program that reduces values within sub-groups.
    pub sub_groups: Option<Compose>,
}

/// Returns all row kernels, in the order of the registry.
pub(crate) fn row_kernels() -> impl Iterator<Item = (Kernel, RowKernel)> {
    Kernel::all().into_iter().filter_map(|kernel| Some((kernel, kernel.spec().row_kernel()?)))
}

/// Returns a grid with one group per row and per block of `4 · ITEMS` columns.
pub(crate) fn part_grid(constants: &[u32]) -> [u32; 3] {
    [constants[0], constants[2].div_ceil(4 * ITEMS), 1]
}
