//! Faults that tests request, through environment variables or exported functions, and reports of misuse.
//!
//! The exported functions have the names and the types of those of the layer over Vulkan's drivers. A device
//! number is an index into the driver's list of devices. A lost device works again after its last queue was
//! destroyed.

use crate::calls::counted;
use crate::device::{Device, devices};
use crate::queue::changed;
use std::env;
use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Kind of call at which a device is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Submission of work: an execution of lists, or an append to an immediate list.
    Submit,
    /// Execution of submitted work, which the host learns from its waits.
    Wait,
}

/// Settings and state of a device.
#[derive(Debug, Default)]
pub struct Record {
    /// Kind of call that loses the device, and the number of such calls that succeed before the loss.
    lost_after: Option<(Call, u64)>,
    /// Limit for the total size of all allocations, in bytes.
    limit_bytes: Option<u64>,
    /// Number of allocations that succeed before one fails.
    allocations: Option<u64>,
}

/// Returns the number in an environment variable.
pub fn setting(name: &str) -> Option<u64> {
    env::var(name).ok()?.parse().ok()
}

impl Record {
    /// Returns the settings that the environment has for all devices.
    pub fn new() -> Self {
        Self {
            lost_after: setting("RAGTAG_FAKE_LOST_AFTER").map(|passes| (Call::Submit, passes)),
            limit_bytes: setting("RAGTAG_FAKE_LIMIT_BYTES"),
            allocations: setting("RAGTAG_FAKE_ALLOCATIONS"),
        }
    }

    /// Counts a call and returns whether it loses the device. One setting loses the device once.
    pub fn loses(&mut self, call: Call) -> bool {
        match &mut self.lost_after {
            Some((at, 0)) if *at == call => {
                self.lost_after = None;
                true
            }
            Some((at, left)) if *at == call => {
                *left -= 1;
                false
            }
            _ => false,
        }
    }

    /// Returns whether work may lose the device.
    pub fn may_lose(&self) -> bool {
        self.lost_after.is_some()
    }

    /// Counts an allocation and returns whether it is within the limits.
    pub fn allows(&mut self, held_bytes: u64, bytes: u64) -> bool {
        match &mut self.allocations {
            Some(0) => return false,
            Some(left) => *left -= 1,
            None => {}
        }
        self.limit_bytes.is_none_or(|limit| held_bytes.saturating_add(bytes) <= limit)
    }
}

/// Returns the time by which each copy is delayed.
pub fn copy_delay() -> Option<Duration> {
    static DELAY: OnceLock<Option<Duration>> = OnceLock::new();
    *DELAY.get_or_init(|| setting("RAGTAG_FAKE_COPY_DELAY_US").map(Duration::from_micros))
}

static MISUSES: AtomicU64 = AtomicU64::new(0);

/// Reports a call that a real driver may answer with a crash. Returns `code`.
#[allow(clippy::print_stderr)] // the cause of a test's failure
pub fn misuse(code: u32, what: &str) -> u32 {
    MISUSES.fetch_add(1, Ordering::Relaxed);
    eprintln!("level-zero-on-opencl: misuse: {what}");
    code
}

fn device(number: u32) -> Option<Arc<Device>> {
    devices().ok()?.get(number as usize).cloned()
}

/// Returns the number of calls that a real driver may answer with a crash.
// SAFETY: no other library of a test exports the name.
#[unsafe(no_mangle)]
pub extern "C" fn faults_misuses() -> u64 {
    MISUSES.load(Ordering::Relaxed)
}

/// Returns the number of calls of a function of Level Zero so far.
///
/// # Safety
/// `name` must be a zero-terminated string.
// SAFETY: no other library of a test exports the name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn faults_calls(name: *const c_char) -> u64 {
    // SAFETY: the caller guarantees the string.
    unsafe { CStr::from_ptr(name) }.to_str().map_or(0, counted)
}

/// Returns the number of the first device. Unlike in Vulkan, a loss concerns the device and all its users.
// SAFETY: as for `faults_misuses`.
#[unsafe(no_mangle)]
pub extern "C" fn faults_opened() -> u32 {
    0
}

/// Makes a device fail at a call of kind `call`, after `passes` calls of this kind have succeeded. `call` is 0
/// for submissions. If it is 1, submissions succeed, and the device is lost when it starts to execute one.
// SAFETY: as for `faults_misuses`.
#[unsafe(no_mangle)]
pub extern "C" fn faults_lose(number: u32, call: u32, passes: u64) {
    let call = if call == 0 { Call::Submit } else { Call::Wait };
    if let Some(device) = device(number) {
        device.record().lost_after = Some((call, passes));
    }
    changed();
}

/// Limits the total size of a device's allocations to `bytes`.
// SAFETY: as for `faults_misuses`.
#[unsafe(no_mangle)]
pub extern "C" fn faults_limit(number: u32, bytes: u64) {
    if let Some(device) = device(number) {
        device.record().limit_bytes = Some(bytes);
    }
}

/// Returns the number of bytes that are allocated on a device.
// SAFETY: as for `faults_misuses`.
#[unsafe(no_mangle)]
pub extern "C" fn faults_held(number: u32) -> u64 {
    device(number).map_or(0, |device| device.held_bytes())
}

/// Returns whether a device has queues or immediate lists.
// SAFETY: as for `faults_misuses`.
#[unsafe(no_mangle)]
pub extern "C" fn faults_is_open(number: u32) -> bool {
    device(number).is_some_and(|device| device.is_open())
}
