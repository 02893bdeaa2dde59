//! Computes the time of a segment on a device. The time comes from the device's profile. Without a profile,
//! it is the launch overhead plus the larger of bytes moved ÷ bandwidth and operations ÷ rate.
//!
//! This module knows nothing about plans.

use super::DeviceFacts;
use super::figure::{Figure, FigureSource};
use super::profile::{SegmentKey, SegmentWork};
use ragtag_graph::{Segment, SegmentKind};
use ragtag_kernels::Activations;

/// Properties of a micro-batch that determine the time of a segment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchShape {
    /// Number of rows (tokens).
    pub rows: u32,
    /// Number of rows that need logits.
    pub logit_rows: u32,
    /// Number of sequences to which the rows belong.
    pub sequences: u32,
    /// Average number of positions that a row attends to.
    pub positions: f64,
}

impl BatchShape {
    /// Returns the number of rows that a segment of this kind processes.
    pub fn rows_for(&self, kind: SegmentKind) -> u32 {
        match kind {
            SegmentKind::Head => self.logit_rows,
            SegmentKind::Embedding
            | SegmentKind::Block
            | SegmentKind::Attention
            | SegmentKind::FeedForward => self.rows,
        }
    }
}

/// Returns the time of a segment for a micro-batch, in microseconds. For the head, it is 0 if no row needs
/// logits.
pub fn segment_time_us(
    segment: &Segment,
    device: &DeviceFacts,
    activations: Activations,
    batch: &BatchShape,
) -> f64 {
    kind_time(&SegmentKey::from(segment), device, activations, batch).value
}

/// Returns the time of a segment that has the properties `key`, and the source of the value. Uses the device's
/// profile if it covers the segment, and otherwise the roofline that the device's rates define.
pub fn kind_time(
    key: &SegmentKey,
    device: &DeviceFacts,
    activations: Activations,
    batch: &BatchShape,
) -> Figure {
    let at = key.point(batch);
    if at.rows == 0 {
        return Figure { value: 0.0, source: FigureSource::Measured };
    }
    let profile = device.profile.as_ref().filter(|profile| profile.identity.activations == activations);
    profile
        .and_then(|profile| profile.time(key, batch))
        .unwrap_or_else(|| roofline(key.kind, &key.work(&at), device, activations))
}

/// Returns the launch overhead plus the memory time or the arithmetic time, whichever is larger.
fn roofline(kind: SegmentKind, work: &SegmentWork, device: &DeviceFacts, activations: Activations) -> Figure {
    let (bandwidth, flops) = (device.bandwidth_bytes_per_s, device.flops_per_s(activations));
    let (moving_s, computing_s) = (work.bytes / bandwidth.value, work.flops / flops.value);
    // `launch_us` covers the dispatches of a whole block. Each half of a block has about half of them.
    let launches = match kind {
        SegmentKind::Attention | SegmentKind::FeedForward => 0.5,
        SegmentKind::Embedding | SegmentKind::Block | SegmentKind::Head => 1.0,
    };
    let binding = if moving_s >= computing_s { bandwidth } else { flops };
    Figure {
        value: launches * device.launch_us.value + moving_s.max(computing_s) * 1e6,
        source: binding.source.weaker(device.launch_us.source),
    }
}
