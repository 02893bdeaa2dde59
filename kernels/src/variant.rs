//! Variants: the implementations of kernels, with what they need of a device.

use crate::artefacts::{self, Artefact, Form};
use crate::cases::{self, Case};
use crate::kernel::{Kernel, NumericsClass};
use crate::layout::Layout;
use crate::matmul;
use ragtag_hal::{Caps, DeviceFunction, EntryAbi, Feature, GemmEntry, HostFn, KernelLanguage};
use std::sync::Arc;

/// Number of rows that exceeds the capacity of every launch.
pub const NEVER: u32 = u32::MAX;

/// Maximum row capacity that marks a variant for products with few results: see [`select_for`](crate::select_for).
pub const NARROW: u32 = 0;

/// An implementation of a kernel.
#[derive(Clone, Copy, Debug)]
pub struct Variant {
    /// Kernel that the variant implements.
    pub kernel: Kernel,
    /// Name in receipts, for example `avx512-vnni` or `portable`.
    pub name: &'static str,
    /// Numerics class of the results.
    pub class: NumericsClass,
    /// Features that a device must have.
    pub requires: &'static [Feature],
    /// Binary interface: bindings, constants, and the extents of bindings.
    pub abi: &'static EntryAbi,
    /// Grid of a launch: see [`Variant::grid`].
    pub grid: Grid,
    /// Layout of the weight matrices that the variant reads, or `None` if it reads none.
    pub layout: Option<Layout>,
    /// Minimum row capacity for which programs prefer this variant to an alternative sequence of kernels: see
    /// [`preferred`](crate::preferred). [`NEVER`] marks a variant that is correct but not fast.
    pub min_rows: u32,
    /// Maximum row capacity for which [`select`](crate::select) returns the variant. Its results are correct for any
    /// capacity.
    pub max_rows: u32,
    /// Code of the variant.
    pub code: Code,
}

/// Function that computes the grid of a launch from the constants.
#[derive(Clone, Copy, Debug)]
pub enum Grid {
    /// The grid is the same on every device.
    Fixed(fn(constants: &[u32]) -> [u32; 3]),
    /// The grid depends on the number of compute units, `units`.
    PerDevice(fn(constants: &[u32], units: u32) -> [u32; 3]),
}

/// Code of a variant.
#[derive(Clone, Copy, Debug)]
pub enum Code {
    /// A Rust function in this process.
    Host(HostFn),
    /// Source text for a device's compiler.
    Text(Text),
    /// A matrix product in the GEMM library that the device's capabilities name.
    Library(GemmEntry),
}

/// A kernel function in a source language.
#[derive(Clone, Copy, Debug)]
pub struct Text {
    /// Source language of the text.
    pub language: KernelLanguage,
    /// Composes the complete source text in the given language.
    pub compose: fn(KernelLanguage) -> Arc<str>,
    /// Name of the kernel function in the text.
    pub function: &'static str,
    /// Work-group size, in work items.
    pub work_group: [u32; 3],
    /// Upper bound of the local memory that the text declares per group, in bytes.
    pub local_bytes: u64,
    /// Dynamic local memory that a launch requests per group, in bytes, in addition to the memory that the
    /// text declares.
    pub dynamic_local_bytes: u32,
}

impl Text {
    /// Returns the complete source text.
    pub fn text(&self) -> Arc<str> {
        (self.compose)(self.language)
    }

    /// Returns the kernel function as a device compiles it.
    pub(crate) fn function(&self) -> DeviceFunction {
        DeviceFunction {
            name: self.function.into(),
            work_group: self.work_group,
            dynamic_local_bytes: self.dynamic_local_bytes,
        }
    }
}

impl Variant {
    /// Returns the grid of a launch on a device with `caps`. The number of `constants` must match the ABI.
    pub fn grid(&self, constants: &[u32], caps: &Caps) -> [u32; 3] {
        match self.grid {
            Grid::Fixed(grid) => grid(constants),
            Grid::PerDevice(grid) => grid(constants, caps.parallel_units.max(1)),
        }
    }

    /// Returns the language of the code, or `None` for a library product.
    pub fn language(&self) -> Option<KernelLanguage> {
        match self.code {
            Code::Host(_) => Some(KernelLanguage::Host),
            Code::Text(text) => Some(text.language),
            Code::Library(_) => None,
        }
    }

    /// Returns the variant's conformance cases.
    pub fn cases(&self, seed: u64) -> Vec<Case> {
        let cases = match self.code {
            Code::Library(_) => matmul::cases_of_whole_launches(seed),
            Code::Host(_) | Code::Text(_) => cases::cases(self.kernel, self.layout, seed),
        };
        cases.into_iter().map(|case| Case { tolerance: self.bound(), ..case }).collect()
    }

    /// Returns a conformance case of random shape.
    pub fn random_case(&self, seed: u64) -> Case {
        let case = match self.code {
            Code::Library(_) => matmul::random_case_of_a_whole_launch(seed),
            Code::Host(_) | Code::Text(_) => cases::random_case(self.kernel, self.layout, seed),
        };
        Case { tolerance: self.bound(), ..case }
    }

    /// Returns whether a device with `caps` accepts the code. A device accepts a source text if it accepts
    /// its language, or PTX or SPIR-V that was built from it. A device accepts a library product if it has a
    /// GEMM library.
    pub fn is_taken_by(&self, caps: &Caps) -> bool {
        match self.language() {
            Some(language) => caps.languages.contains(&language) || self.built(caps).is_some(),
            None => caps.gemm.is_some(),
        }
    }

    /// Returns the PTX of the variant that is best for a device with `caps`, or its SPIR-V if the device does
    /// not compile OpenCL C. Returns `None` if the device does not accept this form, or if no such program was
    /// built.
    pub(crate) fn built(&self, caps: &Caps) -> Option<(Form, &'static Artefact)> {
        let Code::Text(text) = self.code else { return None };
        let takes = |language| caps.languages.contains(&language);
        match text.language {
            KernelLanguage::CudaC if takes(KernelLanguage::Ptx) => {
                artefacts::find_ptx(&text.text(), &caps.features).map(|ptx| (Form::Ptx, ptx))
            }
            KernelLanguage::OpenClC if takes(KernelLanguage::SpirV) && !takes(KernelLanguage::OpenClC) => {
                artefacts::find_spir_v(&text.text()).map(|spir_v| (Form::SpirV, spir_v))
            }
            _ => None,
        }
    }

    /// Returns whether a device with `caps` meets all requirements of the variant.
    pub fn runs_on(&self, caps: &Caps) -> bool {
        self.is_taken_by(caps)
            && self.requires.iter().all(|feature| caps.features.contains(feature))
            && self.work_group_items() <= caps.max_work_group_items
            && self.local_bytes() <= caps.local_memory_bytes
    }

    /// Returns whether the variant is a product that adds up in f16, on a device without matrix units.
    pub(crate) fn adds_in_f16(&self) -> bool {
        self.requires == ADDS_IN_F16
    }

    fn work_group_items(&self) -> u32 {
        match self.code {
            Code::Host(_) | Code::Library(_) => 1,
            Code::Text(text) => text.work_group.iter().product(),
        }
    }

    fn local_bytes(&self) -> u64 {
        match self.code {
            Code::Host(_) | Code::Library(_) => 0,
            Code::Text(text) => text.local_bytes,
        }
    }
}

/// Features of the devices for which products add up in f16 without matrix units.
pub(crate) const ADDS_IN_F16: &[Feature] = &[Feature::SubGroups, Feature::Fp16];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::variants;

    #[test]
    fn sources_hold_their_functions() {
        for variant in variants() {
            let Code::Text(text) = variant.code else { continue };
            let start = match text.language {
                KernelLanguage::Wgsl => format!("\nfn {}(", text.function),
                _ => format!(") {}(", text.function),
            };
            assert!(text.text().contains(&start), "{} {}", variant.kernel, variant.name);
        }
    }

    #[test]
    fn overflowing_constants_require_impossible_sizes() {
        for variant in variants() {
            for constant in [u32::MAX, u32::MAX - 31] {
                let mut extents = vec![0; variant.abi.bindings.len()];
                (variant.abi.extents)(&vec![constant; variant.abi.constants], &mut extents);
                assert!(extents.iter().any(|bytes| *bytes > 1 << 62), "{}: {extents:?}", variant.abi.name);
            }
        }
    }
}
