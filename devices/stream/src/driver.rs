//! The calls of a stream-ordered GPU API, on one opened device.
//!
//! # What an implementation owes
//! - Every method may be called from any thread: it makes its device current on that thread first.
//! - Objects ([`Driver::Stream`] and the other associated types) own what they stand for, keep what they need alive, and
//!   give it back when they are dropped, from any thread, without waiting for the device.
//! - A failure that breaks the device or its context for good is [`Error::Lost`](ragtag_hal::Error::Lost), with the call's
//!   name and code in words. Other failures are [`Error::Api`](ragtag_hal::Error::Api), unless a method says otherwise.
//! - Nothing panics, whatever the driver returns.
//!
//! This module must not know how a device is made of these calls.

use ragtag_hal::{DeviceFunction, Gemm, KernelLanguage, Result};
use std::ffi::c_void;
use std::sync::Arc;

/// The memory of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heap {
    /// Size in bytes.
    pub total_bytes: u64,
    /// Free now, in bytes.
    pub free_bytes: u64,
}

/// What the driver says about a kernel function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Most work items that its groups may have.
    pub max_work_group_items: u32,
    /// How many parameters it has, where that can be told.
    pub parameters: Option<usize>,
}

/// The arguments of a launch: addresses, then 32-bit words. Each lies in a word of 64 bits of its own, in whose first bytes
/// a little-endian machine has the 32-bit ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arguments(Box<[u64]>);

impl Arguments {
    /// Addresses on the device and constants, in the order of a function's parameters.
    pub fn new(addresses: impl IntoIterator<Item = u64>, constants: &[u32]) -> Self {
        Self(addresses.into_iter().chain(constants.iter().map(|&word| u64::from(word))).collect())
    }

    /// Where each argument lies, as launches take them. Valid as long as `self` is; nobody writes through these.
    pub fn pointers(&self) -> Vec<*mut c_void> {
        self.0.iter().map(|word| std::ptr::from_ref(word).cast_mut().cast()).collect()
    }

    /// The arguments as words.
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
    /// Local memory of each group beside what the code declares, in bytes.
    pub dynamic_local_bytes: u32,
    /// The arguments.
    pub arguments: &'a Arguments,
}

/// Where the matrices of a product begin on the device.
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
    /// A queue of the device whose work happens in order, and that waits for no other stream by itself.
    type Stream: Send + Sync;
    /// An event that measures time and whose waiters sleep.
    type Event: Send + Sync;
    /// Loaded code.
    type Module: Send + Sync;
    /// A kernel function of a module, which it keeps.
    type Function: Send + Sync;
    /// A captured piece of work, ready to be launched.
    type Graph: Send + Sync;

    /// The API's name for messages: `CUDA`, `HIP`.
    fn api(&self) -> &'static str;

    /// The device's memory as it is now. What [`Driver::free`] gave back counts as free.
    ///
    /// # Errors
    /// If the driver refuses.
    fn heap(&self) -> Result<Heap>;

    /// Allocates memory on the device, 256-byte aligned, that is there when this returns, and gives its address. Waits for
    /// no other work on the device where the API has stream-ordered pools.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](ragtag_hal::Error::OutOfMemory), whose `free` the caller fills in.
    fn allocate(&self, bytes: u64) -> Result<u64>;

    /// Gives memory back. Waits for no work on the device where the API has stream-ordered pools.
    ///
    /// # Safety
    /// `address` comes from [`Driver::allocate`], and no work on the device uses it any more.
    ///
    /// # Errors
    /// If the driver refuses.
    unsafe fn free(&self, address: u64) -> Result<()>;

    /// Pins memory of the host, for all devices of the API.
    ///
    /// # Safety
    /// These bytes stay allocated until [`Driver::unpin`].
    ///
    /// # Errors
    /// If the driver refuses: because of too little memory that can be locked, or because it is pinned already.
    unsafe fn pin(&self, pointer: *mut u8, bytes: usize) -> Result<()>;

    /// Lets go of memory that [`Driver::pin`] pinned.
    ///
    /// # Safety
    /// No work on any device copies from it or to it any more.
    ///
    /// # Errors
    /// If the driver refuses.
    unsafe fn unpin(&self, pointer: *mut u8) -> Result<()>;

    /// A new stream.
    ///
    /// # Errors
    /// If the driver refuses.
    fn stream(&self) -> Result<Self::Stream>;

    /// Waits, asleep where the API can, until all work on a stream has ended.
    ///
    /// # Errors
    /// If some of it failed.
    fn finish(&self, stream: &Self::Stream) -> Result<()>;

    /// A new event, not recorded.
    ///
    /// # Errors
    /// If the driver refuses.
    fn event(&self) -> Result<Self::Event>;

    /// Records an event: it passes when all work that the stream has by now has ended.
    ///
    /// # Errors
    /// If the driver refuses.
    fn record(&self, event: &Self::Event, stream: &Self::Stream) -> Result<()>;

    /// Holds what the stream gets from now on until an event that is recorded has passed. Recording it anew later makes no
    /// difference.
    ///
    /// # Errors
    /// If the driver refuses.
    fn wait(&self, stream: &Self::Stream, event: &Self::Event) -> Result<()>;

    /// Whether an event that is recorded has passed, or failed, which whoever synchronises with it is told.
    fn has_passed(&self, event: &Self::Event) -> bool;

    /// Waits, asleep, until an event that is recorded has passed.
    ///
    /// # Errors
    /// If work before it failed.
    fn synchronise(&self, event: &Self::Event) -> Result<()>;

    /// Milliseconds between two events that have passed; negative if `to` passed first.
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

    /// Enqueues the filling of memory with `words` words of 32 bits.
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
    /// The arguments are what the function takes, and what it touches is valid until it has ended.
    ///
    /// # Errors
    /// If the driver refuses.
    unsafe fn launch(&self, stream: &Self::Stream, launch: &Launch<'_, Self>) -> Result<()>;

    /// Makes the library of matrix products ready, with the memory that it works in. Called before [`Driver::gemm`], from one
    /// thread at a time, as often as modules with products are made; nothing is being captured then.
    ///
    /// # Errors
    /// [`Error::Unsupported`](ragtag_hal::Error::Unsupported) if none was found, and if the library refuses.
    fn ready_gemm(&self) -> Result<()>;

    /// Enqueues a product by the library, or lets it be captured.
    ///
    /// # Safety
    /// The library was made ready, the product is sound ([`Gemm::is_sound`]), the matrices begin where is said and are valid
    /// until it has ended, x and W at multiples of 16 bytes. Products of one device are all on one stream, since they share
    /// memory to work in; captured ones are played there.
    ///
    /// # Errors
    /// If the library refuses.
    unsafe fn gemm(&self, stream: &Self::Stream, product: &Gemm, operands: Operands) -> Result<()>;

    /// Begins to capture what the calling thread enqueues on a stream: nothing of it runs. Other threads go on as they
    /// like.
    ///
    /// # Errors
    /// If the driver refuses, or has no graphs.
    fn begin_capture(&self, stream: &Self::Stream) -> Result<()>;

    /// Ends the capture, on the thread that began it, and makes a graph of what was captured. After an error in between it
    /// is called all the same; the stream is as before in any case.
    ///
    /// # Errors
    /// If the driver refuses what was captured.
    fn end_capture(&self, stream: &Self::Stream) -> Result<Self::Graph>;

    /// Enqueues a graph.
    ///
    /// # Safety
    /// As for each piece of work in it; its last launch has ended.
    ///
    /// # Errors
    /// If the driver refuses.
    unsafe fn play(&self, stream: &Self::Stream, graph: &Self::Graph) -> Result<()>;

    /// Compiles and loads a text in a language that the adapter's capabilities name. May take long, and is called from
    /// several threads at once.
    ///
    /// # Errors
    /// [`Error::Compile`](ragtag_hal::Error::Compile) with the compiler's log.
    fn load(&self, language: KernelLanguage, text: &str) -> Result<Self::Module>;

    /// A function of a module, made ready for launches with its dynamic local memory.
    ///
    /// # Errors
    /// [`Error::Compile`](ragtag_hal::Error::Compile) if the module has none of that name;
    /// [`Error::Unsupported`](ragtag_hal::Error::Unsupported) if the device has not so much local memory.
    fn function(&self, module: &Arc<Self::Module>, function: &DeviceFunction) -> Result<Self::Function>;

    /// What the driver says about a function.
    ///
    /// # Errors
    /// If the driver refuses.
    fn facts(&self, function: &Self::Function) -> Result<Facts>;
}
