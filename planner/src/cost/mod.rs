//! The cost model: segment times, transfer times and stage memory, computed from descriptions of devices and
//! links.
//!
//! Every value has a source. The values of [`DeviceFacts::assumed`] are only order-of-magnitude estimates for
//! a kind of device. They suffice to balance stages on equal devices and to prefer a GPU to a CPU. The
//! measured times of a [`Profile`] replace them.
//!
//! This module knows nothing about the search or backends.

mod device;
mod figure;
mod link;
mod memory;
mod profile;
#[cfg(test)]
mod profile_tests;
mod queue;
#[cfg(test)]
mod tests;
mod time;
mod wire_type;

pub use device::{ASSUMED_FILE_RATE, BufferLimits, DeviceFacts, WeightSharing};
pub(crate) use figure::is_rate;
pub use figure::{Figure, FigureSource};
pub use link::{LinkFacts, Links, SharedLink, fit_copies};
pub(crate) use memory::largest;
pub use memory::{Held, KvKind, LargeBuffer, RunSizes, StageCapacity, Streamed};
pub use profile::{
    InvalidProfile, KindProfile, PROFILE_VERSION, Profile, ProfileIdentity, Roofline, SegmentKey,
    SegmentWork, TimePoint, TimeSample, TimedFor, TokenReturn,
};
pub use queue::{QueuePart, floor_us, step_us};
pub use time::{BatchShape, kind_time, segment_time_us};
pub use wire_type::BoundaryTime;
