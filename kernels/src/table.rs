//! The table of variants, and the choice among them by a device's capabilities.

use crate::host;
use crate::kernel::{Kernel, NumericsClass};
use ragtag_hal::{Caps, EntryAbi, Feature, HostFn, KernelLanguage};
use std::sync::LazyLock;

/// One way to run a kernel.
#[derive(Clone, Copy, Debug)]
pub struct Variant {
    /// The kernel.
    pub kernel: Kernel,
    /// The name of this way, as receipts show it: `avx512-vnni`, `portable`.
    pub name: &'static str,
    /// How close it comes to float64.
    pub class: NumericsClass,
    /// The language a device must take.
    pub language: KernelLanguage,
    /// The features a device must have.
    pub requires: &'static [Feature],
    /// Bindings, constants, extents.
    pub abi: &'static EntryAbi,
    /// The grid of a launch with these constants, which are as many as the ABI says.
    pub grid: fn(constants: &[u32]) -> [u32; 3],
    /// The code.
    pub function: HostFn,
}

/// Every variant that this build has, better ones first.
pub fn variants() -> &'static [Variant] {
    static VARIANTS: LazyLock<Vec<Variant>> = LazyLock::new(host::variants);
    &VARIANTS
}

/// The best variant of a kernel for a device: the first whose language it takes and whose features it has.
pub fn select(kernel: Kernel, caps: &Caps) -> Option<&'static Variant> {
    let fits = |v: &&Variant| {
        v.kernel == kernel
            && caps.languages.contains(&v.language)
            && v.requires.iter().all(|feature| caps.features.contains(feature))
    };
    variants().iter().find(fits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ragtag_hal::QueueLayout;

    fn caps(features: &[Feature]) -> Caps {
        Caps {
            languages: [KernelLanguage::Host].into(),
            features: features.iter().copied().collect(),
            queues: QueueLayout::Separate,
            foreign_points: true,
            records_programs: false,
            max_allocation_bytes: 1 << 40,
            max_binding_bytes: 1 << 40,
            binding_alignment_bytes: 64,
            parallel_units: 1,
        }
    }

    #[test]
    fn every_kernel_runs_on_any_host() {
        for kernel in Kernel::all() {
            assert_eq!(select(kernel, &caps(&[])).map(|v| v.name), Some("portable"), "{kernel}");
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn the_best_that_a_device_can_run_is_chosen() {
        for kernel in Kernel::all() {
            let name = |features: &[Feature]| select(kernel, &caps(features)).map(|v| v.name);
            assert_eq!(name(&[Feature::Avx2]), Some("avx2"), "{kernel}");
            assert_eq!(name(&[Feature::Avx2, Feature::Avx512Vnni]), Some("avx512-vnni"), "{kernel}");
        }
    }

    #[test]
    fn constants_that_overflow_ask_for_more_than_there_is() {
        for variant in variants() {
            for constant in [u32::MAX, u32::MAX - 31] {
                let mut extents = vec![0; variant.abi.bindings.len()];
                (variant.abi.extents)(&vec![constant; variant.abi.constants], &mut extents);
                assert!(extents.iter().any(|bytes| *bytes > 1 << 62), "{}: {extents:?}", variant.abi.name);
            }
        }
    }

    #[test]
    fn a_device_that_takes_no_host_code_gets_none() {
        let caps = Caps { languages: Default::default(), ..caps(&[]) };
        assert!(select(Kernel::Add, &caps).is_none());
    }
}
