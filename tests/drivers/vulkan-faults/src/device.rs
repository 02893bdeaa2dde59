//! A device as the layer sees it: the calls that it may fail at.

use crate::chain::key;
use crate::control::{Call, next_number, with};
use ash::vk::{self, Handle};
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_void};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

/// What takes part in Vulkan 1.1 to 1.3 may be an extension of something older, under this name.
const EXTENSION: &str = "KHR";

/// An open device.
pub struct Device {
    /// The functions of what is underneath.
    pub next: ash::Device,
    pub get_proc_addr: vk::PFN_vkGetDeviceProcAddr,
    number: u32,
    /// Whoever uses a queue holds it, so that nobody does while all of them are waited for.
    queues: Mutex<()>,
}

fn devices() -> MutexGuard<'static, HashMap<usize, Arc<Device>>> {
    static DEVICES: LazyLock<Mutex<HashMap<usize, Arc<Device>>>> = LazyLock::new(Mutex::default);
    DEVICES.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Device {
    /// Keeps a device that was just opened.
    ///
    /// # Safety
    /// The handle is what the next layer gave, and the function is that layer's.
    pub unsafe fn keep(raw: vk::Device, get_proc_addr: vk::PFN_vkGetDeviceProcAddr) {
        let load = |name: &CStr| -> *const c_void {
            let extension =
                CString::new([name.to_bytes(), EXTENSION.as_bytes()].concat()).unwrap_or_default();
            // SAFETY: the device lives; functions are pointers.
            let find = |name: &CStr| unsafe { get_proc_addr(raw, name.as_ptr()) };
            find(name).or_else(|| find(&extension)).map_or(std::ptr::null(), |found| found as *const c_void)
        };
        // SAFETY: the functions are those of the device.
        let (next, key) = unsafe { (ash::Device::load_with(load, raw), key(raw)) };
        let device = Self { next, get_proc_addr, number: next_number(), queues: Mutex::default() };
        devices().insert(key, Arc::new(device));
    }

    /// The device of a handle: its own, or that of a queue.
    ///
    /// # Safety
    /// The handle is one that the loader gave.
    pub unsafe fn of(handle: impl Handle) -> Option<Arc<Self>> {
        // SAFETY: by the caller's promise.
        let key = unsafe { key(handle) };
        devices().get(&key).map(Arc::clone)
    }

    /// Forgets a device that is being closed.
    ///
    /// # Safety
    /// As for [`of`](Self::of).
    pub unsafe fn forget(raw: vk::Device) -> Option<Arc<Self>> {
        // SAFETY: by the caller's promise.
        let device = devices().remove(&unsafe { key(raw) })?;
        with(device.number, |record| record.close());
        Some(device)
    }

    fn is_lost(&self) -> bool {
        with(self.number, |record| record.is_lost())
    }

    /// Whether the device is lost at this call.
    fn fails(&self, call: Call) -> bool {
        with(self.number, |record| record.loses(call))
    }

    fn queues(&self) -> MutexGuard<'_, ()> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Loses the device. All that it was given ends before; others wait for that meanwhile as ever, and tell it if it is for
    /// them to do so.
    fn lose(&self, _queues: &MutexGuard<'_, ()>) -> vk::Result {
        // SAFETY: the device lives, and nobody uses its queues.
        let idle = unsafe { self.next.device_wait_idle() };
        with(self.number, |record| record.lose());
        idle.err().unwrap_or(vk::Result::ERROR_DEVICE_LOST)
    }

    /// A call that gives work to a queue.
    pub fn submit(&self, call: impl FnOnce(&ash::Device) -> vk::Result) -> vk::Result {
        let queues = self.queues();
        if self.fails(Call::Submit) { self.lose(&queues) } else { self.ask(call) }
    }

    /// A call that waits for work without a queue's name.
    pub fn wait(&self, call: impl FnOnce(&ash::Device) -> vk::Result) -> vk::Result {
        if self.fails(Call::Wait) { self.lose(&self.queues()) } else { self.ask(call) }
    }

    /// A call that waits for queues.
    pub fn drain(&self, call: impl FnOnce(&ash::Device) -> vk::Result) -> vk::Result {
        let _queues = self.queues();
        self.ask(call)
    }

    /// A call that a lost device does not answer.
    pub fn ask(&self, call: impl FnOnce(&ash::Device) -> vk::Result) -> vk::Result {
        if self.is_lost() { vk::Result::ERROR_DEVICE_LOST } else { call(&self.next) }
    }

    /// An allocation of so many bytes, of which the call tells the handle.
    pub fn allocate(
        &self,
        bytes: u64,
        call: impl FnOnce(&ash::Device) -> Result<vk::DeviceMemory, vk::Result>,
    ) -> vk::Result {
        if !with(self.number, |record| record.has_room(bytes)) {
            return vk::Result::ERROR_OUT_OF_DEVICE_MEMORY;
        }
        match call(&self.next) {
            Ok(memory) => {
                with(self.number, |record| record.hold(memory.as_raw(), bytes));
                vk::Result::SUCCESS
            }
            Err(code) => code,
        }
    }

    /// A call that takes memory of which nobody says how much.
    pub fn take(&self, call: impl FnOnce(&ash::Device) -> vk::Result) -> vk::Result {
        match with(self.number, |record| record.has_none()) {
            true => vk::Result::ERROR_OUT_OF_DEVICE_MEMORY,
            false => call(&self.next),
        }
    }

    /// Notes that an allocation goes.
    pub fn free(&self, memory: vk::DeviceMemory) {
        with(self.number, |record| record.give_back(memory.as_raw()));
    }
}
