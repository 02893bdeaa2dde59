//! Implements the subset of HIP, hiprtc and rocBLAS that Ragtag calls: the C interface, its handles and the
//! device properties. An engine supplies memory, streams, events and a compiler.
//!
//! A stand-in is a library that declares `type Engine = …;` and passes the list of functions to [`export!`].
//! The stand-in does not compile if this crate lacks a listed function or declares it with other parameters.
//! Environment variables set the reported properties:
//!
//! | variable | meaning |
//! | --- | --- |
//! | `HIP_VISIBLE_DEVICES` | visible devices, as in the real driver |
//! | `RAGTAG_FAKE_ARCH` | architecture of all devices; the default is [`ARCHITECTURE`] |
//! | `RAGTAG_FAKE_PEERS` | if set, devices are peers; if `refused`, enabling the access of a peer fails |
//! | `RAGTAG_FAKE_ABORT` | if set, the compiler aborts the process, as the real compiler does on unknown input |
//!
//! Used only by tests. Knows nothing about the engines.

mod blas;
mod code;
pub mod entries;
mod settings;

pub use code::Signature;
pub use settings::ARCHITECTURE;

/// Types and constants that the signatures of the exported functions use.
pub use ragtag_hip::symbols;

use std::ffi::{CStr, c_void};
use symbols::Handle;

/// Nonzero code of `hipError_t`.
pub type Code = i32;
/// Result of a HIP call.
pub type Result<T> = std::result::Result<T, Code>;

/// Properties of a device.
#[derive(Clone, Debug, Default)]
pub struct DeviceProperties {
    /// Device name.
    pub name: String,
    /// PCI address such as `0000:03:00.0`, if any.
    pub pci: Option<String>,
    /// UUID, if any.
    pub uuid: Option<[u8; 16]>,
    /// Size of the device memory, in bytes.
    pub total_bytes: usize,
    /// Number of compute units.
    pub units: i32,
    /// Maximum number of work items per group.
    pub max_items: i32,
    /// Local memory per group, in bytes.
    pub local_bytes: i32,
    /// Whether the device supports stream-ordered allocation.
    pub pools: bool,
}

/// Dimensions of a kernel launch.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Number of work groups in each dimension.
    pub grid: [u32; 3],
    /// Number of work items per group in each dimension.
    pub block: [u32; 3],
    /// Dynamic local memory, in bytes.
    pub shared_bytes: u32,
}

/// Implementation behind the exported functions. A device number is an index into [`Engine::devices`].
///
/// # Safety
/// Callers must meet HIP's requirements for addresses and arguments.
pub trait Engine: Sized + Send + Sync + 'static {
    /// Stream of one device.
    type Stream: Send + Sync;
    /// An event.
    type Event: Send + Sync;
    /// Code loaded on a device.
    type Module: Send + Sync;
    /// A kernel function.
    type Function: Send + Sync;
    /// Graph of the work captured from a stream.
    type Graph: Send + Sync;

    /// Returns the engine of this process. The first call creates the engine.
    fn engine() -> Result<&'static Self>;
    /// Returns the properties of all devices.
    fn devices(&self) -> &[DeviceProperties];
    /// Returns the number of free bytes on a device.
    fn free_bytes(&self, device: usize) -> Result<usize>;
    /// Allocates memory on a device.
    fn allocate(&self, device: usize, bytes: usize) -> Result<Handle>;
    /// Frees memory after all submitted work has ended.
    fn free(&self, device: usize, address: Handle) -> Result<()>;
    /// Returns the device whose memory contains an address, if the driver does not check peer access itself.
    fn owner(&self, address: usize) -> Option<usize>;
    /// Allocates memory in stream order, like `hipMallocAsync`.
    fn allocate_on(&self, stream: &Self::Stream, bytes: usize) -> Result<Handle>;
    /// Frees memory in stream order, like `hipFreeAsync`.
    fn free_on(&self, stream: &Self::Stream, address: Handle) -> Result<()>;
    /// Pins host memory.
    fn pin(&self, device: usize, pointer: *mut c_void, bytes: usize) -> Result<()>;
    /// Returns the address at which a device accesses pinned memory.
    fn pinned_address(&self, device: usize, pointer: *mut c_void) -> Result<Handle>;
    /// Unpins host memory.
    fn unpin(&self, device: usize, pointer: *mut c_void) -> Result<()>;
    /// Creates a stream.
    fn stream(&self, device: usize) -> Result<Self::Stream>;
    /// Blocks until all work of a stream has ended.
    fn finish(&self, stream: &Self::Stream) -> Result<()>;
    /// Creates an event.
    fn event(&self, device: usize) -> Result<Self::Event>;
    /// Records an event on a stream.
    fn record(&self, event: &Self::Event, stream: &Self::Stream) -> Result<()>;
    /// Makes a stream wait for an event.
    fn wait(&self, stream: &Self::Stream, event: &Self::Event) -> Result<()>;
    /// Returns whether an event has completed.
    fn has_passed(&self, event: &Self::Event) -> Result<bool>;
    /// Blocks until an event has completed.
    fn synchronise(&self, event: &Self::Event) -> Result<()>;
    /// Returns the time between two events, in milliseconds.
    fn elapsed_ms(&self, from: &Self::Event, to: &Self::Event) -> Result<f32>;
    /// Enqueues a copy. `kind` is a `hipMemcpyKind`.
    fn copy(&self, stream: &Self::Stream, to: Handle, from: *const u8, bytes: usize, kind: i32)
    -> Result<()>;
    /// Enqueues a fill of `words` 32-bit words with the value `word`.
    fn fill(&self, stream: &Self::Stream, to: Handle, word: u32, words: usize) -> Result<()>;
    /// Compiles the source `text` for the devices in `devices`, regardless of the architecture that they
    /// report. Returns the kernel signatures and the code.
    ///
    /// # Errors
    /// Returns the compiler's log if the source does not compile.
    fn compile(
        &self,
        devices: &[usize],
        text: &str,
        options: &[String],
    ) -> std::result::Result<(Vec<Signature>, Vec<u8>), String>;
    /// Loads code that [`Engine::compile`] returned.
    fn load(&self, device: usize, signatures: Vec<Signature>, code: &[u8]) -> Result<Self::Module>;
    /// Looks up a function of a module by its name.
    fn function(&self, module: &Self::Module, name: &CStr) -> Result<Self::Function>;
    /// Returns the maximum group size, in work items, for launches of `function`.
    fn max_items(&self, function: &Self::Function) -> Result<i32>;
    /// Enqueues a kernel launch. `arguments` points to an array with one pointer per kernel argument.
    fn launch(
        &self,
        stream: &Self::Stream,
        function: &Self::Function,
        shape: &Shape,
        arguments: *const Handle,
    ) -> Result<()>;
    /// Starts a capture, which records the work that callers enqueue on a stream.
    fn begin_capture(&self, stream: &Self::Stream) -> Result<()>;
    /// Ends the capture of a stream and returns the captured work.
    fn end_capture(&self, stream: &Self::Stream) -> Result<Self::Graph>;
    /// Enqueues the captured work of `graph` on a stream.
    fn play(&self, graph: &Self::Graph, stream: &Self::Stream) -> Result<()>;
}

/// Exports the listed functions, implemented by the type `Engine` of the calling crate.
#[macro_export]
#[allow(clippy::crate_in_macro_def)] // the type belongs to the stand-in
macro_rules! export {
    ($($group:ident { $(fn $name:ident($($argument:ident: $type:ty),* $(,)?);)* })*) => {
        $($(
            /// Implements the HIP, hiprtc or rocBLAS function of the same name.
            ///
            /// # Safety
            /// The caller must meet HIP's requirements.
            #[allow(non_snake_case)] // HIP's name
            // SAFETY: no other function of the process has the name of a HIP function, unless this function
            // is meant to replace it.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> i32 {
                // SAFETY: the caller meets HIP's requirements.
                unsafe { $crate::entries::$name::<crate::Engine>($($argument),*) }
            }
        )*)*
    };
}
