//! Timestamps of submissions, converted from the device's clock to the host's.
//!
//! Each measured submission uses a slot. A slot has two queries, a buffer range for their results, and a
//! buffer that the host can map. While all slots are in use, further submissions are not measured. This
//! module does not depend on commands.

use crate::gpu::Gpu;
use crossbeam_channel::{Receiver, bounded};
use ragtag_hal::Timing;
use ragtag_hal::queues::Difference;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use wgpu::{
    Buffer, BufferDescriptor, BufferUsages, CommandEncoder, Features, MapMode,
    QUERY_RESOLVE_BUFFER_ALIGNMENT, QuerySet, QuerySetDescriptor, QueryType,
};

/// Maximum number of submissions that can be measured at the same time.
const SLOTS: u32 = 64;
/// Size of two timestamps in bytes.
const BYTES: u64 = 16;

/// Timestamp slots of a device.
pub(crate) struct Stamps {
    queries: QuerySet,
    resolved: Buffer,
    slots: Mutex<Vec<Slot>>,
    difference: Mutex<Option<Difference>>,
    period_ns: f64,
}

/// A timestamp slot: its index and its mappable buffer.
struct Slot {
    number: u32,
    buffer: Buffer,
}

impl Stamps {
    /// Creates the slots. Returns `None` if the device does not support timestamps.
    pub(crate) fn new(gpu: &Gpu) -> Option<Arc<Self>> {
        let wanted = Features::TIMESTAMP_QUERY | Features::TIMESTAMP_QUERY_INSIDE_ENCODERS;
        let period_ns = f64::from(gpu.queue.get_timestamp_period());
        if !gpu.device.features().contains(wanted) || period_ns <= 0.0 {
            return None;
        }
        let buffer = |size, usage| {
            gpu.device.create_buffer(&BufferDescriptor {
                label: None,
                size,
                usage,
                mapped_at_creation: false,
            })
        };
        let made = gpu.guarded(|| {
            let slot = |number| Slot {
                number,
                buffer: buffer(BYTES, BufferUsages::MAP_READ | BufferUsages::COPY_DST),
            };
            Self {
                queries: gpu.device.create_query_set(&QuerySetDescriptor {
                    label: None,
                    ty: QueryType::Timestamp,
                    count: 2 * SLOTS,
                }),
                resolved: buffer(
                    u64::from(SLOTS) * QUERY_RESOLVE_BUFFER_ALIGNMENT,
                    BufferUsages::QUERY_RESOLVE | BufferUsages::COPY_SRC,
                ),
                slots: Mutex::new((0..SLOTS).map(slot).collect()),
                difference: Mutex::default(),
                period_ns,
            }
        });
        made.inspect_err(|failure| tracing::debug!(?failure, "timestamps are unavailable")).ok().map(Arc::new)
    }

    fn slots(&self) -> MutexGuard<'_, Vec<Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks the start of a measurement in the encoder. Returns `None` while all slots are in use.
    pub(crate) fn begin(self: &Arc<Self>, encoder: &mut CommandEncoder) -> Option<Begun> {
        let slot = self.slots().pop()?;
        encoder.write_timestamp(&self.queries, 2 * slot.number);
        Some(Begun { stamps: Arc::clone(self), slot })
    }

    /// Converts two device timestamps to host time. The caller must make this call as soon as it has read the
    /// timestamps.
    pub(crate) fn host_ns(&self, (start, end): (u64, u64)) -> (u64, u64) {
        let ns = |ticks: u64| (ticks as f64 * self.period_ns) as u64;
        let now_ns = Timing::now_ns();
        let mut known = self.difference.lock().unwrap_or_else(PoisonError::into_inner);
        let heard = Difference::heard(*known, ns(end), now_ns);
        known.insert(heard).host(ns(start), ns(end), now_ns)
    }
}

/// A measurement whose start is marked.
pub(crate) struct Begun {
    stamps: Arc<Stamps>,
    slot: Slot,
}

impl Begun {
    /// Marks the end of the measurement in the encoder.
    pub(crate) fn end(self, encoder: &mut CommandEncoder) -> Ended {
        let Self { stamps, slot } = self;
        let (first, place) = (2 * slot.number, u64::from(slot.number) * QUERY_RESOLVE_BUFFER_ALIGNMENT);
        encoder.write_timestamp(&stamps.queries, first + 1);
        encoder.resolve_query_set(&stamps.queries, first..first + 2, &stamps.resolved, place);
        encoder.copy_buffer_to_buffer(&stamps.resolved, place, &slot.buffer, 0, BYTES);
        Ended { stamps, slot }
    }
}

/// A measurement whose start and end are marked.
pub(crate) struct Ended {
    stamps: Arc<Stamps>,
    slot: Slot,
}

impl Ended {
    /// Starts to map the timestamps. The mapping completes when the submission has ended.
    pub(crate) fn start(self) -> Reading {
        let (tell, mapped) = bounded(1);
        self.slot.buffer.slice(..).map_async(MapMode::Read, move |result| {
            // The receiver may have been dropped.
            let _ = tell.send(result.is_ok());
        });
        Reading { ended: self, mapped }
    }
}

/// Timestamps of a submission whose mapping is in progress.
pub(crate) struct Reading {
    ended: Ended,
    mapped: Receiver<bool>,
}

impl Reading {
    /// Waits for the mapping and returns the timestamps in ticks. Returns `None` if the mapping fails. After
    /// a failure, the slot is not used again.
    pub(crate) fn ticks(self) -> Option<(u64, u64)> {
        self.mapped.recv().ok().filter(|is| *is)?;
        let Ended { stamps, slot } = self.ended;
        let ticks = {
            let view = slot.buffer.slice(..).get_mapped_range().ok()?;
            let word = |at: usize| view.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
            word(0).zip(word(8))
        };
        slot.buffer.unmap();
        stamps.slots().push(slot);
        ticks
    }
}
