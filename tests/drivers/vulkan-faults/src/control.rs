//! What tests tell the layer, and what it tells them. Settings may come before their device is opened.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Most bytes that the allocations of each device may take, in processes that no test tells.
const LIMIT: &str = "RAGTAG_VULKAN_FAULTS_LIMIT_BYTES";
/// Set in processes in which no device opens, for want of memory.
const CLOSED: &str = "RAGTAG_VULKAN_FAULTS_CLOSED";

/// What a device fails at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// `vkQueueSubmit` and its like.
    Submit,
    /// `vkWaitSemaphores` and its like.
    Wait,
}

impl Call {
    /// A call by its number in [`faults_lose`].
    fn numbered(number: u32) -> Option<Self> {
        [Self::Submit, Self::Wait].into_iter().find(|call| *call as u32 == number)
    }
}

/// The settings and the state of a device.
#[derive(Debug, Default)]
pub struct Record {
    /// How many calls of which kind are still answered.
    lost_after: Option<(Call, u64)>,
    lost: bool,
    /// Most bytes that its allocations may take together.
    limit_bytes: Option<u64>,
    /// The allocations by their handles, in bytes.
    allocations: HashMap<u64, u64>,
    open: bool,
}

impl Record {
    /// Whether the device is to be lost at this call, which it is once.
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

    /// Whether there is room for so many bytes.
    pub fn has_room(&self, bytes: u64) -> bool {
        self.limit_bytes.is_none_or(|limit| self.held_bytes().saturating_add(bytes) <= limit)
    }

    /// Whether it may hold nothing at all.
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

/// Whether no device opens.
pub fn all_are_closed() -> bool {
    std::env::var_os(CLOSED).is_some()
}

/// The number of a device that was just opened.
pub fn next_number() -> u32 {
    let mut records = records();
    let number = records.opened;
    records.opened += 1;
    let record = records.records.entry(number).or_default();
    record.open = true;
    let of_all = || std::env::var(LIMIT).ok()?.parse().ok();
    record.limit_bytes = record.limit_bytes.or_else(of_all);
    number
}

/// Looks at a device's record, or changes it.
pub fn with<T>(device: u32, look: impl FnOnce(&mut Record) -> T) -> T {
    look(records().records.entry(device).or_default())
}

/// How many devices this process has opened so far, which is the number of the next.
// SAFETY: no other library exports the name.
#[unsafe(no_mangle)]
pub extern "C" fn faults_opened() -> u32 {
    records().opened
}

/// Loses a device at a call (0: a submission, 1: waiting) after so many more that go well.
// SAFETY: no other library exports the name.
#[unsafe(no_mangle)]
pub extern "C" fn faults_lose(device: u32, call: u32, passes: u64) {
    with(device, |record| record.lost_after = Call::numbered(call).map(|call| (call, passes)));
}

/// Refuses allocations with which a device's would take more than so many bytes together. With 0 there is no memory for commands
/// and pipelines either.
// SAFETY: no other library exports the name.
#[unsafe(no_mangle)]
pub extern "C" fn faults_limit(device: u32, bytes: u64) {
    with(device, |record| record.limit_bytes = Some(bytes));
}

/// Bytes that a device's allocations take, also if it is closed: then they were left behind.
// SAFETY: no other library exports the name.
#[unsafe(no_mangle)]
pub extern "C" fn faults_held(device: u32) -> u64 {
    with(device, |record| record.held_bytes())
}

/// Whether a device was opened and is not closed yet.
// SAFETY: no other library exports the name.
#[unsafe(no_mangle)]
pub extern "C" fn faults_is_open(device: u32) -> bool {
    with(device, |record| record.open)
}
