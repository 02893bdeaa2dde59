//! The table of variants, and the functions that select a variant by a device's capabilities.

use crate::kernel::Kernel;
use crate::layout::layout_for;
use crate::variant::{Code, NARROW, Variant};
use crate::{c_family, cpu, matmul, wgsl};
use ragtag_hal::Caps;
use std::sync::LazyLock;

/// Returns all variants of this build, best first.
pub fn variants() -> &'static [Variant] {
    static VARIANTS: LazyLock<Vec<Variant>> =
        LazyLock::new(|| [cpu::variants(), c_family::variants(), wgsl::variants()].concat());
    &VARIANTS
}

/// Returns the best variant of `kernel` for launches of up to `rows` rows on a device with `caps`. This is
/// the first variant that is designed for `rows` rows, reads the device's weight layout, and runs on the
/// device. If the device prefers its library, a library variant that fits takes precedence.
pub fn select(kernel: Kernel, caps: &Caps, rows: u32) -> Option<&'static Variant> {
    let layout = kernel.layout(|tensor_type| layout_for(tensor_type, caps));
    let fits =
        |v: &Variant| v.kernel == kernel && v.layout == layout && rows <= v.max_rows && v.max_rows != NARROW;
    let library = |v: &&Variant| matches!(v.code, Code::Library(_)) && rows >= v.min_rows;
    let prefers = caps.gemm.as_ref().is_some_and(|library| library.preferred);
    let first = if prefers { variants().iter().find(|v| fits(v) && library(v)) } else { None };
    first.or_else(|| variants().iter().find(|v| fits(v) && v.runs_on(caps)))
}

/// Returns the best variant for a launch with these `constants`. This is the variant that [`select`] returns, or a variant for
/// narrow products, if tiles would use a small part of a device.
pub fn select_for(kernel: Kernel, caps: &Caps, rows: u32, constants: &[u32]) -> Option<&'static Variant> {
    let usual = select(kernel, caps, rows)?;
    let is_narrow = matches!(kernel, Kernel::MatMul(..)) && matmul::is_narrow(constants);
    let fits = |v: &&Variant| v.kernel == kernel && v.layout == usual.layout && v.max_rows == NARROW;
    let narrow = || variants().iter().find(|v| fits(v) && v.runs_on(caps));
    // A variant with a maximum is one for few rows.
    if is_narrow && usual.max_rows == u32::MAX { narrow().or(Some(usual)) } else { Some(usual) }
}

/// Like [`select`], but returns `None` if `rows` is below the variant's minimum number of rows. In this case,
/// programs should use an alternative sequence of kernels.
pub fn preferred(kernel: Kernel, caps: &Caps, rows: u32) -> Option<&'static Variant> {
    select(kernel, caps, rows).filter(|v| rows >= v.min_rows)
}

#[cfg(test)]
pub(crate) mod tests;
