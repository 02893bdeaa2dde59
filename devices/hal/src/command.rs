//! Commands, modules and submissions: plain data that a device executes.

use crate::caps::KernelLanguage;
use crate::gemm::GemmEntry;
use crate::host::HostFn;
use crate::ids::{BufferId, ModuleId, Point, ProgramId, QueueKind, RegionId};
use std::sync::Arc;

/// Use of a binding by a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read only.
    Read,
    /// Written only; the old contents do not matter.
    Write,
    /// Read and written.
    ReadWrite,
}

/// A range of a buffer, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BufferRange {
    /// The buffer.
    pub buffer: BufferId,
    /// First byte.
    pub offset: u64,
    /// Number of bytes, not zero.
    pub bytes: u64,
}

/// A range of a buffer bound to a kernel argument. A written binding must not overlap another binding of the
/// dispatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The range.
    pub range: BufferRange,
    /// Use by the kernel. Must match the entry's ABI.
    pub access: Access,
}

/// One launch of a kernel over a grid of work groups.
#[derive(Clone, Debug, PartialEq)]
pub struct Dispatch {
    /// The module.
    pub module: ModuleId,
    /// Entry of the module: an index into [`Module::entries`].
    pub entry: u32,
    /// The arguments, in the ABI's order.
    pub bindings: Vec<Binding>,
    /// Constants in the ABI's order. Floats are passed as their bits.
    pub constants: Vec<u32>,
    /// Number of work groups. Groups of one dispatch may run in any order and concurrently, and never write
    /// the same bytes. At most 2^32 - 1 groups; a grid with a zero does nothing.
    pub grid: [u32; 3],
}

/// A command of a queue. Commands of one submission take effect in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Launch a kernel (compute queue).
    Dispatch(Dispatch),
    /// Copy within the device. The ranges have the same length and do not overlap (compute queue).
    Copy {
        /// Source.
        from: BufferRange,
        /// Destination.
        to: BufferRange,
    },
    /// Fill with a 32-bit word. Offset and length are multiples of four (compute queue).
    Fill {
        /// Destination.
        to: BufferRange,
        /// The word.
        word: u32,
    },
    /// Copy from a registered host region (compute or upload queue).
    Upload {
        /// The region.
        region: RegionId,
        /// First byte in the region.
        offset: u64,
        /// Destination.
        to: BufferRange,
    },
    /// Copy into a registered host region (compute or download queue).
    Download {
        /// Source.
        from: BufferRange,
        /// The region.
        region: RegionId,
        /// First byte in the region.
        offset: u64,
    },
}

/// The work of a submission.
#[derive(Clone, Debug, PartialEq)]
pub enum Work {
    /// Commands to execute once. An empty list only waits and signals.
    Commands(Vec<Command>),
    /// A recorded program (compute queue only).
    Program(ProgramId),
}

/// Work for a queue, with the points that it waits for and signals.
#[derive(Clone, Debug, PartialEq)]
pub struct Submission {
    /// The queue.
    pub queue: QueueKind,
    /// The work.
    pub work: Work,
    /// Points that must have passed before the work starts. Each belongs to an imported timeline, or is a
    /// point of the device that an earlier submission signals (events and graphs cannot name a later one).
    pub waits: Vec<Point>,
    /// Point that passes when the work is done. On the timeline of `queue`, above every point signalled there
    /// before.
    pub signal: Point,
}

/// Binary interface of a kernel entry. `Checked` validates every dispatch against it.
#[derive(Debug)]
pub struct EntryAbi {
    /// Name in its module.
    pub name: &'static str,
    /// One access per binding.
    pub bindings: &'static [Access],
    /// Number of 32-bit constants.
    pub constants: usize,
    /// Writes, for each binding, the number of bytes from its start that a launch with these constants may
    /// touch. The arithmetic saturates, so constants that overflow require `u64::MAX` bytes, which no binding
    /// has.
    pub extents: fn(constants: &[u32], extents: &mut [u64]),
}

/// Code of a module.
#[derive(Clone, Debug)]
pub enum ModuleSource {
    /// Functions in this process, one per entry.
    Host(Vec<HostFn>),
    /// Source text for the driver or its compiler, one per entry.
    Text {
        /// The language: OpenCL C, CUDA C++, PTX, HIP C++ or WGSL.
        language: KernelLanguage,
        /// The entries' texts and functions.
        entries: Vec<TextEntry>,
    },
    /// Like `Text`, with some entries as products of the library that the device's capabilities name.
    Linked {
        /// Language of the texts, if there are any.
        language: Option<KernelLanguage>,
        /// The entries.
        entries: Vec<LinkedEntry>,
    },
    /// A SPIR-V binary, with one function for each entry.
    SpirV {
        /// The words, little-endian.
        binary: Arc<[u8]>,
        /// The functions.
        functions: Vec<DeviceFunction>,
    },
}

/// A kernel function for a device compiler. Its parameters are the entry's bindings as global pointers, then
/// its constants as 32-bit words.
///
/// In WGSL the bindings are `@group(0) @binding(i)` in the address space `storage`, in the entry's order. The
/// address space `immediate` holds three words with the position of the first work group, then the constants.
/// A grid that exceeds the device's limit is launched in parts, and a group's position in the grid is the sum
/// of that position and its `workgroup_id`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFunction {
    /// Name.
    pub name: String,
    /// Work items in a group.
    pub work_group: [u32; 3],
    /// Bytes of local memory per group beyond what the code declares. Always 0 in OpenCL.
    pub dynamic_local_bytes: u32,
}

/// A kernel function with its source text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextEntry {
    /// Complete text. Entries with equal texts share one program.
    pub text: Arc<str>,
    /// The function.
    pub function: DeviceFunction,
}

/// An entry of a module that links to a library.
#[derive(Clone, Debug)]
pub enum LinkedEntry {
    /// A kernel.
    Text(TextEntry),
    /// A product of the library. An empty grid skips it; its grid has no other meaning.
    Gemm(GemmEntry),
}

/// Entries with their ABIs, and their code in a language that the device accepts.
#[derive(Clone, Debug)]
pub struct Module {
    /// Name for messages and reports.
    pub name: String,
    /// Entries. A dispatch names one by its index.
    pub entries: Vec<&'static EntryAbi>,
    /// The code.
    pub source: ModuleSource,
}
