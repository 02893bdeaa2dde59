//! Names for things: all of them allotted by the caller, none of them a handle of an API.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident($inner:ty), $prefix:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    )*};
}

ids! {
    /// An opened device, numbered by whoever opened it.
    DeviceId(u16), "device ";
    /// A device buffer.
    BufferId(u32), "buffer ";
    /// A module of kernels loaded on a device.
    ModuleId(u32), "module ";
    /// A recorded program.
    ProgramId(u32), "program ";
    /// A host region registered with a device.
    RegionId(u32), "region ";
}

/// One of the three queues of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum QueueKind {
    /// Kernels, and copies within the device.
    Compute,
    /// Host to device.
    Upload,
    /// Device to host.
    Download,
}

impl QueueKind {
    /// All queues, in the order of [`QueueKind::index`].
    pub const ALL: [QueueKind; 3] = [QueueKind::Compute, QueueKind::Upload, QueueKind::Download];

    /// Position in [`QueueKind::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }

    /// Lower-case name, as in traces.
    pub fn name(self) -> &'static str {
        match self {
            QueueKind::Compute => "compute",
            QueueKind::Upload => "upload",
            QueueKind::Download => "download",
        }
    }
}

/// The timeline of one queue of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TimelineId {
    /// Whose timeline.
    pub device: DeviceId,
    /// Which of its queues.
    pub queue: QueueKind,
}

impl TimelineId {
    /// The point at `value` on this timeline.
    pub fn at(self, value: u64) -> Point {
        Point { timeline: self, value }
    }
}

impl fmt::Display for TimelineId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.device, self.queue.name())
    }
}

/// A value on a timeline. It has passed when the timeline's value is at least this one; value 0 has always passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Point {
    /// The timeline.
    pub timeline: TimelineId,
    /// The value on it.
    pub value: u64,
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.timeline, self.value)
    }
}
