//! The cost model: how long a segment takes on a device, how long a crossing takes, and how much memory a stage needs,
//! from facts about devices and links.
//!
//! Each figure says where it comes from; those of [`DeviceFacts::assumed`] are orders of magnitude for a kind of device, good
//! enough to balance stages on like devices and to prefer a GPU over a CPU, and are replaced by those of a [`Profile`] where there is one.
//!
//! This module must not know how plans are found, and no backend: a device is its figures.

mod boundary;
mod device;
mod figure;
mod link;
mod memory;
mod profile;
#[cfg(test)]
mod profile_tests;
#[cfg(test)]
mod tests;
mod time;

pub use boundary::BoundaryTime;
pub use device::{BufferLimits, DeviceFacts};
pub(crate) use figure::is_rate;
pub use figure::{Figure, FigureSource};
pub use link::{LinkFacts, Links, SharedLink, fit_copies};
pub use memory::{LargeBuffer, RunSizes, StageCapacity};
pub use profile::{
    InvalidProfile, KindProfile, PROFILE_VERSION, Profile, ProfileIdentity, Roofline, SegmentKey,
    SegmentWork, TimePoint, TimeSample, TimedFor, TokenReturn,
};
pub use time::{BatchShape, kind_time, segment_time, segment_time_us};
