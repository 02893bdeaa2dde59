//! The subset of HIP, hiprtc and rocBLAS that Ragtag calls, over any engine with memory, streams, events and
//! a compiler: the C interface, its handles, and the properties of devices.
//!
//! A stand-in is a library that declares `type Engine = …;` and passes the list of functions to [`export!`].
//! A function that is missing here, or has other parameters, fails to compile. Environment variables control
//! the pretended properties:
//!
//! | variable | meaning |
//! | --- | --- |
//! | `HIP_VISIBLE_DEVICES` | visible devices, as with the real driver |
//! | `RAGTAG_FAKE_ARCH` | architecture of all devices; default: [`ARCHITECTURE`] |
//! | `RAGTAG_FAKE_ABORT` | if set, the compiler aborts the process, as the real one does on unknown input |
//!
//! For tests only. Knows nothing about the engines.

mod blas;
mod code;
pub mod entries;
mod settings;

pub use code::Signature;
pub use settings::ARCHITECTURE;

/// Types and constants of the function list.
pub use ragtag_hip::symbols;

use std::ffi::{CStr, c_void};
use symbols::Handle;

/// A nonzero code of `hipError_t`.
pub type Code = i32;
/// Result of a call.
pub type Result<T> = std::result::Result<T, Code>;

/// Properties of a device.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Device name.
    pub name: String,
    /// PCI address such as `0000:03:00.0`, if any.
    pub pci: Option<String>,
    /// UUID, if any.
    pub uuid: Option<[u8; 16]>,
    /// Memory, in bytes.
    pub total_bytes: usize,
    /// Compute units.
    pub units: i32,
    /// Maximum work items per group.
    pub max_items: i32,
    /// Local memory per group, in bytes.
    pub local_bytes: i32,
    /// Whether it supports stream-ordered allocation.
    pub pools: bool,
}

/// Dimensions of a launch.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Work groups.
    pub grid: [u32; 3],
    /// Work items per group.
    pub block: [u32; 3],
    /// Dynamic local memory, in bytes.
    pub shared_bytes: u32,
}

/// The implementation behind the exported functions. Devices are numbered as in [`Engine::devices`].
///
/// # Safety
/// Callers must meet HIP's requirements for addresses and arguments.
pub trait Engine: Sized + Send + Sync + 'static {
    /// A queue of one device.
    type Stream: Send + Sync;
    /// An event.
    type Event: Send + Sync;
    /// Loaded code.
    type Module: Send + Sync;
    /// A kernel function.
    type Function: Send + Sync;
    /// Captured work.
    type Graph: Send + Sync;

    /// The engine of this process, created on first use.
    fn engine() -> Result<&'static Self>;
    /// All devices.
    fn devices(&self) -> &[Facts];
    /// Free bytes on a device.
    fn free_bytes(&self, device: usize) -> Result<usize>;
    /// Allocates memory on a device.
    fn allocate(&self, device: usize, bytes: usize) -> Result<Handle>;
    /// Frees memory after all work.
    fn free(&self, device: usize, address: Handle) -> Result<()>;
    /// Allocates memory in stream order.
    fn allocate_on(&self, stream: &Self::Stream, bytes: usize) -> Result<Handle>;
    /// Frees memory in stream order.
    fn free_on(&self, stream: &Self::Stream, address: Handle) -> Result<()>;
    /// Pins host memory.
    fn pin(&self, device: usize, pointer: *mut c_void, bytes: usize) -> Result<()>;
    /// Unpins host memory.
    fn unpin(&self, device: usize, pointer: *mut c_void) -> Result<()>;
    /// Creates a stream.
    fn stream(&self, device: usize) -> Result<Self::Stream>;
    /// Waits for all work of a stream.
    fn finish(&self, stream: &Self::Stream) -> Result<()>;
    /// Creates an event.
    fn event(&self, device: usize) -> Result<Self::Event>;
    /// Records an event on a stream.
    fn record(&self, event: &Self::Event, stream: &Self::Stream) -> Result<()>;
    /// Makes a stream wait for an event.
    fn wait(&self, stream: &Self::Stream, event: &Self::Event) -> Result<()>;
    /// Whether an event has passed.
    fn has_passed(&self, event: &Self::Event) -> Result<bool>;
    /// Blocks until an event has passed.
    fn synchronise(&self, event: &Self::Event) -> Result<()>;
    /// Milliseconds between two events.
    fn elapsed_ms(&self, from: &Self::Event, to: &Self::Event) -> Result<f32>;
    /// Enqueues a copy. `kind` is a `hipMemcpyKind`.
    fn copy(&self, stream: &Self::Stream, to: Handle, from: *const u8, bytes: usize, kind: i32)
    -> Result<()>;
    /// Enqueues a fill with 32-bit words.
    fn fill(&self, stream: &Self::Stream, to: Handle, word: u32, words: usize) -> Result<()>;
    /// Compiles a source for some devices, regardless of their pretended architecture. Returns the kernels
    /// and their code.
    ///
    /// # Errors
    /// Returns the compiler's log.
    fn compile(
        &self,
        devices: &[usize],
        text: &str,
        options: &[String],
    ) -> std::result::Result<(Vec<Signature>, Vec<u8>), String>;
    /// Loads the output of [`Engine::compile`].
    fn load(&self, device: usize, signatures: Vec<Signature>, code: &[u8]) -> Result<Self::Module>;
    /// Looks up a function of a module.
    fn function(&self, module: &Self::Module, name: &CStr) -> Result<Self::Function>;
    /// Maximum work items per group of a function.
    fn max_items(&self, function: &Self::Function) -> Result<i32>;
    /// Enqueues a launch. `arguments` points to one pointer per argument.
    fn launch(
        &self,
        stream: &Self::Stream,
        function: &Self::Function,
        shape: &Shape,
        arguments: *const Handle,
    ) -> Result<()>;
    /// Starts a capture.
    fn begin_capture(&self, stream: &Self::Stream) -> Result<()>;
    /// Ends the capture and returns its work.
    fn end_capture(&self, stream: &Self::Stream) -> Result<Self::Graph>;
    /// Enqueues captured work.
    fn play(&self, graph: &Self::Graph, stream: &Self::Stream) -> Result<()>;
}

/// Exports the functions of a list over the type `Engine` of the calling crate.
#[macro_export]
#[allow(clippy::crate_in_macro_def)] // the type belongs to the stand-in
macro_rules! export {
    ($($group:ident { $(fn $name:ident($($argument:ident: $type:ty),* $(,)?);)* })*) => {
        $($(
            /// HIP's function of this name.
            ///
            /// # Safety
            /// The caller must meet HIP's requirements.
            #[allow(non_snake_case)] // HIP's name
            // SAFETY: no other function of the process has a name of HIP's, unless it is meant to replace it.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> i32 {
                // SAFETY: the caller meets HIP's requirements.
                unsafe { $crate::entries::$name::<crate::Engine>($($argument),*) }
            }
        )*)*
    };
}
