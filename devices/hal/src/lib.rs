//! The hardware layer: the interface between backends and the rest of Ragtag.
//!
//! # Contract
//!
//! *The caller* (a device actor, a test, the conformance suite)
//! - assigns every ID ([`BufferId`], [`ModuleId`], [`ProgramId`], [`RegionId`]), so that it can send further
//!   commands without waiting for a reply;
//! - orders work with [`Point`]s: each submission waits for points and signals one point. Within a queue,
//!   submissions start in submission order. Between queues, only points order work;
//! - keeps a buffer, region, module or program alive until the point of the last submission that uses it has
//!   passed. The caller destroys all resources before it drops the device, unless the device is lost;
//! - orders conflicting submissions: if a submission writes bytes that another submission reads or writes,
//!   one of the two waits for a point of the other.
//!
//! *The backend*
//! - never makes the calling thread wait for the device: `submit` only enqueues work;
//! - advances the host mirror ([`Timeline`]) of each of its queues from its own threads;
//! - keeps all resources of a submission alive until the device has finished the submission, even on a
//!   timeline that failed because the device was closed;
//! - fails a timeline with a typed error when a submission fails, and never panics, whatever the driver
//!   returns;
//! - trusts its arguments: [`Checked`] validates IDs, ranges, arity and access once, above every backend.
//!
//! This crate knows no operator, model or backend.

mod adaptive_wait;
mod backend;
pub mod cache;
mod caps;
mod checked;
mod command;
mod condition;
#[cfg(unix)]
mod dma_buf;
pub mod driver;
mod error;
mod exit;
mod faults;
mod gemm;
mod host;
mod host_pages;
mod ids;
mod memory;
#[cfg(unix)]
mod opaque_fd;
mod pins;
pub mod pool;
pub mod queues;
mod region;
mod spir_v;
mod throttle;
mod timeline;

pub use adaptive_wait::{Anticipation, Awaited, Turn};
pub use backend::{
    Adapter, AdapterKind, Backend, Device, DriverInfo, Found, HeapKind, Label, Limits, Memory, MemorySource,
    PciAddress, PhysicalIdentity, SharedMemory, SharedSemaphore, Timing,
};
pub use caps::{
    Caps, Clocks, Feature, Features, KernelLanguage, MemoryHandle, MemorySharing, QueueLayout,
    UnifiedAllocation,
};
pub use checked::{Checked, LeakWatch, Leaks};
pub use command::{
    Access, BinaryEntry, Binding, BufferRange, Command, DeviceFunction, Dispatch, EntryAbi, LinkedEntry,
    Module, ModuleSource, Submission, TextEntry, Work,
};
pub use condition::{Condition, ThrottleReason};
#[cfg(unix)]
pub use dma_buf::DmaBuf;
pub use error::{Error, Result, Unavailable};
pub use exit::exit_in_words;
pub use faults::{CopyFault, CopyFaultKind, Faults, FaultyCopies, ShortCopies};
pub use gemm::{GEMM_PITCH_VALUES, Gemm, GemmChoice, GemmEntry, GemmLibrary, NoGemmChoice};
pub use host::{HostBinding, HostCall, HostFn};
pub use host_pages::HostPages;
pub use ids::{BufferId, DeviceId, ModuleId, Point, ProgramId, QueueKind, RegionId, TimelineId};
pub use memory::HostMemory;
#[cfg(unix)]
pub use opaque_fd::OpaqueFd;
pub use pins::{Pin, PinCache, Pinnable};
pub use pool::{Pool, PoolLimits, PoolStats};
pub use region::{HostRegion, Lease, LeaseMut, Reservation};
pub use spir_v::is_whole_spir_v;
pub use throttle::Throttle;
pub use timeline::{Progress, Timeline};
