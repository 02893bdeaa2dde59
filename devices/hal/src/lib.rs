//! The hardware layer: what a backend is, and what the rest of Ragtag may ask of it.
//!
//! # Who owes what
//!
//! *The caller* (a device actor, a test, the conformance suite)
//! - allots every id ([`BufferId`], [`ModuleId`], [`ProgramId`], [`RegionId`]), so that commands pipeline without a
//!   round trip;
//! - orders work with [`Point`]s: each submission waits for points and signals one. Within a queue submissions start
//!   in the order in which they were made; between queues only points order anything;
//! - keeps a buffer, region, module or program alive until the last submission that names it has passed, and destroys it
//!   before it lets the device go, unless the device is lost;
//! - never lets two submissions that may overlap in time write the same bytes, or one read what the other writes.
//!
//! *The backend*
//! - never blocks the calling thread on the device: `submit` enqueues;
//! - advances the host mirror ([`Timeline`]) of each of its queues, from its own threads;
//! - keeps what a submission names until the device is done with it, also where the owner of a device that is closed has
//!   failed the timeline and does not wait any more;
//! - poisons a timeline with the typed error when a submission fails, and never panics on what a driver returns;
//! - trusts its arguments: ids, ranges, arity and access are validated once, by [`Checked`], above every backend.
//!
//! This crate must not know any operator, model or backend.

mod anticipation;
mod backend;
pub mod cache;
mod caps;
mod checked;
mod command;
pub mod driver;
mod error;
mod exit;
mod faults;
mod gemm;
mod host;
mod ids;
pub mod lanes;
mod memory;
pub mod pool;
mod region;
mod throttle;
mod timeline;

pub use anticipation::{Anticipation, Outcome, Turn};
pub use backend::{
    Adapter, AdapterKind, Backend, Device, DriverInfo, Found, HeapKind, Label, Limits, Memory, MemorySource,
    PciAddress, PhysicalIdentity, Timing,
};
pub use caps::{Caps, Clocks, Feature, Features, KernelLanguage, MemoryHandle, MemorySharing, QueueLayout};
pub use checked::{Checked, LeakWatch, Leaks};
pub use command::{
    Access, Binding, BufferRange, Command, DeviceFunction, Dispatch, EntryAbi, LinkedEntry, Module,
    ModuleSource, Submission, TextEntry, Work,
};
pub use error::{Error, Result, Unavailable};
pub use exit::exit_in_words;
pub use faults::Faults;
pub use gemm::{GEMM_PITCH_VALUES, Gemm, GemmChoice, GemmEntry, GemmLibrary, NoGemmChoice};
pub use host::{HostBinding, HostCall, HostFn};
pub use ids::{BufferId, DeviceId, ModuleId, Point, ProgramId, QueueKind, RegionId, TimelineId};
pub use memory::HostMemory;
pub use pool::{Pool, PoolLimits, PoolStats};
pub use region::{HostRegion, Lease, LeaseMut, Reservation};
pub use throttle::Throttle;
pub use timeline::{Progress, Timeline};
