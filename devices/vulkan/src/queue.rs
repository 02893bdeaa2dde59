//! A queue of the driver as lanes use it: scripts in, values of a timeline semaphore out, times in the host's clock.
//!
//! Points of other devices are waited for on the host. A submission could wait for a semaphore that the host signals when such a
//! point passes. That is not used: nothing that was enqueued can be taken back, so that work behind a point which fails would
//! have to run on bytes that never came, and lanes that share a queue of the driver would all stand behind it.
//!
//! This module must not know buffers, kernels or points.

use crate::api::{Semaphore, SharedQueue, Stamps};
use crate::clock::Clock;
use crate::recording::Recorders;
use crate::script::{HostSpan, Script};
use crossbeam_channel::{Receiver, Sender, unbounded};
use ragtag_hal::lanes::{DriverQueue, Ends, spawn};
use ragtag_hal::{Result, Timing};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// A value of a queue's semaphore.
pub(crate) struct Event {
    semaphore: Arc<Semaphore>,
    value: u64,
    stamps: Option<Arc<Stamps>>,
    /// Copied out of shadows when it has passed.
    collects: Arc<[HostSpan]>,
}

/// What is copied into shadows before a submission starts.
struct Cast {
    spans: Arc<[HostSpan]>,
    after: Vec<(Arc<Semaphore>, u64)>,
    value: u64,
}

/// The thread that copies into shadows, once there are any.
struct Caster {
    inbox: Option<Sender<Cast>>,
    semaphore: Arc<Semaphore>,
    value: u64,
    thread: Option<JoinHandle<()>>,
}

impl Caster {
    fn new(queue: &SharedQueue) -> Result<Self> {
        let semaphore = Arc::new(Semaphore::new(queue.logical())?);
        let (inbox, casts) = unbounded();
        let theirs = Arc::clone(&semaphore);
        let thread = spawn("vulkan shadows".into(), move || cast_all(&casts, &theirs))?;
        Ok(Self { inbox: Some(inbox), semaphore, value: 0, thread: Some(thread) })
    }
}

/// The body of the thread. A device that is lost lets every wait end.
fn cast_all(casts: &Receiver<Cast>, done: &Semaphore) {
    for cast in casts {
        let waited = cast.after.iter().try_for_each(|(semaphore, value)| semaphore.wait(*value));
        if waited.is_ok() {
            cast.spans.iter().for_each(|span| span.registered.cast(&span.range));
        }
        if let Err(error) = done.signal(cast.value) {
            tracing::debug!(%error, "a shadow's semaphore was not signalled");
        }
    }
}

impl Drop for Caster {
    fn drop(&mut self) {
        self.inbox = None;
        if let Some(thread) = self.thread.take() {
            // It fails only with the device.
            let _ = thread.join();
        }
    }
}

/// What is guarded by a queue's order.
#[derive(Default)]
struct Order {
    /// The last value that was given away.
    value: u64,
    caster: Option<Caster>,
}

/// A queue of the driver, with a semaphore of its own.
pub(crate) struct Queue {
    shared: Arc<SharedQueue>,
    recorders: Arc<Recorders>,
    semaphore: Arc<Semaphore>,
    order: Mutex<Order>,
    /// The device's, which all its queues share.
    clock: Arc<Mutex<Clock>>,
}

impl Queue {
    /// # Errors
    /// If the driver refuses.
    pub(crate) fn new(
        shared: &Arc<SharedQueue>,
        recorders: &Arc<Recorders>,
        clock: &Arc<Mutex<Clock>>,
    ) -> Result<Self> {
        Ok(Self {
            shared: Arc::clone(shared),
            recorders: Arc::clone(recorders),
            semaphore: Arc::new(Semaphore::new(shared.logical())?),
            order: Mutex::default(),
            clock: Arc::clone(clock),
        })
    }

    pub(crate) fn recorders(&self) -> &Arc<Recorders> {
        &self.recorders
    }

    /// Has a script's shadows filled when what is before it has ended.
    fn cast(
        &self,
        order: &mut Order,
        script: &Script,
        after: &[&Event],
    ) -> Result<Option<(Arc<Semaphore>, u64)>> {
        if script.casts.is_empty() {
            return Ok(None);
        }
        let caster = match &mut order.caster {
            Some(caster) => caster,
            none => none.insert(Caster::new(&self.shared)?),
        };
        let mut before: Vec<_> =
            after.iter().map(|event| (Arc::clone(&event.semaphore), event.value)).collect();
        before.push((Arc::clone(&self.semaphore), order.value));
        caster.value += 1;
        let cast = Cast { spans: Arc::clone(&script.casts), after: before, value: caster.value };
        // The thread ends only when the queue does.
        let _ = caster.inbox.as_ref().map(|inbox| inbox.send(cast));
        Ok(Some((Arc::clone(&caster.semaphore), caster.value)))
    }
}

impl DriverQueue for Queue {
    type Script = Script;
    type Event = Event;

    fn enqueue(&self, script: &Script, after: &[&Event]) -> Result<Ends<Event>> {
        let recording = script.recording(&self.recorders)?;
        let stamps = recording.as_ref().and_then(|recording| recording.stamps()).cloned();
        if let Some(stamps) = &stamps {
            stamps.reset();
        }
        let mut order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        let cast = self.cast(&mut order, script, after)?;
        let mut waits: Vec<_> = after.iter().map(|event| (event.semaphore.as_ref(), event.value)).collect();
        waits.extend(cast.as_ref().map(|(semaphore, value)| (semaphore.as_ref(), *value)));
        let commands = recording.as_ref().and_then(|recording| recording.recorder()).map(|one| one.buffer());
        let value = order.value + 1;
        // SAFETY: the lane keeps the script, and with it the recording and all that it names, until the event has passed; the
        // semaphores are kept by the device's queues, which end after that. `Checked` lets no program be submitted before its
        // last run has ended. The waits are values that were enqueued before, or that a thread signals after such.
        unsafe { self.shared.submit(commands, &waits, (&self.semaphore, value)) }?;
        order.value = value;
        let (semaphore, collects) = (Arc::clone(&self.semaphore), Arc::clone(&script.collects));
        Ok(Ends { first: None, last: Arc::new(Event { semaphore, value, stamps, collects }) })
    }

    fn passed(&self, event: &Event) -> Option<bool> {
        Some(event.semaphore.has_passed(event.value))
    }

    /// What has arrived in shadows is copied to where it belongs.
    fn wait(&self, event: &Event) -> Result<()> {
        event.semaphore.wait(event.value)?;
        event.collects.iter().for_each(|span| span.registered.collect(&span.range));
        Ok(())
    }

    fn times_ns(&self, ends: &Ends<Event>) -> Option<(u64, u64)> {
        let (start_ns, end_ns) = ends.last.stamps.as_ref()?.times_ns()?;
        let mut clock = self.clock.lock().unwrap_or_else(PoisonError::into_inner);
        Some(clock.host(start_ns, end_ns, Timing::now_ns()))
    }

    fn finish(&self) -> Result<()> {
        let value = self.order.lock().unwrap_or_else(PoisonError::into_inner).value;
        self.semaphore.wait(value)
    }
}
