//! What a device can do, as data: variants, layouts and routes are chosen from it in tables.

use crate::gemm::GemmLibrary;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Instruction sets and hardware features that kernel variants may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Feature {
    /// x86-64 AVX2, FMA and F16C.
    Avx2,
    /// x86-64 AVX-512 F, BW, VL, DQ and VNNI.
    Avx512Vnni,
    /// AArch64 Advanced SIMD with the dot-product extension.
    NeonDot,
    /// Half-precision arithmetic in kernels.
    Fp16,
    /// Sub-groups: work items of a group that exchange values without local memory.
    SubGroups,
    /// Four-way dot products of packed int8 in one instruction.
    IntegerDot,
    /// NVIDIA compute capability 7.0 or newer: matrix units for f16.
    Sm70,
    /// NVIDIA compute capability 7.5 or newer.
    Sm75,
    /// NVIDIA compute capability 8.0 or newer: bf16, asynchronous copies into shared memory.
    Sm80,
    /// NVIDIA compute capability 9.0 or newer: launches that overlap the end of the one before.
    Sm90,
    /// NVIDIA compute capability 9.0 itself, with what only it has: matrix instructions of four warps.
    Sm90a,
    /// AMD GPUs whose waves have 64 work items.
    Wave64,
    /// AMD matrix instructions of RDNA 3 and newer.
    Wmma,
    /// AMD matrix instructions of CDNA.
    Mfma,
    /// Matrices of 16 × 16 f16 values that the work items of a sub-group hold together and multiply, with f32 sums.
    CooperativeMatrix,
}

/// A set of features.
pub type Features = BTreeSet<Feature>;

/// A form of kernel code that a device takes.
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
    /// WebGPU's shading language, with constants in the address space `immediate`.
    Wgsl,
}

/// How the three queues lie on the hardware.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QueueLayout {
    /// Three queues that run at the same time.
    Separate,
    /// All three are one hardware queue.
    Single,
}

/// Capabilities and limits of a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Caps {
    /// The kernel languages that it takes.
    pub languages: BTreeSet<KernelLanguage>,
    /// Features that variants may ask for.
    pub features: Features,
    /// How the three queues lie on the hardware.
    pub queues: QueueLayout,
    /// Whether recorded programs are cheaper to submit than the same commands one by one.
    pub records_programs: bool,
    /// Largest single allocation, in bytes.
    pub max_allocation_bytes: u64,
    /// Largest range that one binding may span, in bytes.
    pub max_binding_bytes: u64,
    /// Alignment that a binding's offset needs, in bytes.
    pub binding_alignment_bytes: u64,
    /// What offsets in buffers and lengths of uploads, downloads and copies must be multiples of, in bytes; a length that
    /// reaches the end of its buffer need not be one.
    pub copy_alignment_bytes: u64,
    /// Threads or compute units that share the work of one dispatch.
    pub parallel_units: u32,
    /// Most work items in a group; 1 where groups are not divided.
    pub max_work_group_items: u32,
    /// Local memory that a group may use, in bytes.
    pub local_memory_bytes: u64,
    /// What the API says of its speed.
    #[serde(default, skip_serializing_if = "Clocks::is_unknown")]
    pub clocks: Clocks,
    /// The library of matrix products that modules may be linked to, if one was found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gemm: Option<GemmLibrary>,
    /// Who else may reach its memory.
    #[serde(default, skip_serializing_if = "MemorySharing::is_none")]
    pub sharing: MemorySharing,
}

impl Default for Caps {
    /// What a processor can do where nothing narrows it: three queues, memory without limits, groups that are not divided.
    fn default() -> Self {
        Self {
            languages: BTreeSet::new(),
            features: Features::new(),
            queues: QueueLayout::Separate,
            records_programs: true,
            max_allocation_bytes: isize::MAX as u64,
            max_binding_bytes: isize::MAX as u64,
            // A cache line: two kernels' outputs never share one.
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

/// Clocks and widths as an API reports them, from which peak rates follow; 0 where it says nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clocks {
    /// Clock of the compute units, in kHz.
    pub compute_khz: u32,
    /// f32 lanes of one of [`Caps::parallel_units`].
    pub lanes_per_unit: u32,
    /// Clock of the memory, in kHz. Two transfers are made in a cycle.
    pub memory_khz: u32,
    /// Width of the memory's bus.
    pub memory_bus_bits: u32,
}

impl Clocks {
    /// Whether nothing is reported.
    pub fn is_unknown(&self) -> bool {
        *self == Self::default()
    }

    /// Peak f32 rate of `units` compute units, in FLOP/s; `None` if the report is missing or implausible.
    pub fn flops_per_s(&self, units: u32) -> Option<f64> {
        let plausible = (100_000..=6_000_000).contains(&self.compute_khz)
            && (1..=1024).contains(&self.lanes_per_unit)
            && (1..=4096).contains(&units);
        let lanes = f64::from(units) * f64::from(self.lanes_per_unit);
        plausible.then(|| f64::from(self.compute_khz) * 1e3 * lanes * 2.0)
    }

    /// Peak rate of the memory in bytes per second; `None` where it is not reported or the report is absurd.
    pub fn bandwidth_bytes_per_s(&self) -> Option<f64> {
        let plausible = (100_000..=30_000_000).contains(&self.memory_khz)
            && (32..=16_384).contains(&self.memory_bus_bits);
        plausible.then(|| f64::from(self.memory_khz) * 1e3 * 2.0 * f64::from(self.memory_bus_bits) / 8.0)
    }
}

/// What a driver promises about memory that several devices reach. Nothing relies on it that was not tried.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemorySharing {
    /// The adapters of the same backend, by their index, whose memory it reaches.
    pub peers: BTreeSet<u32>,
    /// The handles under which its memory can be given to others.
    pub exports: BTreeSet<MemoryHandle>,
    /// The handles under which it takes memory of others.
    pub imports: BTreeSet<MemoryHandle>,
}

impl MemorySharing {
    /// Whether nothing is shared with anyone.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// What memory is called when it is given to another API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemoryHandle {
    /// A POSIX file descriptor that means nothing but to drivers.
    OpaqueFd,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peak_rates_follow_from_clocks_unless_they_are_absurd() {
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
