//! IDs of devices, resources, timelines and points. The caller assigns all IDs, and no ID is an API handle.

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
    /// ID of an opened device. The caller that opens the device assigns it.
    DeviceId(u16), "device ";
    /// ID of a device buffer.
    BufferId(u32), "buffer ";
    /// ID of a kernel module that is loaded on a device.
    ModuleId(u32), "module ";
    /// ID of a recorded program.
    ProgramId(u32), "program ";
    /// ID of a host region that is registered with a device.
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

    /// Returns the position in [`QueueKind::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }

    /// Returns the lower-case name that appears in traces.
    pub fn name(self) -> &'static str {
        match self {
            QueueKind::Compute => "compute",
            QueueKind::Upload => "upload",
            QueueKind::Download => "download",
        }
    }
}

/// ID of the timeline of one queue of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TimelineId {
    /// Device.
    pub device: DeviceId,
    /// Queue of the device.
    pub queue: QueueKind,
}

impl TimelineId {
    /// Returns the point at `value` on this timeline.
    pub fn at(self, value: u64) -> Point {
        Point { timeline: self, value }
    }
}

impl fmt::Display for TimelineId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.device, self.queue.name())
    }
}

/// A value on a timeline. The point has passed when the timeline has reached the value. A point with value 0
/// has always passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Point {
    /// Timeline.
    pub timeline: TimelineId,
    /// Value on the timeline.
    pub value: u64,
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.timeline, self.value)
    }
}
