//! What it costs a stage that activations cross in another form than it keeps them in.
//!
//! This module must not know plans, and not what a crossing itself takes: that is the link's.

use super::DeviceFacts;
use ragtag_graph::Boundary;

/// Dispatches of a block in decode, of which [`DeviceFacts::launch_us`] is the overhead.
const BLOCK_DISPATCHES: f64 = 9.0;

/// How long a stage takes to turn rows that came in into those that it keeps, and those into rows that leave: a small
/// dispatch each. Nobody measures them apart; their overhead is a share of a block's, which is measured or assumed. The
/// stages at the ends of a pipeline do one of the two, and count like the others.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BoundaryTime {
    /// Of the dispatches, in microseconds.
    pub overhead_us: f64,
    /// Reading the rows in one form and writing them in the other, in microseconds.
    pub moving_us: f64,
}

impl BoundaryTime {
    /// For a micro-batch of so many rows, each of which takes `row_bytes` where it is kept.
    pub fn new(boundary: Boundary, device: &DeviceFacts, rows: f64, row_bytes: u64) -> Self {
        if boundary == Boundary::F32 {
            return Self::default();
        }
        let bytes = rows * (row_bytes as f64 + boundary.row_bytes(row_bytes) as f64);
        Self {
            overhead_us: 2.0 * device.launch_us.value / BLOCK_DISPATCHES,
            moving_us: 2.0 * bytes / device.bandwidth_bytes_per_s.value * 1e6,
        }
    }

    /// All of it.
    pub fn sum_us(&self) -> f64 {
        self.overhead_us + self.moving_us
    }
}
