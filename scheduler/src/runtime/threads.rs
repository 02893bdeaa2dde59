//! The threads of a pipeline: how they start, and how long a pipeline that stops waits for them.

use crate::error::{Error, Result};
use crate::watch::{STOP_LIMIT, Watch};
use ragtag_hal::queues::Thread;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longest wait for a device that does not hang. Freeing all its memory takes less time.
const LONGEST_END: Duration = Duration::from_secs(60);

/// Interval at which a pipeline that stops checks whether a device hangs.
const PERIOD: Duration = Duration::from_millis(20);

/// The thread that owns the device with this label.
pub(super) struct DeviceThread(String, Thread);

impl DeviceThread {
    pub(super) fn spawn(label: String, body: impl FnOnce() + Send + 'static) -> Result<Self> {
        let thread = Thread::spawn(format!("ragtag {label}"), body);
        Ok(Self(label, thread.map_err(|e| Error::spec(e.to_string()))?))
    }

    /// Waits until the thread ends. A panic has been reported to the coordinator.
    pub(super) fn end(self) {
        self.1.end();
    }
}

/// Starts the coordinator's thread.
pub(super) fn spawn<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> Result<JoinHandle<T>> {
    let spawned = std::thread::Builder::new().name("ragtag coordinator".into()).spawn(body);
    spawned.map_err(|e| Error::spec(format!("cannot start a thread: {e}")))
}

/// Waits until the threads of all devices have ended, and returns the labels of devices that hang. `watch` knows the
/// devices in this order. The thread of a device that hangs still owns all that the device may use, and frees it when
/// the device has finished its work.
pub(super) fn end(threads: Vec<DeviceThread>, mut watch: Option<Watch>) -> Vec<String> {
    let start = Instant::now();
    let mut left = Vec::new();
    for (index, DeviceThread(label, thread)) in threads.into_iter().enumerate() {
        while !thread.ends_before(Instant::now() + PERIOD) {
            let now = Instant::now();
            let hangs = watch.as_mut().is_some_and(|watch| watch.hangs(index, now));
            let limit = if hangs { STOP_LIMIT } else { LONGEST_END };
            if now - start >= limit {
                tracing::warn!(
                    device = label,
                    "leaving a device behind, because it does not finish its work"
                );
                left.push(label);
                break;
            }
        }
    }
    left
}
