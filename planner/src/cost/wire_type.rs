//! Computes the time for converting activations to and from the wire type. The link's time covers the
//! transfer itself. This module knows nothing about plans.

use super::DeviceFacts;
use ragtag_graph::WireType;

/// Number of dispatches in a decode step of a block. [`DeviceFacts::launch_us`] is the total overhead of
/// these dispatches.
const BLOCK_DISPATCHES: f64 = 9.0;

/// Time that a stage takes to convert incoming and outgoing rows, with one small dispatch each. The time is
/// not measured. The overhead is derived from the launch overhead of a block. The first and the last stage
/// convert only once, but the model charges every stage for both conversions.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BoundaryTime {
    /// Overhead of the dispatches, in microseconds.
    pub overhead_us: f64,
    /// Time to read the rows in one type and write them in the other, in microseconds.
    pub moving_us: f64,
}

impl BoundaryTime {
    /// Returns the time for converting a micro-batch of `rows` rows, each of `row_bytes` bytes in device
    /// memory.
    pub fn new(wire_type: WireType, device: &DeviceFacts, rows: f64, row_bytes: u64) -> Self {
        if wire_type == WireType::F32 {
            return Self::default();
        }
        let bytes = rows * (row_bytes as f64 + wire_type.row_bytes(row_bytes) as f64);
        Self {
            overhead_us: 2.0 * device.launch_us.value / BLOCK_DISPATCHES,
            moving_us: 2.0 * bytes / device.bandwidth_bytes_per_s.value * 1e6,
        }
    }

    /// Returns the total time, in microseconds.
    pub fn sum_us(&self) -> f64 {
        self.overhead_us + self.moving_us
    }
}
