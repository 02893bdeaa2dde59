//! Commands, modules and submissions: plain data that a device executes.

use crate::caps::KernelLanguage;
use crate::gemm::GemmEntry;
use crate::host::HostFn;
use crate::ids::{BufferId, ModuleId, Point, ProgramId, QueueKind, RegionId};
use std::sync::Arc;

/// A kernel's access to the bytes of a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The kernel only reads the binding.
    Read,
    /// The kernel only writes the binding, and does not depend on its previous contents.
    Write,
    /// The kernel reads and writes the binding.
    ReadWrite,
}

/// A range of a buffer, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BufferRange {
    /// The buffer.
    pub buffer: BufferId,
    /// First byte.
    pub offset: u64,
    /// Number of bytes. It is never zero.
    pub bytes: u64,
}

/// A range of a buffer that is bound to a kernel argument. A binding that the kernel writes must not overlap
/// any other binding of the dispatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    /// Range of the buffer to bind.
    pub range: BufferRange,
    /// The kernel's access to the range. It must match the entry's ABI.
    pub access: Access,
}

/// One launch of a kernel over a grid of work groups.
#[derive(Clone, Debug, PartialEq)]
pub struct Dispatch {
    /// Module that contains the kernel.
    pub module: ModuleId,
    /// Entry of the module: an index into [`Module::entries`].
    pub entry: u32,
    /// Bound ranges in the ABI's order.
    pub bindings: Vec<Binding>,
    /// Constants in the ABI's order. Floats are passed as their bit patterns.
    pub constants: Vec<u32>,
    /// Number of work groups along x, y and z, at most 2^32 - 1 groups in total. If any of the three is zero,
    /// the dispatch does nothing. Groups of one dispatch may run concurrently and in any order. Two groups
    /// must not write the same bytes.
    pub grid: [u32; 3],
}

/// A command for a queue. The commands of a submission take effect in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// A kernel launch (compute queue).
    Dispatch(Dispatch),
    /// A copy between buffers (any queue). The ranges have the same length and do not overlap.
    Copy {
        /// Source.
        from: BufferRange,
        /// Destination.
        to: BufferRange,
    },
    /// A fill with a 32-bit word (compute queue). Offset and length are multiples of four.
    Fill {
        /// Destination.
        to: BufferRange,
        /// Word that fills the range.
        word: u32,
    },
    /// A copy from a registered host region (compute or upload queue).
    Upload {
        /// Region to copy from.
        region: RegionId,
        /// First byte in the region.
        offset: u64,
        /// Destination.
        to: BufferRange,
    },
    /// An upload of the start of a range, up to the end of its used words (compute queue). The host writes
    /// their number before it submits the work. A device may copy the whole range, for example if the copies
    /// that it records have a fixed size.
    UploadUsed {
        /// Region to copy from.
        region: RegionId,
        /// First byte in the region.
        offset: u64,
        /// Destination of the whole range, whole 32-bit words.
        to: BufferRange,
        /// Index of the word of the range that holds the number of used words.
        used: u32,
    },
    /// A copy into a registered host region (compute or download queue).
    Download {
        /// Source.
        from: BufferRange,
        /// Region to copy into.
        region: RegionId,
        /// First byte in the region.
        offset: u64,
    },
}

/// The work of a submission.
#[derive(Clone, Debug, PartialEq)]
pub enum Work {
    /// Commands to execute once. A submission with an empty list only waits and signals.
    Commands(Vec<Command>),
    /// A recorded program (compute queue only).
    Program(ProgramId),
}

/// Work for a queue, the points that it waits for, and the point that it signals.
#[derive(Clone, Debug, PartialEq)]
pub struct Submission {
    /// Queue that executes the work.
    pub queue: QueueKind,
    /// Work to execute.
    pub work: Work,
    /// Points that must pass before the work starts. The timeline of a point of another device must have been
    /// imported. A point of this device must be signalled by an earlier submission, because APIs cannot wait
    /// for later submissions.
    pub waits: Vec<Point>,
    /// Point that passes when the work is done. It lies on the timeline of `queue`, and its value is larger
    /// than the values of all earlier submissions.
    pub signal: Point,
    /// Whether the device must report when the work starts and ends. On some devices, timed copies take
    /// several microseconds longer.
    pub is_timed: bool,
}

impl Submission {
    /// Creates a submission whose times the device reports.
    pub fn timed(queue: QueueKind, work: Work, waits: Vec<Point>, signal: Point) -> Self {
        Self { queue, work, waits, signal, is_timed: true }
    }
}

/// Binary interface of a kernel entry. `Checked` validates every dispatch against it.
#[derive(Debug)]
pub struct EntryAbi {
    /// Name in its module.
    pub name: &'static str,
    /// The kernel's access to each binding.
    pub bindings: &'static [Access],
    /// Number of 32-bit constants.
    pub constants: usize,
    /// Function that computes the extent of each binding. The extent is the number of bytes, from the start
    /// of the binding, that a launch with `constants` may access. The arithmetic saturates. An overflowing
    /// extent becomes `u64::MAX`. This makes the dispatch invalid, because no binding is that large.
    pub extents: fn(constants: &[u32], extents: &mut [u64]),
}

/// Code of a module.
#[derive(Clone, Debug)]
pub enum ModuleSource {
    /// CPU kernels: one Rust function in this process per entry.
    Host(Vec<HostFn>),
    /// Source code for the driver or its compiler, one text per entry.
    Text {
        /// The language: OpenCL C, CUDA C++, PTX, HIP C++ or WGSL.
        language: KernelLanguage,
        /// Source text and function of each entry.
        entries: Vec<TextEntry>,
    },
    /// Kernel source for some entries, and matrix products of a library for the others. The device's
    /// capabilities name the library.
    Linked {
        /// Language of the source texts, or `None` if all entries are products.
        language: Option<KernelLanguage>,
        /// Kernels and products, in the order of [`Module::entries`].
        entries: Vec<LinkedEntry>,
    },
    /// SPIR-V, one binary per entry.
    SpirV {
        /// Binary and function of each entry, in the order of [`Module::entries`].
        entries: Vec<BinaryEntry>,
    },
}

impl ModuleSource {
    /// Returns the source text or the binary of an entry, or `None` for a product of a library and for a function of
    /// this process.
    pub fn code(&self, entry: usize) -> Option<&[u8]> {
        match self {
            ModuleSource::Host(_) => None,
            ModuleSource::Text { entries, .. } => Some(entries.get(entry)?.text.as_bytes()),
            ModuleSource::Linked { entries, .. } => match entries.get(entry)? {
                LinkedEntry::Text(text) => Some(text.text.as_bytes()),
                LinkedEntry::Gemm(_) => None,
            },
            ModuleSource::SpirV { entries } => Some(&entries.get(entry)?.binary),
        }
    }
}

/// A kernel function in code for a device. Its parameters are the entry's bindings as global pointers,
/// followed by the constants as 32-bit words.
///
/// In WGSL, the bindings are `@group(0) @binding(i)` in the address space `storage`, in the entry's order.
/// The address space `immediate` holds the position of the first work group in three words, followed by the
/// constants. A grid that exceeds the device's limit is launched in several parts. The position of a group in
/// the grid is therefore its `workgroup_id` plus the position of the first work group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFunction {
    /// Name.
    pub name: String,
    /// Work items in a group.
    pub work_group: [u32; 3],
    /// Local memory of a group in bytes, in addition to the memory that the code declares. It is always 0 in
    /// OpenCL.
    pub dynamic_local_bytes: u32,
}

/// A kernel function and its source text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextEntry {
    /// Complete source text. Entries with equal texts share one program.
    pub text: Arc<str>,
    /// Function in the source text.
    pub function: DeviceFunction,
}

/// A kernel function and its SPIR-V binary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BinaryEntry {
    /// SPIR-V words in little-endian order. Entries with equal binaries share one program.
    pub binary: Arc<[u8]>,
    /// Function in the binary.
    pub function: DeviceFunction,
}

/// An entry of a module that links to a library.
#[derive(Clone, Debug)]
pub enum LinkedEntry {
    /// A kernel.
    Text(TextEntry),
    /// A matrix product that the library computes. A dispatch with an empty grid skips the product. A
    /// dispatch with any other grid computes the whole product.
    Gemm(GemmEntry),
}

/// A set of kernel entries: their ABIs and their code.
#[derive(Clone, Debug)]
pub struct Module {
    /// Name for messages and reports.
    pub name: String,
    /// Entries. A dispatch selects an entry by its index.
    pub entries: Vec<&'static EntryAbi>,
    /// Code of the entries.
    pub source: ModuleSource,
}
