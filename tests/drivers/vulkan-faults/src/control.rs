//! Defines the interface through which a test controls the layer. Tests may change settings before they open
//! the device.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Environment variable that limits the total size of each device's allocations, in bytes. Use it for
/// processes in which no test controls the layer.
const LIMIT: &str = "RAGTAG_VULKAN_FAULTS_LIMIT_BYTES";
/// Environment variable. If it is set, every device fails to open with an out-of-memory error.
const CLOSED: &str = "RAGTAG_VULKAN_FAULTS_CLOSED";
/// Environment variable. If it is set, every device says that it is a GPU.
const GPUS: &str = "RAGTAG_VULKAN_FAULTS_GPUS";

/// Kind of Vulkan call at which a device is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// `vkQueueSubmit` and its variants.
    Submit,
    /// `vkWaitSemaphores` and its variants.
    Wait,
}

impl Call {
    /// Returns the kind of call that `number` denotes in [`faults_lose`].
    fn numbered(number: u32) -> Option<Self> {
        [Self::Submit, Self::Wait].into_iter().find(|call| *call as u32 == number)
    }
}

/// Settings and state of a device.
#[derive(Debug, Default)]
pub struct Record {
    /// Kind of call that loses the device, and the number of such calls that succeed before the loss.
    lost_after: Option<(Call, u64)>,
    lost: bool,
    /// Limit for the total size of all allocations, in bytes.
    limit_bytes: Option<u64>,
    /// Size of each allocation in bytes, by handle.
    allocations: HashMap<u64, u64>,
    open: bool,
}

impl Record {
    /// Counts a call and returns whether it loses the device. After one call to `faults_lose`, returns true
    /// at most once.
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

    pub fn lose(&mut self) {
        self.lost = true;
    }

    pub fn is_lost(&self) -> bool {
        self.lost
    }

    /// Returns whether another `bytes` bytes fit within the limit.
    pub fn has_room(&self, bytes: u64) -> bool {
        self.limit_bytes.is_none_or(|limit| self.held_bytes().saturating_add(bytes) <= limit)
    }

    /// Returns whether the limit is zero.
    pub fn has_none(&self) -> bool {
        self.limit_bytes == Some(0)
    }

    pub fn hold(&mut self, memory: u64, bytes: u64) {
        self.allocations.insert(memory, bytes);
    }

    pub fn give_back(&mut self, memory: u64) {
        self.allocations.remove(&memory);
    }

    pub fn close(&mut self) {
        self.open = false;
    }

    fn held_bytes(&self) -> u64 {
        self.allocations.values().sum()
    }
}

#[derive(Default)]
struct Records {
    opened: u32,
    records: BTreeMap<u32, Record>,
}

fn records() -> MutexGuard<'static, Records> {
    static RECORDS: Mutex<Records> = Mutex::new(Records { opened: 0, records: BTreeMap::new() });
    RECORDS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns whether all devices fail to open.
pub fn all_are_closed() -> bool {
    std::env::var_os(CLOSED).is_some()
}

/// Returns whether all devices say that they are GPUs.
pub fn are_gpus() -> bool {
    std::env::var_os(GPUS).is_some()
}

/// Reserves and returns the number of a device that was just opened.
pub fn next_number() -> u32 {
    let mut records = records();
    let number = records.opened;
    records.opened += 1;
    let record = records.records.entry(number).or_default();
    record.open = true;
    let default = || std::env::var(LIMIT).ok()?.parse().ok();
    record.limit_bytes = record.limit_bytes.or_else(default);
    number
}

/// Passes the record of a device to `look`, and returns the result of `look`.
pub fn with<T>(device: u32, look: impl FnOnce(&mut Record) -> T) -> T {
    look(records().records.entry(device).or_default())
}

/// Returns the number of devices that this process has opened so far, which is also the number of the next
/// device.
// SAFETY: no other library exports the name.
#[unsafe(no_mangle)]
pub extern "C" fn faults_opened() -> u32 {
    records().opened
}

/// Makes the layer lose a device at a call of kind `call`, after `passes` calls of this kind have succeeded.
/// `call` is 0 for submissions and 1 for waits.
// SAFETY: no other library exports the name.
#[unsafe(no_mangle)]
pub extern "C" fn faults_lose(device: u32, call: u32, passes: u64) {
    with(device, |record| record.lost_after = Call::numbered(call).map(|call| (call, passes)));
}

/// Limits the total size of a device's allocations to `bytes`. If `bytes` is 0, command buffers and pipelines
/// get no memory either.
// SAFETY: no other library exports the name.
#[unsafe(no_mangle)]
pub extern "C" fn faults_limit(device: u32, bytes: u64) {
    with(device, |record| record.limit_bytes = Some(bytes));
}

/// Returns the number of bytes that are allocated on a device. If the device is closed, these bytes were
/// leaked.
// SAFETY: no other library exports the name.
#[unsafe(no_mangle)]
pub extern "C" fn faults_held(device: u32) -> u64 {
    with(device, |record| record.held_bytes())
}

/// Returns whether a device is open.
// SAFETY: no other library exports the name.
#[unsafe(no_mangle)]
pub extern "C" fn faults_is_open(device: u32) -> bool {
    with(device, |record| record.open)
}
