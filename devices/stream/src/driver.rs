//! The calls that Ragtag makes through a stream-ordered GPU API on one opened device.
//!
//! # Contract of an implementation
//! - Every method may be called from any thread, and first makes its device current on that thread.
//! - Objects ([`Driver::Stream`] and the other associated types) own their native handles and keep alive
//!   everything that the handles need. They may be dropped on any thread. Dropping them must not wait for the
//!   device.
//! - A failure that permanently breaks the device or its context returns
//!   [`Error::Lost`](ragtag_hal::Error::Lost) with the call's name and code. Any other failure returns
//!   [`Error::Api`](ragtag_hal::Error::Api) unless the method's documentation says otherwise.
//! - No method panics, whatever the driver returns.

use ragtag_hal::{DeviceFunction, Gemm, KernelLanguage, Result};
#[cfg(unix)]
use ragtag_hal::{DmaBuf, Error, OpaqueFd};
#[cfg(unix)]
use std::any::Any;
use std::ffi::c_void;
use std::sync::Arc;

/// Total and free device memory of an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heap {
    /// Size in bytes.
    pub total_bytes: u64,
    /// Free bytes at the time of the call.
    pub free_bytes: u64,
}

/// Properties of a kernel function, as the driver reports them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FunctionProperties {
    /// Maximum number of work items in a group.
    pub max_work_group_items: u32,
    /// Number of parameters, or `None` if the driver does not report it.
    pub parameters: Option<usize>,
}

/// Arguments of a launch: the device addresses, then the 32-bit constants. Each argument occupies one 64-bit
/// word. On a little-endian machine, a 32-bit argument occupies the first four bytes of its word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arguments(Box<[u64]>);

impl Arguments {
    /// Builds the arguments from device addresses and constants, in the order of the function's parameters.
    pub fn new(addresses: impl IntoIterator<Item = u64>, constants: &[u32]) -> Self {
        Self(addresses.into_iter().chain(constants.iter().map(|&word| u64::from(word))).collect())
    }

    /// Returns pointers to the arguments, for a launch call. The pointers are valid while `self` is alive.
    /// The driver must not write through them.
    pub fn pointers(&self) -> Vec<*mut c_void> {
        self.0.iter().map(|word| std::ptr::from_ref(word).cast_mut().cast()).collect()
    }

    /// Returns the arguments, one per 64-bit word.
    pub fn words(&self) -> &[u64] {
        &self.0
    }
}

/// A launch of a kernel function.
pub struct Launch<'a, D: Driver> {
    /// Kernel function.
    pub function: &'a D::Function,
    /// Number of work groups in each dimension. No number is zero.
    pub grid: [u32; 3],
    /// Number of work items per group in each dimension.
    pub work_group: [u32; 3],
    /// Local memory per group in bytes, in addition to the memory that the code declares.
    pub dynamic_local_bytes: u32,
    /// Addresses and constants.
    pub arguments: &'a Arguments,
}

/// Device addresses of the matrices in y = x · Wᵀ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operands {
    /// Address of x.
    pub x: u64,
    /// Address of W.
    pub weights: u64,
    /// Address of y.
    pub y: u64,
}

/// Memory that another API has exported.
#[cfg(unix)]
pub struct Import {
    /// Device address of the first byte.
    pub address: u64,
    /// Object that ends the import on drop.
    pub owner: Box<dyn Any + Send + Sync>,
}

/// A stream-ordered GPU API on one opened device.
pub trait Driver: Send + Sync + Sized + 'static {
    /// An in-order queue of the device, without implicit synchronisation with other streams.
    type Stream: Send + Sync;
    /// An event that records its completion time. A thread that waits for it sleeps instead of spinning.
    type Event: Send + Sync;
    /// A loaded module.
    type Module: Send + Sync;
    /// A kernel function. It keeps its module loaded.
    type Function: Send + Sync;
    /// An executable graph.
    type Graph: Send + Sync;

    /// Returns the API's name for messages, such as `CUDA` or `HIP`.
    fn api(&self) -> &'static str;

    /// Returns the total and free device memory. Memory that [`Driver::free`] has released counts as free.
    ///
    /// # Errors
    /// Returns the driver's error.
    fn heap(&self) -> Result<Heap>;

    /// Allocates device memory, aligned to 256 bytes, and returns its address. The memory is committed when
    /// the call returns. With stream-ordered pools, the call does not wait for other work on the device.
    ///
    /// # Errors
    /// Returns [`Error::OutOfMemory`](ragtag_hal::Error::OutOfMemory) if the device has too little memory.
    /// The caller sets the field `free` of this error.
    fn allocate(&self, bytes: u64) -> Result<u64>;

    /// Frees device memory. With stream-ordered pools, the call does not wait for work on the device.
    ///
    /// # Safety
    /// `address` comes from [`Driver::allocate`], and no unfinished work on the device uses the memory.
    ///
    /// # Errors
    /// Returns the driver's error.
    unsafe fn free(&self, address: u64) -> Result<()>;

    /// Allocates device memory like [`Driver::allocate`], but such that peers can access it after
    /// [`Driver::reach`].
    ///
    /// # Errors
    /// Returns the errors of [`Driver::allocate`].
    fn allocate_shared(&self, bytes: u64) -> Result<u64>;

    /// Frees device memory. The call may wait for work on the device.
    ///
    /// # Safety
    /// `address` comes from [`Driver::allocate_shared`], and no unfinished work on any device uses the
    /// memory.
    ///
    /// # Errors
    /// Returns the driver's error.
    unsafe fn free_shared(&self, address: u64) -> Result<()>;

    /// Gives this device access to the memory that `owner` allocates with [`Driver::allocate_shared`]. The
    /// memory has the same addresses on both devices. Does nothing if this device already has access.
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`](ragtag_hal::Error::Unsupported) if this device cannot access the memory
    /// of `owner`, or the driver's error.
    fn reach(&self, owner: &Self) -> Result<()>;

    /// Imports `bytes` bytes of memory that another API has exported. The memory belongs to this device.
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`](ragtag_hal::Error::Unsupported) if the API cannot import memory, or the
    /// driver's error.
    #[cfg(unix)]
    fn import(&self, _memory: &OpaqueFd, _bytes: u64) -> Result<Import> {
        Err(Error::Unsupported { what: format!("importing memory of other APIs into {}", self.api()) })
    }

    /// Imports the first `bytes` bytes of a dma-buf. The memory may belong to another device.
    ///
    /// # Errors
    /// As for [`Driver::import`].
    #[cfg(unix)]
    fn import_dma_buf(&self, _memory: &DmaBuf, _bytes: u64) -> Result<Import> {
        Err(Error::Unsupported { what: format!("importing dma-bufs into {}", self.api()) })
    }

    /// Pins host memory for all devices of the API.
    ///
    /// # Safety
    /// The memory stays allocated until [`Driver::unpin`].
    ///
    /// # Errors
    /// Returns the driver's error, for example if the limit on locked memory is reached or the memory is
    /// already pinned.
    unsafe fn pin(&self, pointer: *mut u8, bytes: usize) -> Result<()>;

    /// Returns the address at which this device accesses memory that [`Driver::pin`] pinned.
    ///
    /// # Safety
    /// The memory is pinned.
    ///
    /// # Errors
    /// Returns the driver's error.
    unsafe fn pinned_address(&self, pointer: *mut u8) -> Result<u64>;

    /// Unpins memory that [`Driver::pin`] pinned.
    ///
    /// # Safety
    /// No unfinished work on any device reads or writes the memory.
    ///
    /// # Errors
    /// Returns the driver's error.
    unsafe fn unpin(&self, pointer: *mut u8) -> Result<()>;

    /// Creates a stream.
    ///
    /// # Errors
    /// Returns the driver's error.
    fn stream(&self) -> Result<Self::Stream>;

    /// Waits until all work on a stream has ended. If the API supports it, the thread sleeps instead of
    /// spinning.
    ///
    /// # Errors
    /// Returns the first error in the work on the stream.
    fn finish(&self, stream: &Self::Stream) -> Result<()>;

    /// Creates an event that has not been recorded yet. A timed event records the time at which it passes. An
    /// event that is not timed is for short copies between devices: threads that wait for it may spin, because
    /// waking them would delay the next copy.
    ///
    /// # Errors
    /// Returns the driver's error.
    fn event(&self, is_timed: bool) -> Result<Self::Event>;

    /// Records an event on a stream. The event passes when all work that was enqueued before it has ended.
    ///
    /// # Errors
    /// Returns the driver's error.
    fn record(&self, event: &Self::Event, stream: &Self::Stream) -> Result<()>;

    /// Makes later work on the stream wait for a recorded event. A later recording of the same event does not
    /// affect the wait.
    ///
    /// # Errors
    /// Returns the driver's error.
    fn wait(&self, stream: &Self::Stream, event: &Self::Event) -> Result<()>;

    /// Returns true if a recorded event has passed or failed. For a failed event, [`Driver::synchronise`]
    /// returns the error.
    fn has_passed(&self, event: &Self::Event) -> bool;

    /// Waits until a recorded event has passed. The thread sleeps if the event is timed.
    ///
    /// # Errors
    /// Returns the error of work that precedes the event.
    fn synchronise(&self, event: &Self::Event) -> Result<()>;

    /// Returns the milliseconds between two events that have passed. The result is negative if `to` passed
    /// before `from`.
    ///
    /// # Errors
    /// Returns the driver's error, for example if an event has not passed.
    fn elapsed_ms(&self, from: &Self::Event, to: &Self::Event) -> Result<f32>;

    /// Enqueues a copy from the host to the device. If `used` is set, the word of the source at this index holds
    /// the number of words that must be copied when the copy runs.
    ///
    /// # Safety
    /// Both ranges are valid until the copy has ended. No concurrent access conflicts with the copy.
    ///
    /// # Errors
    /// Returns the driver's error.
    unsafe fn upload(
        &self,
        stream: &Self::Stream,
        from: *const u8,
        to: u64,
        bytes: usize,
        used: Option<u32>,
    ) -> Result<()>;

    /// Enqueues a copy from the device to the host.
    ///
    /// # Safety
    /// The requirements of [`Driver::upload`] apply.
    ///
    /// # Errors
    /// Returns the driver's error.
    unsafe fn download(&self, stream: &Self::Stream, from: u64, to: *mut u8, bytes: usize) -> Result<()>;

    /// Enqueues a copy within the device, or between the device and a peer that it reaches.
    ///
    /// # Safety
    /// The requirements of [`Driver::upload`] apply, and the ranges do not overlap.
    ///
    /// # Errors
    /// Returns the driver's error.
    unsafe fn copy(&self, stream: &Self::Stream, from: u64, to: u64, bytes: usize) -> Result<()>;

    /// Enqueues a fill of `words` 32-bit words with the value `word`.
    ///
    /// # Safety
    /// The requirements of [`Driver::upload`] apply to the range, and `to` is a multiple of four.
    ///
    /// # Errors
    /// Returns the driver's error.
    unsafe fn fill(&self, stream: &Self::Stream, to: u64, word: u32, words: usize) -> Result<()>;

    /// Enqueues a launch. The driver reads the arguments before the call returns.
    ///
    /// # Safety
    /// The arguments match the function's parameters. The memory that the kernel accesses is valid until the
    /// kernel has ended.
    ///
    /// # Errors
    /// Returns the driver's error.
    unsafe fn launch(&self, stream: &Self::Stream, launch: &Launch<'_, Self>) -> Result<()>;

    /// Initialises the matrix product library and its workspace. The device calls this method for each module
    /// that contains products, before the first [`Driver::gemm`]. Calls come from one thread at a time and
    /// never during a capture.
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`](ragtag_hal::Error::Unsupported) if the library is not installed.
    /// Returns the library's error if it cannot be initialised.
    fn ready_gemm(&self) -> Result<()>;

    /// Enqueues a matrix product that the library computes. During a capture, adds the product to the graph.
    ///
    /// # Safety
    /// The library is initialised, and the product is sound ([`Gemm::is_sound`]). The matrices start at the
    /// given addresses and stay valid until the product has ended. The addresses of x and W are multiples of
    /// 16 bytes. All products of a device run on one stream, because they share a workspace. Graphs that
    /// contain products run on that stream as well.
    ///
    /// # Errors
    /// Returns the library's error.
    unsafe fn gemm(&self, stream: &Self::Stream, product: &Gemm, operands: Operands) -> Result<()>;

    /// Starts a capture. Until the capture ends, the driver records the work that the calling thread enqueues
    /// on the stream instead of running it. Other threads are not affected.
    ///
    /// # Errors
    /// Returns the driver's error, for example if the driver does not support graphs.
    fn begin_capture(&self, stream: &Self::Stream) -> Result<()>;

    /// Ends the capture and returns the graph. The thread that started the capture must make this call, even
    /// after an error during the capture. The stream runs later work normally, even if this call fails.
    ///
    /// # Errors
    /// Returns the driver's error if it cannot build a graph from the captured work.
    fn end_capture(&self, stream: &Self::Stream) -> Result<Self::Graph>;

    /// Enqueues one run of a graph.
    ///
    /// # Safety
    /// The requirements of each captured call apply. The previous launch of the graph has ended.
    ///
    /// # Errors
    /// Returns the driver's error.
    unsafe fn play(&self, stream: &Self::Stream, graph: &Self::Graph) -> Result<()>;

    /// Compiles `text` and loads the result as a module. `language` is one of the languages in the adapter's
    /// capabilities. Compilation may take seconds. Several threads may call this method concurrently.
    ///
    /// # Errors
    /// Returns [`Error::Compile`](ragtag_hal::Error::Compile) with the compiler's log.
    fn load(&self, language: KernelLanguage, text: &str) -> Result<Self::Module>;

    /// Looks up a function in a module, and sets the size of the dynamic local memory for its launches.
    ///
    /// # Errors
    /// Returns [`Error::Compile`](ragtag_hal::Error::Compile) if the module has no function of that name.
    /// Returns [`Error::Unsupported`](ragtag_hal::Error::Unsupported) if the device has too little local
    /// memory.
    fn function(&self, module: &Arc<Self::Module>, function: &DeviceFunction) -> Result<Self::Function>;

    /// Returns the properties of a function, as the driver reports them.
    ///
    /// # Errors
    /// Returns the driver's error.
    fn facts(&self, function: &Self::Function) -> Result<FunctionProperties>;
}
