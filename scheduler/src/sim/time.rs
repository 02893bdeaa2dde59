//! Times of simulated devices. They are linear for random pipelines. For plans, the cost model computes them.
//! This module does not depend on plans or on the order of events.

use crate::core::{Item, MicroBatch, Nanoseconds};
use ragtag_graph::{Segment, WireType};
use ragtag_kernels::Activations;
use ragtag_planner::cost::{BatchShape, BoundaryTime, DeviceFacts, SegmentKey, kind_time};
use std::sync::Arc;

/// Computation time of a stage.
#[derive(Clone, Debug, PartialEq)]
pub enum ComputeTime {
    /// Fixed time per micro-batch, plus time per row.
    Linear {
        /// Fixed time per micro-batch.
        batch_ns: Nanoseconds,
        /// Time per row.
        row_ns: Nanoseconds,
    },
    /// Time that the cost model computes.
    Modelled(Arc<StageCosts>),
}

impl ComputeTime {
    /// Returns the computation time of a micro-batch.
    pub(super) fn of(&self, batch: &MicroBatch) -> Nanoseconds {
        match self {
            ComputeTime::Linear { batch_ns, row_ns } => batch_ns + u64::from(batch.rows()) * row_ns,
            ComputeTime::Modelled(costs) => nanoseconds(costs.time_us(&shape(batch))),
        }
    }
}

/// Inputs from which the cost model computes the times of a stage.
#[derive(Clone, Debug, PartialEq)]
pub struct StageCosts {
    /// Kinds of segments, each with the number of segments of that kind.
    kinds: Vec<(SegmentKey, f64)>,
    device: DeviceFacts,
    activations: Activations,
    wire_type: WireType,
    row_bytes: u64,
}

impl StageCosts {
    /// Creates the costs of `segments` on a device. `row_bytes` is the size of a row of activations in device
    /// memory.
    pub fn new(
        segments: &[Segment],
        device: &DeviceFacts,
        activations: Activations,
        wire_type: WireType,
        row_bytes: u64,
    ) -> Self {
        let mut kinds: Vec<(SegmentKey, f64)> = Vec::new();
        for segment in segments {
            let key = SegmentKey::from(segment);
            match kinds.iter_mut().find(|(known, _)| *known == key) {
                Some((_, count)) => *count += 1.0,
                None => kinds.push((key, 1.0)),
            }
        }
        Self { kinds, device: device.clone(), activations, wire_type, row_bytes }
    }

    /// Returns the computation time of a micro-batch, in microseconds.
    pub fn time_us(&self, batch: &BatchShape) -> f64 {
        let of_kind = |(key, count): &(SegmentKey, f64)| {
            count * kind_time(key, &self.device, self.activations, batch).value
        };
        let wire_type = BoundaryTime::new(self.wire_type, &self.device, batch.rows.into(), self.row_bytes);
        self.device.stage_us.value + self.kinds.iter().map(of_kind).sum::<f64>() + wire_type.sum_us()
    }
}

/// Returns the properties of a micro-batch that determine its cost. The number of positions is averaged over
/// the rows. Each row attends to itself and to all earlier positions.
fn shape(batch: &MicroBatch) -> BatchShape {
    let positions = |item: &Item| {
        let rows = item.tokens.len() as f64;
        rows * (f64::from(item.first_position) + (rows + 1.0) / 2.0)
    };
    let rows = batch.rows();
    BatchShape {
        rows,
        logit_rows: batch.logit_rows(),
        sequences: batch.items.len() as u32,
        positions: batch.items.iter().map(positions).sum::<f64>() / f64::from(rows.max(1)),
    }
}

/// Time of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CopyTime {
    /// Fixed time of every copy.
    pub copy_ns: Nanoseconds,
    /// Additional time of one copy per micro-batch, regardless of its number of chunks. It is added to the
    /// sender's first copy into the ring, and to the receiver's last copy out of the ring.
    pub once_ns: Nanoseconds,
    /// Time per byte.
    pub byte_ns: f64,
}

impl CopyTime {
    /// Returns the time of a copy of `bytes` bytes. A copy of zero bytes only waits and signals.
    pub(super) fn of(&self, pays_once: bool, bytes: u64) -> Nanoseconds {
        let once = if pays_once && bytes > 0 { self.once_ns } else { 0 };
        // The cast saturates if the float is too large.
        self.copy_ns.saturating_add(once).saturating_add((bytes as f64 * self.byte_ns).round() as u64)
    }
}

/// Converts microseconds to nanoseconds. Saturates at the maximum of the clock.
pub(super) fn nanoseconds(us: f64) -> Nanoseconds {
    (us * 1e3).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::{LogitRows, MicroBatchId, SequenceId};

    fn item(sequence: u64, first_position: u32, rows: usize, logits: LogitRows) -> Item {
        let (tokens, blocks): (_, std::sync::Arc<[u32]>) = (vec![0; rows], [].into());
        Item {
            sequence: SequenceId(sequence),
            epoch: 0,
            first_position,
            prompt_tokens: 0,
            tokens,
            ring: blocks.clone(),
            blocks,
            logits,
            noise: None,
        }
    }

    #[test]
    fn costs_depend_on_rows_logits_sequences_and_the_mean_of_positions() {
        let items = vec![item(0, 9, 1, LogitRows::Last), item(1, 4, 3, LogitRows::None)];
        let batch = MicroBatch { id: MicroBatchId(0), credit: 0, items };
        // The rows are at positions 9, 4, 5 and 6. They attend to 10, 5, 6 and 7 positions.
        let expected = BatchShape { rows: 4, logit_rows: 1, sequences: 2, positions: 7.0 };
        assert_eq!(shape(&batch), expected);
        assert!(!batch.decodes_only());
    }

    #[test]
    fn one_chunk_pays_the_cost_per_micro_batch() {
        let time = CopyTime { copy_ns: 1, once_ns: 100, byte_ns: 0.5 };
        assert_eq!([time.of(true, 10), time.of(false, 10), time.of(true, 0)], [106, 6, 1]);
        assert_eq!(CopyTime { byte_ns: f64::MAX, ..time }.of(true, u64::MAX), u64::MAX);
    }
}
