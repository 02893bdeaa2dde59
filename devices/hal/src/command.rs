//! Commands, modules and submissions: plain data that a device executes.

use crate::caps::KernelLanguage;
use crate::gemm::GemmEntry;
use crate::host::HostFn;
use crate::ids::{BufferId, ModuleId, Point, ProgramId, QueueKind, RegionId};
use std::sync::Arc;

/// What a kernel does with a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Only read.
    Read,
    /// Only written: what was there before does not matter.
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

/// A range of a buffer bound to a kernel argument. What a kernel writes overlaps none of its other bindings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The bytes.
    pub range: BufferRange,
    /// How the kernel uses them; must be what the entry's ABI says.
    pub access: Access,
}

/// One launch of a kernel over a grid of work groups.
#[derive(Clone, Debug, PartialEq)]
pub struct Dispatch {
    /// The module.
    pub module: ModuleId,
    /// Which entry of the module: an index into [`Module::entries`].
    pub entry: u32,
    /// The arguments, in the ABI's order.
    pub bindings: Vec<Binding>,
    /// The constants, in the ABI's order. Floats travel as their bits.
    pub constants: Vec<u32>,
    /// Number of work groups. Groups of one dispatch may run in any order and at the same time; a kernel's groups
    /// never write the same bytes. At most 2^32 - 1 groups; a grid with a zero does nothing.
    pub grid: [u32; 3],
}

/// Something a queue does. Commands of one submission take effect in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Launch a kernel (compute queue).
    Dispatch(Dispatch),
    /// Copy within the device; the ranges have the same length and do not overlap (compute queue).
    Copy {
        /// Read from here.
        from: BufferRange,
        /// Written to here.
        to: BufferRange,
    },
    /// Fill with a 32-bit word; offset and length are multiples of four (compute queue).
    Fill {
        /// Written to here.
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
        /// Written to here.
        to: BufferRange,
    },
    /// Copy into a registered host region (compute or download queue).
    Download {
        /// Read from here.
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
    /// These commands, once. An empty list only waits and signals.
    Commands(Vec<Command>),
    /// A program recorded before (compute queue only).
    Program(ProgramId),
}

/// Work for a queue, with what it waits for and what it signals.
#[derive(Clone, Debug, PartialEq)]
pub struct Submission {
    /// The queue.
    pub queue: QueueKind,
    /// What to do.
    pub work: Work,
    /// Points that must have passed before the work starts: the device's own, signalled by an earlier submission
    /// (events and graphs can name no later one), or of an imported timeline.
    pub waits: Vec<Point>,
    /// Passes when the work is done: on the timeline of `queue`, larger than any point that this queue signalled before.
    pub signal: Point,
}

/// The binary interface of one kernel entry. `Checked` holds every dispatch to it.
#[derive(Debug)]
pub struct EntryAbi {
    /// The entry's name in its module.
    pub name: &'static str,
    /// One access per binding.
    pub bindings: &'static [Access],
    /// Number of 32-bit constants.
    pub constants: usize,
    /// Writes, for each binding, the bytes that a launch with these constants may touch from the binding's start on.
    /// Saturating arithmetic: constants that overflow ask for `u64::MAX` bytes, which no binding has.
    pub extents: fn(constants: &[u32], extents: &mut [u64]),
}

/// The code of a module.
#[derive(Clone, Debug)]
pub enum ModuleSource {
    /// Functions in this process, one for each entry.
    Host(Vec<HostFn>),
    /// Text in a language that the driver or its compiler takes, one for each entry.
    Text {
        /// The language: OpenCL C, CUDA C++, PTX, HIP C++ or WGSL.
        language: KernelLanguage,
        /// The entries' texts and functions.
        entries: Vec<TextEntry>,
    },
    /// The same where some entries are products of the library that the device's capabilities name.
    Linked {
        /// The language of the texts; none if there is no text.
        language: Option<KernelLanguage>,
        /// The entries.
        entries: Vec<LinkedEntry>,
    },
    /// SPIR-V: a binary, and one function of it for each entry.
    SpirV {
        /// The words, little-endian.
        binary: Arc<[u8]>,
        /// The functions.
        functions: Vec<DeviceFunction>,
    },
}

/// A kernel function of a device's compiler. Its parameters are the entry's bindings as global pointers, then its
/// constants as 32-bit words.
///
/// A function in WGSL has the bindings as `@group(0) @binding(i)` in the address space `storage`, in the entry's order, and
/// finds in the address space `immediate` three words that are the first work group's place, then the constants: a grid that
/// is larger than what a device launches at once is launched in parts, and a group's place in the grid is the sum of that
/// place and its `workgroup_id`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFunction {
    /// Its name.
    pub name: String,
    /// Work items in a group.
    pub work_group: [u32; 3],
    /// Local memory that each group is launched with, beside what the code declares, in bytes. OpenCL has none.
    pub dynamic_local_bytes: u32,
}

/// A kernel function with the text that it is compiled from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextEntry {
    /// The complete text. Entries with equal texts are one program.
    pub text: Arc<str>,
    /// The function.
    pub function: DeviceFunction,
}

/// An entry of a module that is linked to a library.
#[derive(Clone, Debug)]
pub enum LinkedEntry {
    /// A kernel.
    Text(TextEntry),
    /// A product of the library's. Its grid says whether there is anything to do, and no more.
    Gemm(GemmEntry),
}

/// A module: entries with their ABIs, and their code in a language that the device takes.
#[derive(Clone, Debug)]
pub struct Module {
    /// For messages and reports.
    pub name: String,
    /// The entries; a dispatch names one by its position.
    pub entries: Vec<&'static EntryAbi>,
    /// The code.
    pub source: ModuleSource,
}
