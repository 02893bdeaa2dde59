//! Capabilities of a device, as data. Ragtag selects kernel variants, resident layouts and routes based on
//! these capabilities.

use crate::gemm::GemmLibrary;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Instruction sets and hardware features that kernel variants may require.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Feature {
    /// x86-64 AVX2, FMA and F16C.
    Avx2,
    /// x86-64 AVX-512 F, BW, VL, DQ and VNNI.
    Avx512Vnni,
    /// AArch64 Advanced SIMD with the dot-product extension.
    NeonDot,
    /// Half-precision arithmetic.
    Fp16,
    /// Sub-groups: work items that exchange values without local memory. On OpenCL and Level Zero, kernels can
    /// require sub-groups of 16.
    SubGroups,
    /// Four-way dot products of packed int8 in one instruction.
    IntegerDot,
    /// NVIDIA compute capability 7.0 or newer: matrix units for f16.
    Sm70,
    /// NVIDIA compute capability 7.5 or newer.
    Sm75,
    /// NVIDIA compute capability 8.0 or newer: bf16 and asynchronous copies into shared memory.
    Sm80,
    /// NVIDIA compute capability 9.0 or newer: programmatic dependent launch overlaps the start of a launch
    /// with the tail of its predecessor.
    Sm90,
    /// NVIDIA compute capability 9.0 only: matrix instructions that four warps execute together (`wgmma`).
    Sm90a,
    /// AMD GPUs with wavefronts of 64 work items.
    Wave64,
    /// Matrix instructions of AMD RDNA 3 and newer.
    Wmma,
    /// Matrix instructions of AMD CDNA.
    Mfma,
    /// Matrix instructions of Intel Xe-HPG, for sub-groups of 8 work items.
    Xmx,
    /// Cooperative matrices: a sub-group multiplies tiles of 16 × 16 f16 values and accumulates in f32.
    CooperativeMatrix,
}

/// A set of features.
pub type Features = BTreeSet<Feature>;

/// Language or binary format of kernel code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KernelLanguage {
    /// Rust functions in this process.
    Host,
    /// OpenCL C, compiled by the driver.
    OpenClC,
    /// CUDA C++, compiled by NVRTC.
    CudaC,
    /// PTX, NVIDIA's virtual instruction set, compiled by the driver.
    Ptx,
    /// HIP C++, compiled by hiprtc.
    HipC,
    /// SPIR-V for OpenCL's kernel execution model.
    SpirV,
    /// WGSL, WebGPU's shading language, with constants in the address space `immediate`.
    Wgsl,
}

/// Mapping of the three queues to the hardware.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QueueLayout {
    /// The three queues run concurrently.
    Separate,
    /// The three queues share one hardware queue.
    Single,
}

/// Capabilities and limits of a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Caps {
    /// Kernel languages that the device accepts.
    pub languages: BTreeSet<KernelLanguage>,
    /// Features that kernel variants may require.
    pub features: Features,
    /// Mapping of the three queues to the hardware.
    pub queues: QueueLayout,
    /// Whether submitting a recorded program costs less than submitting its commands.
    pub records_programs: bool,
    /// Largest single allocation, in bytes.
    pub max_allocation_bytes: u64,
    /// Maximum size of the range of one binding, in bytes.
    pub max_binding_bytes: u64,
    /// Required alignment of a binding's offset, in bytes.
    pub binding_alignment_bytes: u64,
    /// Required alignment of buffer offsets and lengths in uploads, downloads and copies, in bytes. The
    /// length may be unaligned if the range ends at the end of its buffer.
    pub copy_alignment_bytes: u64,
    /// Number of threads or compute units that execute a dispatch.
    pub parallel_units: u32,
    /// Maximum number of work items in a group. It is 1 if groups are not divided into work items.
    pub max_work_group_items: u32,
    /// Maximum local memory of a group in bytes.
    pub local_memory_bytes: u64,
    /// Clock rates and widths that the API reports.
    #[serde(default, skip_serializing_if = "Clocks::is_unknown")]
    pub clocks: Clocks,
    /// Matrix product library that modules may link to, if one was found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gemm: Option<GemmLibrary>,
    /// Memory sharing with other devices and APIs.
    #[serde(default, skip_serializing_if = "MemorySharing::is_none")]
    pub sharing: MemorySharing,
}

impl Default for Caps {
    /// Returns the capabilities of an unrestricted CPU: three concurrent queues, unlimited memory, and groups
    /// of one work item.
    fn default() -> Self {
        Self {
            languages: BTreeSet::new(),
            features: Features::new(),
            queues: QueueLayout::Separate,
            records_programs: true,
            max_allocation_bytes: isize::MAX as u64,
            max_binding_bytes: isize::MAX as u64,
            // The size of a cache line, so that the outputs of two kernels never share a cache line.
            binding_alignment_bytes: 64,
            copy_alignment_bytes: 1,
            parallel_units: 1,
            max_work_group_items: 1,
            local_memory_bytes: 0,
            clocks: Clocks::default(),
            gemm: None,
            sharing: MemorySharing::default(),
        }
    }
}

/// Clock rates and widths that an API reports, from which Ragtag computes peak rates. A value of 0 means that
/// the API does not report it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clocks {
    /// Clock of the compute units, in kHz.
    pub compute_khz: u32,
    /// Number of f32 lanes per compute unit. [`Caps::parallel_units`] is the number of compute units.
    pub lanes_per_unit: u32,
    /// Memory clock, in kHz. The memory makes two transfers per cycle.
    pub memory_khz: u32,
    /// Width of the memory bus in bits.
    pub memory_bus_bits: u32,
}

impl Clocks {
    /// Returns true if the API reports no clock rates and no widths.
    pub fn is_unknown(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the peak f32 rate of `units` compute units, in FLOP/s, or `None` if a reported value is
    /// missing or implausible.
    pub fn flops_per_s(&self, units: u32) -> Option<f64> {
        let plausible = (100_000..=6_000_000).contains(&self.compute_khz)
            && (1..=1024).contains(&self.lanes_per_unit)
            && (1..=4096).contains(&units);
        let lanes = f64::from(units) * f64::from(self.lanes_per_unit);
        plausible.then(|| f64::from(self.compute_khz) * 1e3 * lanes * 2.0)
    }

    /// Returns the peak memory bandwidth in bytes per second, or `None` if a reported value is missing or
    /// implausible.
    pub fn bandwidth_bytes_per_s(&self) -> Option<f64> {
        let plausible = (100_000..=30_000_000).contains(&self.memory_khz)
            && (32..=16_384).contains(&self.memory_bus_bits);
        plausible.then(|| f64::from(self.memory_khz) * 1e3 * 2.0 * f64::from(self.memory_bus_bits) / 8.0)
    }
}

/// Kinds of memory sharing that a driver claims to support. Ragtag must test each kind on the machine before
/// using it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemorySharing {
    /// Indices of adapters of the same backend whose memory the device can access. The device can also access
    /// its own memory, which this set does not contain.
    pub peers: BTreeSet<u32>,
    /// Handle types as which the device can export memory.
    pub exports: BTreeSet<MemoryHandle>,
    /// Handle types from which the device can import memory.
    pub imports: BTreeSet<MemoryHandle>,
    /// Kinds of allocations with one address on the host and the device.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub unified: BTreeSet<UnifiedAllocation>,
}

impl MemorySharing {
    /// Returns true if the driver does not claim to support any kind of memory sharing.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// Kind of allocation with one address on the host and the device: shared virtual memory (SVM) of OpenCL, or
/// unified shared memory (USM) of Level Zero and of OpenCL's `cl_intel_unified_shared_memory`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UnifiedAllocation {
    /// SVM buffers that the host maps before it uses them.
    SvmCoarseBuffer,
    /// SVM buffers that host and device use at the same time.
    SvmFineBuffer,
    /// Any host memory, as SVM.
    SvmFineSystem,
    /// Atomic operations of host and device on the same SVM.
    SvmAtomics,
    /// Host memory that the device can access.
    UsmHost,
    /// Memory of the device.
    UsmDevice,
    /// Memory that moves between the host and one device.
    UsmShared,
    /// Memory that moves between the host and several devices.
    UsmSharedCrossDevice,
    /// Any host memory, as USM.
    UsmSharedSystem,
}

impl UnifiedAllocation {
    /// Returns the kinds that the bits of `CL_DEVICE_SVM_CAPABILITIES` name.
    pub fn of_svm(capabilities: u64) -> impl Iterator<Item = Self> {
        let kinds = [Self::SvmCoarseBuffer, Self::SvmFineBuffer, Self::SvmFineSystem, Self::SvmAtomics];
        (0..).zip(kinds).filter(move |(bit, _)| capabilities >> bit & 1 != 0).map(|(_, kind)| kind)
    }

    /// Returns the kinds of USM that a device can access. `accessible` lists whether it can access host memory, its
    /// own memory, memory shared with one device and with several devices, and any host memory.
    pub fn of_usm(accessible: [bool; 5]) -> impl Iterator<Item = Self> {
        let kinds = [
            Self::UsmHost,
            Self::UsmDevice,
            Self::UsmShared,
            Self::UsmSharedCrossDevice,
            Self::UsmSharedSystem,
        ];
        kinds.into_iter().zip(accessible).filter(|(_, accessible)| *accessible).map(|(kind, _)| kind)
    }
}

/// Handle type of memory that is exported to another device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemoryHandle {
    /// An opaque POSIX file descriptor, which only drivers can interpret.
    OpaqueFd,
    /// A dma-buf, which the drivers of all GPUs of a Linux system can interpret. Drivers often refuse the memory
    /// of another driver, so only a probe of the link shows whether an import works.
    DmaBuf,
    /// An object of the backend, which the devices in this process whose [`MemorySharing::peers`] contain the
    /// owner can use without a copy.
    DriverObject,
    /// [`HostPages`](crate::HostPages), which every device in this process can use.
    HostPages,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_name_the_kinds_of_shared_virtual_memory() {
        use UnifiedAllocation::{SvmAtomics, SvmCoarseBuffer, SvmFineBuffer, UsmDevice, UsmSharedSystem};
        let svm = UnifiedAllocation::of_svm(0b1011).collect::<Vec<_>>();
        assert_eq!(svm, [SvmCoarseBuffer, SvmFineBuffer, SvmAtomics]);
        let usm = UnifiedAllocation::of_usm([false, true, false, false, true]).collect::<Vec<_>>();
        assert_eq!(usm, [UsmDevice, UsmSharedSystem]);
    }

    #[test]
    fn peak_rates_follow_from_plausible_clocks() {
        // An H200.
        let clocks = Clocks {
            compute_khz: 1_980_000,
            lanes_per_unit: 128,
            memory_khz: 3_201_000,
            memory_bus_bits: 6144,
        };
        let tera = |rate: Option<f64>| (rate.unwrap() / 1e10).round() / 100.0;
        assert_eq!((tera(clocks.flops_per_s(132)), tera(clocks.bandwidth_bytes_per_s())), (66.91, 4.92));
        assert_eq!(clocks.flops_per_s(0), None);
        for compute_khz in [0, 1, 66, 1980, u32::MAX] {
            assert_eq!(Clocks { compute_khz, ..clocks }.flops_per_s(132), None);
        }
        for (memory_khz, memory_bus_bits) in
            [(0, 6144), (3_201_000, 0), (u32::MAX, 6144), (3_201_000, u32::MAX)]
        {
            assert_eq!(Clocks { memory_khz, memory_bus_bits, ..clocks }.bandwidth_bytes_per_s(), None);
        }
        assert!(Clocks::default().is_unknown() && !clocks.is_unknown());
    }
}
