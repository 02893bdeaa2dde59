//! Tracks open devices and wraps the Vulkan calls that can fail.

use crate::chain::key;
use crate::control::{Call, next_number, with};
use ash::vk::{self, Handle};
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_void};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

/// Suffix in the extension names of functions that later became part of Vulkan 1.1, 1.2 or 1.3.
const EXTENSION: &str = "KHR";

/// Open device.
pub struct Device {
    /// Functions of the next layer.
    pub next: ash::Device,
    pub get_proc_addr: vk::PFN_vkGetDeviceProcAddr,
    number: u32,
    /// Lock that is held while a queue is in use, and while the layer waits for all queues.
    queues: Mutex<()>,
}

fn devices() -> MutexGuard<'static, HashMap<usize, Arc<Device>>> {
    static DEVICES: LazyLock<Mutex<HashMap<usize, Arc<Device>>>> = LazyLock::new(Mutex::default);
    DEVICES.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Device {
    /// Registers a device that was just opened.
    ///
    /// # Safety
    /// The handle and the function must come from the next layer.
    pub unsafe fn keep(raw: vk::Device, get_proc_addr: vk::PFN_vkGetDeviceProcAddr) {
        let load = |name: &CStr| -> *const c_void {
            let extension =
                CString::new([name.to_bytes(), EXTENSION.as_bytes()].concat()).unwrap_or_default();
            // SAFETY: the device is alive; functions are pointers.
            let find = |name: &CStr| unsafe { get_proc_addr(raw, name.as_ptr()) };
            find(name).or_else(|| find(&extension)).map_or(std::ptr::null(), |found| found as *const c_void)
        };
        // SAFETY: the functions are those of the device.
        let (next, key) = unsafe { (ash::Device::load_with(load, raw), key(raw)) };
        let device = Self { next, get_proc_addr, number: next_number(), queues: Mutex::default() };
        devices().insert(key, Arc::new(device));
    }

    /// Returns the device to which `handle` belongs. `handle` may denote the device itself or one of its
    /// queues.
    ///
    /// # Safety
    /// The handle must come from the loader.
    pub unsafe fn of(handle: impl Handle) -> Option<Arc<Self>> {
        // SAFETY: the caller guarantees the handle.
        let key = unsafe { key(handle) };
        devices().get(&key).map(Arc::clone)
    }

    /// Removes a device from the list of open devices when the program closes it.
    ///
    /// # Safety
    /// As for [`of`](Self::of).
    pub unsafe fn forget(raw: vk::Device) -> Option<Arc<Self>> {
        // SAFETY: the caller guarantees the handle.
        let device = devices().remove(&unsafe { key(raw) })?;
        with(device.number, |record| record.close());
        Some(device)
    }

    fn is_lost(&self) -> bool {
        with(self.number, |record| record.is_lost())
    }

    /// Counts a call and returns whether it loses the device.
    fn fails(&self, call: Call) -> bool {
        with(self.number, |record| record.loses(call))
    }

    fn queues(&self) -> MutexGuard<'_, ()> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Loses the device after all its submitted work has ended. Other threads that wait for this work keep
    /// waiting. Their next call that can report a lost device returns the loss.
    fn lose(&self, _queues: &MutexGuard<'_, ()>) -> vk::Result {
        // SAFETY: the device is alive, and the guard excludes other uses of its queues.
        let idle = unsafe { self.next.device_wait_idle() };
        with(self.number, |record| record.lose());
        idle.err().unwrap_or(vk::Result::ERROR_DEVICE_LOST)
    }

    /// Forwards a call that submits work to a queue.
    pub fn submit(&self, call: impl FnOnce(&ash::Device) -> vk::Result) -> vk::Result {
        let queues = self.queues();
        if self.fails(Call::Submit) { self.lose(&queues) } else { self.ask(call) }
    }

    /// Forwards a call that waits for work without a queue as its argument.
    pub fn wait(&self, call: impl FnOnce(&ash::Device) -> vk::Result) -> vk::Result {
        if self.fails(Call::Wait) { self.lose(&self.queues()) } else { self.ask(call) }
    }

    /// Forwards a call that waits for queues to become idle.
    pub fn drain(&self, call: impl FnOnce(&ash::Device) -> vk::Result) -> vk::Result {
        let _queues = self.queues();
        self.ask(call)
    }

    /// Forwards a call. If the device is lost, returns `ERROR_DEVICE_LOST` instead.
    pub fn ask(&self, call: impl FnOnce(&ash::Device) -> vk::Result) -> vk::Result {
        if self.is_lost() { vk::Result::ERROR_DEVICE_LOST } else { call(&self.next) }
    }

    /// Forwards a call that allocates `bytes` bytes, and returns the handle of the allocation.
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

    /// Forwards a call that allocates an unknown amount of memory. Fails if the memory limit is zero.
    pub fn take(&self, call: impl FnOnce(&ash::Device) -> vk::Result) -> vk::Result {
        match with(self.number, |record| record.has_none()) {
            true => vk::Result::ERROR_OUT_OF_DEVICE_MEMORY,
            false => call(&self.next),
        }
    }

    /// Removes an allocation from the record of the device.
    pub fn free(&self, memory: vk::DeviceMemory) {
        with(self.number, |record| record.give_back(memory.as_raw()));
    }
}
