//! HIP, hiprtc and rocBLAS as far as Ragtag calls them, over any engine that has memory, streams, events and a compiler: the C
//! interface, its handles, and what it says of devices.
//!
//! A stand-in is a library that says `type Engine = …;` and hands the list of functions to [`export!`]. What it lacks of the
//! list, or has with other parameters, does not compile. Variables tell it what to pretend:
//!
//! | variable | meaning |
//! | --- | --- |
//! | `HIP_VISIBLE_DEVICES` | the devices to show, as with the real driver |
//! | `RAGTAG_FAKE_ARCH` | the architecture of all devices, instead of [`ARCHITECTURE`] |
//! | `RAGTAG_FAKE_ABORT` | set: the compiler ends the process, as the real one does for what it does not know |
//!
//! This crate is for tests alone and must not know what any engine is.

mod blas;
mod code;
pub mod entries;
mod settings;

pub use code::Signature;
pub use settings::ARCHITECTURE;

/// What Ragtag's list of functions is made of.
pub use ragtag_hip::symbols;

use std::ffi::{CStr, c_void};
use symbols::Handle;

/// A code of `hipError_t`, not 0.
pub type Code = i32;
/// What comes of a call.
pub type Result<T> = std::result::Result<T, Code>;

/// What a device says of itself.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Its name.
    pub name: String,
    /// `0000:03:00.0`, where there is such a thing.
    pub pci: Option<String>,
    /// UUID, where there is one.
    pub uuid: Option<[u8; 16]>,
    /// Memory, in bytes.
    pub total_bytes: usize,
    /// Compute units.
    pub units: i32,
    /// Most work items of a group.
    pub max_items: i32,
    /// Local memory of a group, in bytes.
    pub local_bytes: i32,
    /// Whether memory can be allocated in the order of a stream.
    pub pools: bool,
}

/// A launch.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Work groups.
    pub grid: [u32; 3],
    /// Work items of a group.
    pub block: [u32; 3],
    /// Dynamic local memory, in bytes.
    pub shared_bytes: u32,
}

/// What really does the work. Devices are numbered as in [`Engine::devices`].
///
/// # Safety
/// Functions that take addresses or arguments are called as HIP says about those that they serve.
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

    /// The engine of this process, made by whoever asks first.
    fn engine() -> Result<&'static Self>;
    /// All devices.
    fn devices(&self) -> &[Facts];
    /// Bytes that are free on a device.
    fn free_bytes(&self, device: usize) -> Result<usize>;
    /// Memory on a device.
    fn allocate(&self, device: usize, bytes: usize) -> Result<Handle>;
    /// Gives it back, after all work.
    fn free(&self, device: usize, address: Handle) -> Result<()>;
    /// Memory in the order of a stream.
    fn allocate_on(&self, stream: &Self::Stream, bytes: usize) -> Result<Handle>;
    /// Gives it back in the order of a stream.
    fn free_on(&self, stream: &Self::Stream, address: Handle) -> Result<()>;
    /// Pins memory of the host.
    fn pin(&self, device: usize, pointer: *mut c_void, bytes: usize) -> Result<()>;
    /// Lets go of it.
    fn unpin(&self, device: usize, pointer: *mut c_void) -> Result<()>;
    /// A stream.
    fn stream(&self, device: usize) -> Result<Self::Stream>;
    /// Waits for all its work.
    fn finish(&self, stream: &Self::Stream) -> Result<()>;
    /// An event.
    fn event(&self, device: usize) -> Result<Self::Event>;
    /// Records an event.
    fn record(&self, event: &Self::Event, stream: &Self::Stream) -> Result<()>;
    /// Holds a stream until an event has passed.
    fn wait(&self, stream: &Self::Stream, event: &Self::Event) -> Result<()>;
    /// Whether an event has passed.
    fn has_passed(&self, event: &Self::Event) -> Result<bool>;
    /// Waits for an event.
    fn synchronise(&self, event: &Self::Event) -> Result<()>;
    /// Milliseconds between two events.
    fn elapsed_ms(&self, from: &Self::Event, to: &Self::Event) -> Result<f32>;
    /// Enqueues a copy, of a `hipMemcpyKind`.
    fn copy(&self, stream: &Self::Stream, to: Handle, from: *const u8, bytes: usize, kind: i32)
    -> Result<()>;
    /// Enqueues the filling of memory with words of 32 bits.
    fn fill(&self, stream: &Self::Stream, to: Handle, word: u32, words: usize) -> Result<()>;
    /// Compiles a text for some devices, whatever architecture they pretend to have: its kernels and their code.
    ///
    /// # Errors
    /// The compiler's log.
    fn compile(
        &self,
        devices: &[usize],
        text: &str,
        options: &[String],
    ) -> std::result::Result<(Vec<Signature>, Vec<u8>), String>;
    /// Loads what [`Engine::compile`] made.
    fn load(&self, device: usize, signatures: Vec<Signature>, code: &[u8]) -> Result<Self::Module>;
    /// A function of a module.
    fn function(&self, module: &Self::Module, name: &CStr) -> Result<Self::Function>;
    /// Most work items of its groups.
    fn max_items(&self, function: &Self::Function) -> Result<i32>;
    /// Enqueues a launch; each argument is where a pointer says.
    fn launch(
        &self,
        stream: &Self::Stream,
        function: &Self::Function,
        shape: &Shape,
        arguments: *const Handle,
    ) -> Result<()>;
    /// Begins to capture.
    fn begin_capture(&self, stream: &Self::Stream) -> Result<()>;
    /// What was captured.
    fn end_capture(&self, stream: &Self::Stream) -> Result<Self::Graph>;
    /// Enqueues it.
    fn play(&self, graph: &Self::Graph, stream: &Self::Stream) -> Result<()>;
}

/// Exports the functions of a list over the type `Engine` of the crate that says this.
#[macro_export]
#[allow(clippy::crate_in_macro_def)] // the type is the stand-in's
macro_rules! export {
    ($($group:ident { $(fn $name:ident($($argument:ident: $type:ty),* $(,)?);)* })*) => {
        $($(
            /// As HIP has it.
            ///
            /// # Safety
            /// As HIP says.
            #[allow(non_snake_case)] // named as HIP names it
            // SAFETY: no other function of the process has the name of one of HIP's, unless it is meant to be that.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> i32 {
                // SAFETY: by the caller's promise.
                unsafe { $crate::entries::$name::<crate::Engine>($($argument),*) }
            }
        )*)*
    };
}
