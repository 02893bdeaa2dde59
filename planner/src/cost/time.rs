//! How long a segment takes on a device: as its profile says, else its launch overhead plus the larger of (bytes moved ÷
//! bandwidth) and (operations ÷ rate).
//!
//! This module must not know plans.

use super::DeviceFacts;
use super::figure::{Figure, FigureSource};
use super::profile::{SegmentKey, SegmentWork};
use ragtag_graph::{Segment, SegmentKind};
use ragtag_kernels::Activations;

/// The shape of a micro-batch, as far as costs depend on it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchShape {
    /// Tokens.
    pub rows: u32,
    /// Tokens of which logits are wanted.
    pub logit_rows: u32,
    /// Sequences that the rows belong to.
    pub sequences: u32,
    /// Positions that a row attends to, on average.
    pub positions: f64,
}

impl BatchShape {
    /// Rows that a segment of this kind works on.
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

/// Time that a segment takes for a micro-batch, in microseconds. The head does nothing where no logits are wanted.
pub fn segment_time_us(
    segment: &Segment,
    device: &DeviceFacts,
    activations: Activations,
    batch: &BatchShape,
) -> f64 {
    segment_time(segment, device, activations, batch).value
}

/// The same with where it comes from: the device's profile, if it has one for such segments, else the roofline of its
/// figures.
pub fn segment_time(
    segment: &Segment,
    device: &DeviceFacts,
    activations: Activations,
    batch: &BatchShape,
) -> Figure {
    kind_time(&SegmentKey::from(segment), device, activations, batch)
}

/// The same for all segments of a kind.
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

/// Launch overhead plus the slower of moving and computing.
fn roofline(kind: SegmentKind, work: &SegmentWork, device: &DeviceFacts, activations: Activations) -> Figure {
    let (bandwidth, flops) = (device.bandwidth_bytes_per_s, device.flops_per_s(activations));
    let (moving_s, computing_s) = (work.bytes / bandwidth.value, work.flops / flops.value);
    // The figure is for a block's dispatches; each half has about half of them.
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
