//! A queue of the driver as lanes use it: scripts in, values of a timeline semaphore out, times in the host's clock.
//!
//! Points of other devices are waited for on the host. A submission could wait for a semaphore that the host signals when such a
//! point passes. That is not used: nothing that was enqueued can be taken back, so that work behind a point which fails would
//! have to run on bytes that never came, and lanes that share a queue of the driver would all stand behind it.
//!
//! This module must not know buffers, kernels or points.

use crate::api::{Semaphore, SharedQueue, Stamps};
use crate::clock::Clock;
use crate::driver::{HostSpan, Script, Vulkan};
use crate::recording::Recorders;
use crossbeam_channel::{Receiver, Sender, unbounded};
use ragtag_hal::queues::{DriverQueue, Ends, Thread};
use ragtag_hal::{Result, Timing};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// A value of a queue's semaphore.
pub(crate) struct Event {
    semaphore: Arc<Semaphore>,
    value: u64,
    stamps: Option<Arc<Stamps>>,
    /// Copied out of shadows when it has passed.
    collects: Arc<[HostSpan]>,
    /// Where the queue's values are dealt with.
    settled: Arc<Settled>,
    /// The value with which its shadows are filled, if it has any to fill.
    cast: Option<(Arc<Settled>, u64)>,
}

/// How far a thread has dealt with the values of a semaphore: what belongs to them has been copied, or never will be.
#[derive(Default)]
struct Settled {
    state: Mutex<SettledState>,
    moved: Condvar,
}

#[derive(Default)]
struct SettledState {
    value: u64,
    /// Whether the device was lost meanwhile.
    failed: bool,
}

impl Settled {
    fn lock(&self) -> MutexGuard<'_, SettledState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All up to this value is dealt with.
    fn reach(&self, value: u64, failed: bool) {
        let mut state = self.lock();
        state.value = state.value.max(value);
        state.failed |= failed;
        self.moved.notify_all();
    }

    /// Blocks until it has got there; whether all went well.
    fn wait(&self, value: u64) -> bool {
        let waited = self.moved.wait_while(self.lock(), |state| state.value < value);
        !waited.unwrap_or_else(PoisonError::into_inner).failed
    }
}

/// What is copied into shadows before a submission starts. What came before is to have left them by then: the end of a
/// submission alone does not say that.
struct Cast {
    spans: Arc<[HostSpan]>,
    after: Vec<(Arc<Settled>, u64)>,
    value: u64,
}

/// The thread that copies into shadows, once there are any.
struct Caster {
    inbox: Option<Sender<Cast>>,
    semaphore: Arc<Semaphore>,
    settled: Arc<Settled>,
    value: u64,
    thread: Thread,
}

impl Caster {
    fn new(queue: &SharedQueue) -> Result<Self> {
        let semaphore = Arc::new(Semaphore::new(queue.logical())?);
        let (inbox, casts) = unbounded();
        let settled = Arc::<Settled>::default();
        let (signal, theirs) = (Arc::clone(&semaphore), Arc::clone(&settled));
        let thread = Thread::spawn("vulkan shadows".into(), move || cast_all(&casts, &signal, &theirs))?;
        Ok(Self { inbox: Some(inbox), semaphore, settled, value: 0, thread })
    }

    /// Has shadows filled. The thread ends only when the queue does.
    fn send(&mut self, cast: Cast) {
        self.value = cast.value;
        let _ = self.inbox.as_ref().map(|inbox| inbox.send(cast));
    }
}

/// The body of the thread. It waits for submissions that were made before, which all come to their ends: a device that is lost
/// lets every wait end.
fn cast_all(casts: &Receiver<Cast>, done: &Semaphore, settled: &Settled) {
    for cast in casts {
        let left = cast.after.iter().all(|(settled, value)| settled.wait(*value));
        if left {
            cast.spans.iter().for_each(|span| span.registered().hold.cast(span.range()));
        }
        settled.reach(cast.value, !left);
        if let Err(error) = done.signal(cast.value) {
            tracing::debug!(%error, "a shadow's semaphore was not signalled");
        }
    }
}

impl Drop for Caster {
    fn drop(&mut self) {
        self.inbox = None;
        self.thread.end();
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
    /// Moved by whoever waits for events, which is the lane's watcher, in their order.
    settled: Arc<Settled>,
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
            settled: Arc::default(),
            order: Mutex::default(),
            clock: Arc::clone(clock),
        })
    }

    pub(crate) fn recorders(&self) -> &Arc<Recorders> {
        &self.recorders
    }

    /// Who fills a script's shadows, and what with, when what is before it has ended.
    fn cast<'a>(
        &self,
        order: &'a mut Order,
        script: &Script,
        after: &[&Event],
    ) -> Result<Option<(&'a mut Caster, Cast)>> {
        if script.recording().casts.is_empty() {
            return Ok(None);
        }
        let caster = match &mut order.caster {
            Some(caster) => caster,
            none => none.insert(Caster::new(&self.shared)?),
        };
        let others = after.iter().map(|event| (Arc::clone(&event.settled), event.value));
        let after = others.chain([(Arc::clone(&self.settled), order.value)]).collect();
        let cast = Cast { spans: Arc::clone(&script.recording().casts), after, value: caster.value + 1 };
        Ok(Some((caster, cast)))
    }
}

impl DriverQueue for Queue {
    type Driver = Vulkan;
    type Event = Event;

    fn enqueue(&self, script: &Arc<Script>, after: &[&Event]) -> Result<Ends<Event>> {
        let recording = script.recording().recording(&self.recorders, script.steps())?;
        let stamps = recording.as_ref().and_then(|recording| recording.stamps()).cloned();
        if let Some(stamps) = &stamps {
            stamps.reset();
        }
        let mut order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        let value = order.value + 1;
        let cast = self.cast(&mut order, script, after)?;
        let mut waits: Vec<_> = after.iter().map(|event| (event.semaphore.as_ref(), event.value)).collect();
        waits.extend(cast.iter().map(|(caster, cast)| (caster.semaphore.as_ref(), cast.value)));
        let commands = recording.as_ref().and_then(|recording| recording.recorder()).map(|one| one.buffer());
        // SAFETY: the lane keeps the script, and with it the recording and all that it names, until the event has passed; the
        // semaphores are kept by the device's queues, which end after that. `Checked` lets no program be submitted before its
        // last run has ended. The waits are values that were enqueued before, or that a thread signals after such.
        let submitted = unsafe { self.shared.submit(commands, &waits, (&self.semaphore, value)) };
        submitted.map_err(|error| script.recording().refused(error))?;
        // Only now: of what the driver refuses nothing may be read any more.
        let cast = cast.map(|(caster, cast)| {
            let settled = (Arc::clone(&caster.settled), cast.value);
            caster.send(cast);
            settled
        });
        order.value = value;
        let (semaphore, settled) = (Arc::clone(&self.semaphore), Arc::clone(&self.settled));
        let collects = Arc::clone(&script.recording().collects);
        let last = Event { semaphore, value, stamps, collects, settled, cast };
        Ok(Ends { first: None, last: Arc::new(last) })
    }

    fn passed(&self, event: &Event) -> Option<bool> {
        Some(event.semaphore.has_passed(event.value))
    }

    /// What has arrived in shadows is copied to where it belongs.
    fn wait(&self, event: &Event) -> Result<()> {
        let ended = event.semaphore.wait(event.value);
        if let Some((cast, value)) = &event.cast {
            // It ends without the submission where the device is lost, and the region is leased until then.
            cast.wait(*value);
        }
        if ended.is_ok() {
            event.collects.iter().for_each(|span| span.registered().hold.collect(span.range()));
        }
        event.settled.reach(event.value, ended.is_err());
        ended
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
