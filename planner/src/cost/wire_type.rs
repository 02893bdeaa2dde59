//! Cost of converting activations to and from the wire type. Knows nothing about plans. The transfer itself
//! is costed by the link.

use super::DeviceFacts;
use ragtag_graph::WireType;

/// Dispatches of a block in decode that [`DeviceFacts::launch_us`] covers.
const BLOCK_DISPATCHES: f64 = 9.0;

/// Time that a stage takes to convert incoming rows from the wire type and outgoing rows to it: one small
/// dispatch each. They are not measured. Their overhead is a share of a block's, which is measured or
/// assumed. The first and the last stage convert only once, but are charged like the others.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BoundaryTime {
    /// Overhead of the dispatches, in microseconds.
    pub overhead_us: f64,
    /// Time to read the rows in one type and write them in the other, in microseconds.
    pub moving_us: f64,
}

impl BoundaryTime {
    /// Returns the time for a micro-batch of `rows` rows, each of `row_bytes` bytes in device memory.
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

    /// Returns the sum of both.
    pub fn sum_us(&self) -> f64 {
        self.overhead_us + self.moving_us
    }
}
