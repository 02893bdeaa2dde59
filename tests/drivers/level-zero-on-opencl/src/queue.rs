//! Queues and fences, and the condition variable on which the host and the engines wait.

use crate::calls::{entries, lock};
use crate::device::{COMPUTE, COPY, Context, Device};
use crate::engine::{Command, Engine, Submission};
use crate::event::Event;
use crate::faults::{Call, misuse};
use crate::handles::{described, find, find_all, give, put, share, take};
use crate::list::List;
use crate::types::code::{
    DEVICE_LOST, HANDLE_OBJECT_IN_USE, INVALID_ARGUMENT, INVALID_COMMAND_LIST_TYPE, NOT_READY,
};
use crate::types::*;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// Mode of a queue whose submissions block until they have ended.
const SYNCHRONOUS: u32 = 1;

static LOCK: Mutex<()> = Mutex::new(());
static CHANGED: Condvar = Condvar::new();

/// Wakes all threads that wait for events, fences or queues.
pub fn changed() {
    drop(lock(&LOCK));
    CHANGED.notify_all();
}

/// Blocks until `ready` returns true, for at most `timeout_ns`.
pub fn wait_until(timeout_ns: u64, mut ready: impl FnMut() -> bool) {
    let deadline = Instant::now().checked_add(Duration::from_nanos(timeout_ns));
    let endless = timeout_ns == u64::MAX;
    let mut guard = lock(&LOCK);
    while !ready() {
        let left = deadline.map(|end| end.saturating_duration_since(Instant::now()));
        guard = match left.filter(|_| !endless) {
            Some(Duration::ZERO) => return,
            Some(left) => CHANGED.wait_timeout(guard, left).unwrap_or_else(|e| e.into_inner()).0,
            None => CHANGED.wait(guard).unwrap_or_else(|e| e.into_inner()),
        };
    }
}

/// A command queue, or the queue of an immediate list.
pub struct Queue {
    pub device: Arc<Device>,
    pub ordinal: u32,
    engine: Arc<Engine>,
    is_synchronous: bool,
    /// Numbers of submissions that were made and that have ended.
    submitted: AtomicU64,
    ended: AtomicU64,
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.device.close();
    }
}

impl Queue {
    pub fn new(device: Arc<Device>, desc: &QueueDesc) -> Result<Arc<Self>> {
        let &QueueDesc { ordinal, index, mode, .. } = desc;
        if ![COMPUTE, COPY].contains(&ordinal) || index != 0 {
            return Err(misuse(INVALID_ARGUMENT, "a queue's ordinal or index is out of range"));
        }
        let mut engines = lock(&device.engines);
        let engine = match engines.get(&(ordinal, index)) {
            Some(engine) => Arc::clone(engine),
            None => {
                let engine = Arc::new(Engine::start(Arc::clone(&device))?);
                engines.insert((ordinal, index), Arc::clone(&engine));
                engine
            }
        };
        drop(engines);
        device.open();
        let is_synchronous = mode == SYNCHRONOUS;
        let [submitted, ended] = [0, 0].map(AtomicU64::new);
        Ok(Arc::new(Self { device, ordinal, engine, is_synchronous, submitted, ended }))
    }

    /// Sends commands to the engine.
    pub fn submit(
        self: &Arc<Self>,
        commands: Arc<Vec<Command>>,
        fence: Option<Arc<Event>>,
        is_immediate: bool,
    ) -> Result<()> {
        self.device.passes(Call::Submit)?;
        self.submitted.fetch_add(1, Ordering::SeqCst);
        self.engine.submit(Submission { is_immediate, commands, fence, queue: Arc::clone(self) });
        if self.is_synchronous { self.wait(u64::MAX) } else { Ok(()) }
    }

    /// Counts the end of a submission.
    pub fn ended(&self) {
        self.ended.fetch_add(1, Ordering::SeqCst);
        changed();
    }

    pub fn is_idle(&self) -> bool {
        self.ended.load(Ordering::SeqCst) >= self.submitted.load(Ordering::SeqCst)
    }

    fn wait(&self, timeout_ns: u64) -> Result<()> {
        wait_until(timeout_ns, || self.is_idle());
        match (self.device.is_lost(), self.is_idle()) {
            (true, _) => Err(DEVICE_LOST),
            (_, true) => Ok(()),
            (_, false) => Err(NOT_READY),
        }
    }
}

/// Reports a queue that was destroyed with pending work. Real drivers may crash then.
pub fn check_idle(queue: &Queue) -> Result<()> {
    if queue.is_idle() || queue.device.is_lost() {
        return Ok(());
    }
    Err(misuse(HANDLE_OBJECT_IN_USE, "a queue was destroyed before its work had ended"))
}

/// A fence of a queue.
struct Fence(Arc<Event>);

entries! {
    fn zeCommandQueueCreate(context: Handle, device: Handle, desc: *const QueueDesc, to: *mut Handle) {
        find::<Context>(context)?;
        put(to, share(Queue::new(find(device)?, &described(desc)?)?))
    }
    fn zeCommandQueueDestroy(queue: Handle) {
        check_idle(&*take::<Queue>(queue)?)
    }
    fn zeCommandQueueExecuteCommandLists(queue: Handle, count: u32, lists: *const Handle, fence: Handle) {
        let (queue, lists) = (find::<Queue>(queue)?, find_all::<List>(count, lists)?);
        let fence = if fence.is_null() { None } else { Some(Arc::clone(&find::<Fence>(fence)?.0)) };
        if lists.is_empty() {
            return Err(code::INVALID_SIZE);
        }
        let fits = |list: &Arc<List>| Arc::ptr_eq(&list.device, &queue.device) && list.ordinal == queue.ordinal;
        if !lists.iter().all(fits) {
            return Err(misuse(INVALID_COMMAND_LIST_TYPE, "a list is for another device or queue group"));
        }
        // A fence covers all lists of a call, because an engine runs them in order.
        let lists = lists.iter().map(|list| list.closed()).collect::<Result<Vec<_>>>()?;
        let last = lists.len() - 1;
        let mut submit = lists.into_iter().enumerate();
        submit.try_for_each(|(at, commands)| queue.submit(commands, fence.clone().filter(|_| at == last), false))
    }
    fn zeCommandQueueSynchronize(queue: Handle, timeout_ns: u64) {
        find::<Queue>(queue)?.wait(timeout_ns)
    }

    fn zeFenceCreate(queue: Handle, desc: *const FenceDesc, to: *mut Handle) {
        find::<Queue>(queue)?;
        put(to, give(Fence(Arc::new(Event::fence(described(desc)?.flags & 1 != 0)))))
    }
    fn zeFenceDestroy(fence: Handle) {
        take::<Fence>(fence).map(drop)
    }
    fn zeFenceHostSynchronize(fence: Handle, timeout_ns: u64) {
        find::<Fence>(fence)?.0.wait(timeout_ns)
    }
    fn zeFenceQueryStatus(fence: Handle) {
        find::<Fence>(fence)?.0.status()
    }
    fn zeFenceReset(fence: Handle) {
        find::<Fence>(fence)?.0.reset();
        Ok(())
    }
}
