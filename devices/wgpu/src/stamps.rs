//! When the device begins and ends a submission, by its own clock, and what that is by the host's.
//!
//! Each submission that is measured has a slot: two queries, a place that they are resolved to, and a buffer that the host
//! maps. While all slots are in use, submissions are not measured. This module must not know commands.

use crate::gpu::Gpu;
use crossbeam_channel::{Receiver, bounded};
use ragtag_hal::Timing;
use ragtag_hal::queues::Difference;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use wgpu::{
    Buffer, BufferDescriptor, BufferUsages, CommandEncoder, Features, MapMode,
    QUERY_RESOLVE_BUFFER_ALIGNMENT, QuerySet, QuerySetDescriptor, QueryType,
};

/// Submissions that are measured at a time.
const SLOTS: u32 = 64;
/// Bytes of two stamps.
const BYTES: u64 = 16;

/// The slots of a device.
pub(crate) struct Stamps {
    queries: QuerySet,
    resolved: Buffer,
    slots: Mutex<Vec<Slot>>,
    difference: Mutex<Option<Difference>>,
    period_ns: f64,
}

/// A slot: its number, and what the host maps.
struct Slot {
    number: u32,
    buffer: Buffer,
}

impl Stamps {
    /// `None` if the device does not measure.
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
        made.inspect_err(|failure| tracing::debug!(?failure, "nothing is measured")).ok().map(Arc::new)
    }

    fn slots(&self) -> MutexGuard<'_, Vec<Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks the begin of what is encoded from here on; `None` while all slots are in use.
    pub(crate) fn begin(self: &Arc<Self>, encoder: &mut CommandEncoder) -> Option<Begun> {
        let slot = self.slots().pop()?;
        encoder.write_timestamp(&self.queries, 2 * slot.number);
        Some(Begun { stamps: Arc::clone(self), slot })
    }

    /// The host's times for two stamps of the device, of which the host has just heard.
    pub(crate) fn host_ns(&self, (start, end): (u64, u64)) -> (u64, u64) {
        let ns = |ticks: u64| (ticks as f64 * self.period_ns) as u64;
        let now_ns = Timing::now_ns();
        let mut known = self.difference.lock().unwrap_or_else(PoisonError::into_inner);
        let heard = Difference::heard(*known, ns(end), now_ns);
        known.insert(heard).host(ns(start), ns(end), now_ns)
    }
}

/// The begin was marked.
pub(crate) struct Begun {
    stamps: Arc<Stamps>,
    slot: Slot,
}

impl Begun {
    /// Marks the end of what was encoded since.
    pub(crate) fn end(self, encoder: &mut CommandEncoder) -> Ended {
        let Self { stamps, slot } = self;
        let (first, place) = (2 * slot.number, u64::from(slot.number) * QUERY_RESOLVE_BUFFER_ALIGNMENT);
        encoder.write_timestamp(&stamps.queries, first + 1);
        encoder.resolve_query_set(&stamps.queries, first..first + 2, &stamps.resolved, place);
        encoder.copy_buffer_to_buffer(&stamps.resolved, place, &slot.buffer, 0, BYTES);
        Ended { stamps, slot }
    }
}

/// The end was marked, too.
pub(crate) struct Ended {
    stamps: Arc<Stamps>,
    slot: Slot,
}

impl Ended {
    /// Has the stamps mapped when the device is done with what was submitted.
    pub(crate) fn start(self) -> Reading {
        let (tell, mapped) = bounded(1);
        self.slot.buffer.slice(..).map_async(MapMode::Read, move |result| {
            // Whoever waits may be gone.
            let _ = tell.send(result.is_ok());
        });
        Reading { ended: self, mapped }
    }
}

/// Stamps on their way to the host.
pub(crate) struct Reading {
    ended: Ended,
    mapped: Receiver<bool>,
}

impl Reading {
    /// The stamps, in ticks of the device, once it is done. `None` for a slot that could not be mapped, which is not used
    /// again.
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
