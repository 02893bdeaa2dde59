//! An implementation of `ragtag-hal`'s queue on top of a Vulkan queue. It submits scripts, signals a timeline
//! semaphore, and converts times to the host's clock.
//!
//! The host waits until a point of another device has passed, and only then submits the work that depends on
//! the point. A submission could instead wait for a semaphore that the other device or the host signals.
//! Ragtag does not use such semaphores, because enqueued work cannot be cancelled. If the point failed, the
//! work would run without its input. While the work waited, it would also block every queue that shares the
//! Vulkan queue. Semaphores that CUDA and Vulkan shared on an H100 made transfers slower: the GPU gives the
//! waiting API time slices, in which the awaited work stands still.
//!
//! This module does not depend on buffers, kernels or points.

use crate::api::{Semaphore, SharedQueue, Stamps};
use crate::clock::Clock;
use crate::driver::{HostSpan, Script, Vulkan};
use crate::recording::Recorders;
use crossbeam_channel::{Receiver, Sender, unbounded};
use ragtag_hal::queues::{DriverQueue, Ends, Fences, Thread};
use ragtag_hal::{Result, Timing};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// A value of a queue's semaphore. The semaphore reaches it when the script has ended.
pub(crate) struct Event {
    semaphore: Arc<Semaphore>,
    value: u64,
    stamps: Option<Arc<Stamps>>,
    /// Spans to copy out of staging buffers after the event has passed.
    copy_outs: Arc<[HostSpan]>,
    /// Progress of the queue's copy-outs.
    settled: Arc<Settled>,
    /// Progress of the copy-ins, and the value of this script's copy-in. `None` if the script has no copy-in.
    copy_in: Option<(Arc<Settled>, u64)>,
}

/// Progress of a thread that copies into or out of staging buffers. Copies for all values up to `value` are
/// done or were cancelled.
#[derive(Default)]
struct Settled {
    state: Mutex<SettledState>,
    moved: Condvar,
}

#[derive(Default)]
struct SettledState {
    value: u64,
    /// Whether copies were cancelled because the device is lost.
    failed: bool,
}

impl Settled {
    fn lock(&self) -> MutexGuard<'_, SettledState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the copies for all values up to `value` are done or were cancelled.
    fn reach(&self, value: u64, failed: bool) {
        let mut state = self.lock();
        state.value = state.value.max(value);
        state.failed |= failed;
        self.moved.notify_all();
    }

    /// Blocks until the copies for `value` are done or were cancelled. Returns false if the device is lost.
    fn wait(&self, value: u64) -> bool {
        let waited = self.moved.wait_while(self.lock(), |state| state.value < value);
        !waited.unwrap_or_else(PoisonError::into_inner).failed
    }
}

/// A copy into staging buffers that takes place before a submission starts. It waits for the copy-outs of
/// earlier submissions, which may still be running after those submissions have ended.
struct CopyIn {
    spans: Arc<[HostSpan]>,
    after: Vec<(Arc<Settled>, u64)>,
    value: u64,
}

/// The thread that performs copy-ins. It starts with the first copy-in.
struct CopyInThread {
    inbox: Option<Sender<CopyIn>>,
    semaphore: Arc<Semaphore>,
    settled: Arc<Settled>,
    value: u64,
    thread: Thread,
}

impl CopyInThread {
    fn new(queue: &SharedQueue) -> Result<Self> {
        let semaphore = Arc::new(Semaphore::new(queue.logical())?);
        let (inbox, copy_ins) = unbounded();
        let settled = Arc::<Settled>::default();
        let (signal, theirs) = (Arc::clone(&semaphore), Arc::clone(&settled));
        let thread =
            Thread::spawn("vulkan staging".into(), move || serve_copy_ins(&copy_ins, &signal, &theirs))?;
        Ok(Self { inbox: Some(inbox), semaphore, settled, value: 0, thread })
    }

    /// Sends a copy-in to the thread. The thread runs until the queue is dropped.
    fn send(&mut self, copy_in: CopyIn) {
        self.value = copy_in.value;
        if let Some(inbox) = &self.inbox {
            inbox.send(copy_in).expect("the copy-in thread receives until the inbox is dropped");
        }
    }
}

/// Runs the copy-in thread. The thread waits for earlier submissions. Each of these waits ends at the latest
/// when the device is lost.
fn serve_copy_ins(copy_ins: &Receiver<CopyIn>, done: &Semaphore, settled: &Settled) {
    for copy_in in copy_ins {
        let left = copy_in.after.iter().all(|(settled, value)| settled.wait(*value));
        if left {
            copy_in.spans.iter().for_each(|span| span.registered().hold.copy_in(span.range()));
        }
        settled.reach(copy_in.value, !left);
        if let Err(error) = done.signal(copy_in.value) {
            tracing::debug!(%error, "cannot signal the semaphore of a staging buffer");
        }
    }
}

impl Drop for CopyInThread {
    fn drop(&mut self) {
        self.inbox = None;
        self.thread.end();
    }
}

/// State that is locked during the submission of a script.
#[derive(Default)]
struct Order {
    /// Semaphore value of the latest submission.
    value: u64,
    copy_thread: Option<CopyInThread>,
}

/// A Vulkan queue with its own timeline semaphore.
pub(crate) struct Queue {
    shared: Arc<SharedQueue>,
    recorders: Arc<Recorders>,
    semaphore: Arc<Semaphore>,
    /// Progress of the copy-outs. The queue's completion thread updates it in the order of the events.
    settled: Arc<Settled>,
    order: Mutex<Order>,
    /// Clock of the device, shared by its queues.
    clock: Arc<Mutex<Clock>>,
}

impl Queue {
    /// Creates a queue.
    ///
    /// # Errors
    /// Returns the driver's error.
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

    /// Returns the copy-in of a script and the copy-in thread. The copy-in waits for the events in `after`
    /// and for earlier work of this queue. Returns `None` if the script has no copy-in.
    fn copy_in<'a>(
        &self,
        order: &'a mut Order,
        script: &Script,
        after: &[&Event],
    ) -> Result<Option<(&'a mut CopyInThread, CopyIn)>> {
        if script.recording().copy_ins.is_empty() {
            return Ok(None);
        }
        let copy_thread = match &mut order.copy_thread {
            Some(copy_thread) => copy_thread,
            none => none.insert(CopyInThread::new(&self.shared)?),
        };
        let others = after.iter().map(|event| (Arc::clone(&event.settled), event.value));
        let after = others.chain([(Arc::clone(&self.settled), order.value)]).collect();
        let copy_in =
            CopyIn { spans: Arc::clone(&script.recording().copy_ins), after, value: copy_thread.value + 1 };
        Ok(Some((copy_thread, copy_in)))
    }
}

impl DriverQueue for Queue {
    type Driver = Vulkan;
    type Event = Event;

    fn enqueue(&self, script: &Arc<Script>, fences: &Fences<'_, Self>) -> Result<Ends<Event>> {
        let after = fences.after;
        let recording = script.recording().recording(&self.recorders, script.steps())?;
        let stamps = recording.as_ref().and_then(|recording| recording.stamps()).cloned();
        if let Some(stamps) = &stamps {
            stamps.reset();
        }
        let mut order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        let value = order.value + 1;
        let copy_in = self.copy_in(&mut order, script, after)?;
        let mut waits: Vec<_> = after.iter().map(|event| (event.semaphore.as_ref(), event.value)).collect();
        waits.extend(
            copy_in.iter().map(|(copy_thread, copy_in)| (copy_thread.semaphore.as_ref(), copy_in.value)),
        );
        let commands = recording.as_ref().and_then(|recording| recording.recorder()).map(|one| one.buffer());
        // SAFETY: the caller keeps the script alive until the event has passed. The script keeps the
        // recording and all its objects alive. The device's queues keep the semaphores alive, and are dropped
        // after that. `Checked` allows the submission of a program only after its previous run has ended.
        // Each awaited value either was enqueued before, or is signalled by a thread that waits only for such
        // values.
        let submitted = unsafe { self.shared.submit(commands, &waits, (&self.semaphore, value)) };
        submitted.map_err(|error| script.recording().refused(error))?;
        // The copy-in is sent only after a successful submission, because the bytes of a rejected submission
        // are no longer leased.
        let copy_in = copy_in.map(|(copy_thread, copy_in)| {
            let settled = (Arc::clone(&copy_thread.settled), copy_in.value);
            copy_thread.send(copy_in);
            settled
        });
        order.value = value;
        let (semaphore, settled) = (Arc::clone(&self.semaphore), Arc::clone(&self.settled));
        let copy_outs = Arc::clone(&script.recording().copy_outs);
        let last = Event { semaphore, value, stamps, copy_outs, settled, copy_in };
        Ok(Ends { first: None, last: Arc::new(last) })
    }

    fn passed(&self, event: &Event) -> Option<bool> {
        Some(event.semaphore.has_passed(event.value))
    }

    /// Waits for the event, then copies data out of staging buffers.
    fn wait(&self, event: &Event) -> Result<()> {
        let ended = event.semaphore.wait(event.value);
        if let Some((copy_in, value)) = &event.copy_in {
            // After a device loss, the submission may end before its copy-in. The region must stay leased
            // until the copy-in is done.
            copy_in.wait(*value);
        }
        if ended.is_ok() {
            event.copy_outs.iter().for_each(|span| span.registered().hold.copy_out(span.range()));
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
