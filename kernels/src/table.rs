//! The table of variants, and the choice among them by a device's capabilities.

use crate::host;
use crate::kernel::{Kernel, NumericsClass};
use crate::opencl;
use ragtag_hal::{Caps, ClEntry, DeviceFunction, EntryAbi, Feature, HostFn, KernelLanguage, ModuleSource};
use std::sync::{Arc, LazyLock};

/// One way to run a kernel.
#[derive(Clone, Copy, Debug)]
pub struct Variant {
    /// The kernel.
    pub kernel: Kernel,
    /// The name of this way, as receipts show it: `avx512-vnni`, `portable`.
    pub name: &'static str,
    /// How close it comes to float64.
    pub class: NumericsClass,
    /// The features a device must have.
    pub requires: &'static [Feature],
    /// Bindings, constants, extents.
    pub abi: &'static EntryAbi,
    /// The grid of a launch with these constants, which are as many as the ABI says.
    pub grid: fn(constants: &[u32]) -> [u32; 3],
    /// Row capacities that it is made for: up to this many. It is right for any.
    pub max_rows: u32,
    /// The code.
    pub code: Code,
}

/// The code of a variant.
#[derive(Clone, Copy, Debug)]
pub enum Code {
    /// A function in this process.
    Host(HostFn),
    /// OpenCL C.
    OpenClC {
        /// Composes the complete text.
        source: fn() -> Arc<str>,
        /// The kernel function in it.
        function: &'static str,
        /// Work items in a group.
        work_group: [u32; 3],
        /// Local memory of a group, in bytes: at most so much.
        local_bytes: u64,
    },
}

impl Variant {
    /// The language a device must take.
    pub fn language(&self) -> KernelLanguage {
        match self.code {
            Code::Host(_) => KernelLanguage::Host,
            Code::OpenClC { .. } => KernelLanguage::OpenClC,
        }
    }

    /// Whether a device has what it takes.
    pub fn runs_on(&self, caps: &Caps) -> bool {
        caps.languages.contains(&self.language())
            && self.requires.iter().all(|feature| caps.features.contains(feature))
            && self.work_group_items() <= caps.max_work_group_items
            && self.local_bytes() <= caps.local_memory_bytes
    }

    fn work_group_items(&self) -> u32 {
        match self.code {
            Code::Host(_) => 1,
            Code::OpenClC { work_group, .. } => work_group.iter().product(),
        }
    }

    fn local_bytes(&self) -> u64 {
        match self.code {
            Code::Host(_) => 0,
            Code::OpenClC { local_bytes, .. } => local_bytes,
        }
    }
}

/// Every variant that this build has, better ones first.
pub fn variants() -> &'static [Variant] {
    static VARIANTS: LazyLock<Vec<Variant>> =
        LazyLock::new(|| [host::variants(), opencl::variants()].concat());
    &VARIANTS
}

/// The best variant of a kernel for launches of up to `rows` rows on a device: the first that is made for so many and
/// that runs there.
pub fn select(kernel: Kernel, caps: &Caps, rows: u32) -> Option<&'static Variant> {
    variants().iter().find(|v| v.kernel == kernel && rows <= v.max_rows && v.runs_on(caps))
}

/// The code of a module with these variants as its entries; `None` if they are in several languages.
pub fn module_source<'a>(variants: impl IntoIterator<Item = &'a Variant>) -> Option<ModuleSource> {
    let (mut host, mut cl) = (Vec::new(), Vec::new());
    for variant in variants {
        match variant.code {
            Code::Host(function) => host.push(function),
            Code::OpenClC { source, function, work_group, .. } => {
                let function = DeviceFunction { name: function.into(), work_group };
                cl.push(ClEntry { source: source(), function });
            }
        }
    }
    match (host.is_empty(), cl.is_empty()) {
        (_, true) => Some(ModuleSource::Host(host)),
        (true, false) => Some(ModuleSource::OpenClC(cl)),
        (false, false) => None,
    }
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
            max_work_group_items: 1,
            local_memory_bytes: 0,
        }
    }

    #[test]
    fn every_kernel_runs_on_any_host() {
        for kernel in Kernel::all() {
            assert_eq!(select(kernel, &caps(&[]), 1).map(|v| v.name), Some("portable"), "{kernel}");
        }
    }

    #[test]
    fn every_kernel_runs_on_any_opencl_device() {
        let caps = Caps {
            languages: [KernelLanguage::OpenClC].into(),
            max_work_group_items: 256,
            local_memory_bytes: 32 << 10,
            ..caps(&[])
        };
        for kernel in Kernel::all() {
            for rows in [1, 2, 8, 512] {
                let variant = select(kernel, &caps, rows).unwrap_or_else(|| panic!("{kernel} × {rows}"));
                assert!(variant.name.starts_with("opencl"), "{kernel} × {rows}: {}", variant.name);
                assert_eq!(variant.class, kernel.class());
            }
            let small = Caps { max_work_group_items: 64, ..caps.clone() };
            assert!(select(kernel, &small, 1).is_none(), "{kernel}: groups are larger than that");
        }
        let little = Caps { local_memory_bytes: 1 << 10, ..caps };
        assert!(select(Kernel::Softmax, &little, 1).is_none());
    }

    #[test]
    fn sources_hold_their_functions() {
        for variant in variants() {
            let Code::OpenClC { source, function, .. } = variant.code else { continue };
            let text = source();
            assert!(text.contains(&format!(") {function}(\n")), "{} {}", variant.kernel, variant.name);
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn the_best_that_a_device_can_run_is_chosen() {
        for kernel in Kernel::all() {
            let name = |features: &[Feature]| select(kernel, &caps(features), 1).map(|v| v.name);
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
        assert!(select(Kernel::Add, &caps, 1).is_none());
    }
}
