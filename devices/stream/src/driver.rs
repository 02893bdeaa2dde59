//! Calls of a stream-ordered GPU API on one opened device.
//!
//! # Contract of an implementation
//! - Every method may be called from any thread. It first makes its device current on that thread.
//! - Objects ([`Driver::Stream`] and the other associated types) own their native handles, keep alive what
//!   they need, and release it on drop, from any thread, without waiting for the device.
//! - A failure that permanently breaks the device or its context is [`Error::Lost`](ragtag_hal::Error::Lost)
//!   with the call's name and code. Other failures are [`Error::Api`](ragtag_hal::Error::Api) unless a method
//!   says otherwise.
//! - Nothing panics, whatever the driver returns.
//!
//! Does not know how a device uses these calls.

use ragtag_hal::{DeviceFunction, Gemm, KernelLanguage, Result};
use std::ffi::c_void;
use std::sync::Arc;

/// Memory of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heap {
    /// Size in bytes.
    pub total_bytes: u64,
    /// Free bytes now.
    pub free_bytes: u64,
}

/// Driver's properties of a kernel function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Most work items in a group.
    pub max_work_group_items: u32,
    /// Number of parameters, if known.
    pub parameters: Option<usize>,
}

/// Arguments of a launch: addresses, then 32-bit words. Each occupies its own 64-bit word. On a little-endian
/// machine the first bytes of that word are the 32-bit argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arguments(Box<[u64]>);

impl Arguments {
    /// Builds arguments from device addresses and constants, in the order of the function's parameters.
    pub fn new(addresses: impl IntoIterator<Item = u64>, constants: &[u32]) -> Self {
        Self(addresses.into_iter().chain(constants.iter().map(|&word| u64::from(word))).collect())
    }

    /// Returns pointers to the arguments for a launch call. They are valid as long as `self` and must not be
    /// written.
    pub fn pointers(&self) -> Vec<*mut c_void> {
        self.0.iter().map(|word| std::ptr::from_ref(word).cast_mut().cast()).collect()
    }

    /// Returns the arguments as words.
    pub fn words(&self) -> &[u64] {
        &self.0
    }
}

/// A launch of a kernel function.
pub struct Launch<'a, D: Driver> {
    /// The function.
    pub function: &'a D::Function,
    /// Work groups; none of them zero.
    pub grid: [u32; 3],
    /// Work items in a group.
    pub work_group: [u32; 3],
    /// Bytes of local memory per group beyond what the code declares.
    pub dynamic_local_bytes: u32,
    /// The arguments.
    pub arguments: &'a Arguments,
}

/// Device addresses of a product's matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operands {
    /// x.
    pub x: u64,
    /// W.
    pub weights: u64,
    /// y.
    pub y: u64,
}

/// A stream-ordered GPU API on one opened device.
pub trait Driver: Send + Sync + Sized + 'static {
    /// An in-order queue of the device that does not implicitly wait for other streams.
    type Stream: Send + Sync;
    /// An event with timing whose waiters sleep.
    type Event: Send + Sync;
    /// Loaded code.
    type Module: Send + Sync;
    /// A kernel function, which keeps its module loaded.
    type Function: Send + Sync;
    /// A captured graph, ready to be launched.
    type Graph: Send + Sync;

    /// Returns the API's name for messages: `CUDA`, `HIP`.
    fn api(&self) -> &'static str;

    /// Returns the current state of the device's memory. Memory released by [`Driver::free`] counts as free.
    ///
    /// # Errors
    /// If the driver refuses.
    fn heap(&self) -> Result<Heap>;

    /// Allocates device memory, aligned to 256 bytes, and returns its address. The memory is committed when
    /// this returns. With stream-ordered pools the call waits for no other work on the device.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](ragtag_hal::Error::OutOfMemory). The caller fills in `free`.
    fn allocate(&self, bytes: u64) -> Result<u64>;

    /// Frees memory. With stream-ordered pools the call waits for no work on the device.
    ///
    /// # Safety
    /// `address` comes from [`Driver::allocate`], and no work on the device uses it any more.
    ///
    /// # Errors
    /// If the driver refuses.
    unsafe fn free(&self, address: u64) -> Result<()>;

    /// Pins host memory for all devices of the API.
    ///
    /// # Safety
    /// These bytes stay allocated until [`Driver::unpin`].
    ///
    /// # Errors
    /// If the driver refuses, because too little memory can be locked or the memory is already pinned.
    unsafe fn pin(&self, pointer: *mut u8, bytes: usize) -> Result<()>;

    /// Unpins memory pinned by [`Driver::pin`].
    ///
    /// # Safety
    /// No work on any device copies from it or to it any more.
    ///
    /// # Errors
    /// If the driver refuses.
    unsafe fn unpin(&self, pointer: *mut u8) -> Result<()>;

    /// Creates a stream.
    ///
    /// # Errors
    /// If the driver refuses.
    fn stream(&self) -> Result<Self::Stream>;

    /// Waits until all work on a stream has ended, asleep if the API supports that.
    ///
    /// # Errors
    /// If any of it failed.
    fn finish(&self, stream: &Self::Stream) -> Result<()>;

    /// Creates an event, not recorded yet.
    ///
    /// # Errors
    /// If the driver refuses.
    fn event(&self) -> Result<Self::Event>;

    /// Records an event. It passes when all work enqueued on the stream so far has ended.
    ///
    /// # Errors
    /// If the driver refuses.
    fn record(&self, event: &Self::Event, stream: &Self::Stream) -> Result<()>;

    /// Makes later work on the stream wait for a recorded event. Recording the event again later does not
    /// affect the wait.
    ///
    /// # Errors
    /// If the driver refuses.
    fn wait(&self, stream: &Self::Stream, event: &Self::Event) -> Result<()>;

    /// Returns true if a recorded event has passed or failed. [`Driver::synchronise`] reports the failure.
    fn has_passed(&self, event: &Self::Event) -> bool;

    /// Sleeps until a recorded event has passed.
    ///
    /// # Errors
    /// If work before it failed.
    fn synchronise(&self, event: &Self::Event) -> Result<()>;

    /// Returns the milliseconds between two passed events; negative if `to` passed first.
    ///
    /// # Errors
    /// If the driver does not know.
    fn elapsed_ms(&self, from: &Self::Event, to: &Self::Event) -> Result<f32>;

    /// Enqueues a copy from the host to the device.
    ///
    /// # Safety
    /// Both ranges are valid until the copy has ended, and nothing that may overlap it in time uses them otherwise.
    ///
    /// # Errors
    /// If the driver refuses.
    unsafe fn upload(&self, stream: &Self::Stream, from: *const u8, to: u64, bytes: usize) -> Result<()>;

    /// Enqueues a copy from the device to the host.
    ///
    /// # Safety
    /// As for [`Driver::upload`].
    ///
    /// # Errors
    /// If the driver refuses.
    unsafe fn download(&self, stream: &Self::Stream, from: u64, to: *mut u8, bytes: usize) -> Result<()>;

    /// Enqueues a copy within the device.
    ///
    /// # Safety
    /// As for [`Driver::upload`]; the ranges do not overlap.
    ///
    /// # Errors
    /// If the driver refuses.
    unsafe fn copy(&self, stream: &Self::Stream, from: u64, to: u64, bytes: usize) -> Result<()>;

    /// Enqueues a fill with `words` words of 32 bits.
    ///
    /// # Safety
    /// As for [`Driver::upload`]; the address is a multiple of four.
    ///
    /// # Errors
    /// If the driver refuses.
    unsafe fn fill(&self, stream: &Self::Stream, to: u64, word: u32, words: usize) -> Result<()>;

    /// Enqueues a launch. The arguments are read before this returns.
    ///
    /// # Safety
    /// The arguments match the function's parameters, and the memory that it touches is valid until it has
    /// ended.
    ///
    /// # Errors
    /// If the driver refuses.
    unsafe fn launch(&self, stream: &Self::Stream, launch: &Launch<'_, Self>) -> Result<()>;

    /// Initialises the matrix product library and its workspace. Called before [`Driver::gemm`] for each
    /// module with products, from one thread at a time, and never during a capture.
    ///
    /// # Errors
    /// [`Error::Unsupported`](ragtag_hal::Error::Unsupported) if there is no library, and if the library
    /// refuses.
    fn ready_gemm(&self) -> Result<()>;

    /// Enqueues or captures a product of the library.
    ///
    /// # Safety
    /// The library is initialised, the product is sound ([`Gemm::is_sound`]), the matrices start at the given
    /// addresses and are valid until it has ended, x and W at multiples of 16 bytes. All products of one
    /// device are on one stream, because they share a workspace; captured ones are played on that stream.
    ///
    /// # Errors
    /// If the library refuses.
    unsafe fn gemm(&self, stream: &Self::Stream, product: &Gemm, operands: Operands) -> Result<()>;

    /// Starts capturing what the calling thread enqueues on a stream; none of it runs. Other threads are
    /// unaffected.
    ///
    /// # Errors
    /// If the driver refuses, or has no graphs.
    fn begin_capture(&self, stream: &Self::Stream) -> Result<()>;

    /// Ends the capture on the thread that started it, and returns the captured graph. It is also called
    /// after an error during the capture. In any case the stream returns to normal.
    ///
    /// # Errors
    /// If the driver refuses the captured work.
    fn end_capture(&self, stream: &Self::Stream) -> Result<Self::Graph>;

    /// Enqueues a graph.
    ///
    /// # Safety
    /// As for each piece of work in it; its last launch has ended.
    ///
    /// # Errors
    /// If the driver refuses.
    unsafe fn play(&self, stream: &Self::Stream, graph: &Self::Graph) -> Result<()>;

    /// Compiles and loads a source in a language that the adapter's capabilities name. May take long. Several
    /// threads may call it concurrently.
    ///
    /// # Errors
    /// [`Error::Compile`](ragtag_hal::Error::Compile) with the compiler's log.
    fn load(&self, language: KernelLanguage, text: &str) -> Result<Self::Module>;

    /// Returns a function of a module, prepared for launches with its dynamic local memory.
    ///
    /// # Errors
    /// [`Error::Compile`](ragtag_hal::Error::Compile) if the module has no function of that name;
    /// [`Error::Unsupported`](ragtag_hal::Error::Unsupported) if the device lacks the local memory.
    fn function(&self, module: &Arc<Self::Module>, function: &DeviceFunction) -> Result<Self::Function>;

    /// Returns the driver's properties of a function.
    ///
    /// # Errors
    /// If the driver refuses.
    fn facts(&self, function: &Self::Function) -> Result<Facts>;
}
