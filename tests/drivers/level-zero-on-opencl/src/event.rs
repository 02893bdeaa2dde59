//! Events and their pools. The host and all engines wait for events through [`wait_until`].

use crate::calls::{entries, lock};
use crate::device::{Context, Device, kernel_ticks};
use crate::faults::misuse;
use crate::handles::{described, find, find_all, give, put, take};
use crate::queue::{changed, wait_until};
use crate::types::code::{DEVICE_LOST, HANDLE_OBJECT_IN_USE, INVALID_ARGUMENT, NOT_READY};
use crate::types::*;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

/// Flags of a pool.
const HOST_VISIBLE: u32 = 1;
const TIMESTAMPS: u32 = 4;

const UNSIGNALLED: u8 = 0;
const SIGNALLED: u8 = 1;
/// The device that would have signalled the event was lost.
const LOST: u8 = 2;

/// Pool of events.
pub struct Pool {
    flags: u32,
    count: u32,
    /// Indices of the live events.
    used: Mutex<Vec<u32>>,
}

/// An event. Fences are events, too.
pub struct Event {
    state: AtomicU8,
    /// Start and end of the command that signalled the event, in ticks.
    stamps: Mutex<[u64; 2]>,
    /// Number of submitted commands that have not ended and use the event.
    users: AtomicU32,
    flags: u32,
    pool: Option<(Arc<Pool>, u32)>,
}

impl Event {
    /// Creates a fence.
    pub fn fence(signalled: bool) -> Self {
        let fence = Self::new(HOST_VISIBLE, None);
        if signalled {
            fence.set(SIGNALLED);
        }
        fence
    }

    fn new(flags: u32, pool: Option<(Arc<Pool>, u32)>) -> Self {
        Self {
            state: AtomicU8::new(UNSIGNALLED),
            stamps: Mutex::default(),
            users: AtomicU32::new(0),
            flags,
            pool,
        }
    }

    /// Counts a submitted command that uses the event.
    pub fn retain(&self) {
        self.users.fetch_add(1, Ordering::SeqCst);
    }

    /// Counts the end of a command that used the event.
    pub fn release(&self) {
        self.users.fetch_sub(1, Ordering::SeqCst);
    }

    pub fn is_signalled(&self) -> bool {
        self.state.load(Ordering::SeqCst) == SIGNALLED
    }

    fn set(&self, state: u8) {
        self.state.store(state, Ordering::SeqCst);
        changed();
    }

    /// Signals the event for a command that ran between two ticks.
    pub fn signal(&self, stamps: [u64; 2]) {
        *lock(&self.stamps) = stamps;
        self.set(SIGNALLED);
    }

    pub fn reset(&self) {
        self.set(UNSIGNALLED);
    }

    /// Records that the device of the event was lost, unless the event was signalled before.
    pub fn lose(&self) {
        let _ = self.state.compare_exchange(UNSIGNALLED, LOST, Ordering::SeqCst, Ordering::SeqCst);
        changed();
    }

    pub fn status(&self) -> Result<()> {
        match self.state.load(Ordering::SeqCst) {
            SIGNALLED => Ok(()),
            LOST => Err(DEVICE_LOST),
            _ => Err(NOT_READY),
        }
    }

    /// Blocks until the event was signalled, for at most `timeout_ns`.
    pub fn wait(&self, timeout_ns: u64) -> Result<()> {
        wait_until(timeout_ns, || self.status() != Err(NOT_READY));
        self.status()
    }

    /// Checks that the host may use the event.
    fn for_host(&self) -> Result<()> {
        if self.flags & HOST_VISIBLE != 0 {
            return Ok(());
        }
        Err(misuse(INVALID_ARGUMENT, "the host used an event that it cannot see"))
    }
}

entries! {
    fn zeEventPoolCreate(
        context: Handle,
        desc: *const PoolDesc,
        count: u32,
        devices: *const Handle,
        to: *mut Handle,
    ) {
        find::<Context>(context)?;
        find_all::<Device>(count, devices)?;
        let PoolDesc { flags, count, .. } = described(desc)?;
        if count == 0 {
            return Err(code::INVALID_SIZE);
        }
        put(to, give(Pool { flags, count, used: Mutex::default() }))
    }
    fn zeEventPoolDestroy(pool: Handle) {
        let pool = take::<Pool>(pool)?;
        if lock(&pool.used).is_empty() {
            Ok(())
        } else {
            Err(misuse(HANDLE_OBJECT_IN_USE, "a pool was destroyed before its events"))
        }
    }
    fn zeEventCreate(pool: Handle, desc: *const EventDesc, to: *mut Handle) {
        let (pool, index) = (find::<Pool>(pool)?, described(desc)?.index);
        if index >= pool.count {
            return Err(INVALID_ARGUMENT);
        }
        let mut used = lock(&pool.used);
        if used.contains(&index) {
            return Err(misuse(INVALID_ARGUMENT, "two events have one place in their pool"));
        }
        used.push(index);
        drop(used);
        put(to, give(Event::new(pool.flags, Some((pool, index)))))
    }
    fn zeEventDestroy(event: Handle) {
        let event = take::<Event>(event)?;
        // An engine may drop its reference to the event later.
        if let Some((pool, index)) = &event.pool {
            lock(&pool.used).retain(|one| one != index);
        }
        if event.users.load(Ordering::SeqCst) == 0 {
            Ok(())
        } else {
            Err(misuse(HANDLE_OBJECT_IN_USE, "an event was destroyed while a command used it"))
        }
    }
    fn zeEventHostSignal(event: Handle) {
        let event = find::<Event>(event)?;
        event.for_host()?;
        event.signal([0, 0]);
        Ok(())
    }
    fn zeEventHostReset(event: Handle) {
        let event = find::<Event>(event)?;
        event.for_host()?;
        event.reset();
        Ok(())
    }
    fn zeEventHostSynchronize(event: Handle, timeout_ns: u64) {
        let event = find::<Event>(event)?;
        event.for_host()?;
        event.wait(timeout_ns)
    }
    fn zeEventQueryStatus(event: Handle) {
        let event = find::<Event>(event)?;
        event.for_host()?;
        event.status()
    }
    fn zeEventQueryKernelTimestamp(event: Handle, to: *mut Stamps) {
        let event = find::<Event>(event)?;
        event.for_host()?;
        if event.flags & TIMESTAMPS == 0 {
            return Err(misuse(INVALID_ARGUMENT, "the event's pool has no timestamps"));
        }
        event.status()?;
        let stamps = lock(&event.stamps).map(kernel_ticks);
        put(to, Stamps { global: stamps, context: stamps })
    }
}
