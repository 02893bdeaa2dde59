//! NVML, NVIDIA's management library, which belongs to the driver.
//!
//! The declarations follow `nvml.h` and are the same in all versions since CUDA 8.

use libloading::Library;
use ragtag_hal::{Condition, PciAddress, ThrottleReason};
use std::ffi::{CString, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::ptr::null_mut;

/// File name of the library.
pub(super) const LIBRARY: &str = if cfg!(windows) { "nvml.dll" } else { "libnvidia-ml.so.1" };

/// `nvmlDevice_t`
type Device = *mut c_void;
/// Signature of the functions that report one number of a device.
type Number<T> = unsafe extern "C" fn(Device, *mut T) -> c_int;
/// Signature of the functions that report one number of a part of a device.
type NumberOfPart = unsafe extern "C" fn(Device, c_uint, *mut c_uint) -> c_int;

/// `NVML_TEMPERATURE_GPU`
const GPU_SENSOR: c_uint = 0;
/// `NVML_CLOCK_SM`
const SM_CLOCK: c_uint = 1;
/// `NVML_CLOCK_MEM`
const MEMORY_CLOCK: c_uint = 2;

/// Bits of `nvmlClocksThrottleReasons`. An idle GPU, and clocks that follow those of another GPU, are no limits.
const REASONS: [(c_ulonglong, ThrottleReason); 5] = [
    (0x2 | 0x100, ThrottleReason::Settings),
    (0x4, ThrottleReason::Power),
    (0x20 | 0x40, ThrottleReason::Temperature),
    (0x80, ThrottleReason::PowerSupply),
    (HARDWARE_SLOWDOWN, ThrottleReason::Hardware),
];
/// Any slow-down by the hardware. Other bits usually name its reason.
const HARDWARE_SLOWDOWN: c_ulonglong = 0x8;
/// Bits that name the reason of a slow-down by the hardware.
const NAMED_SLOWDOWNS: c_ulonglong = 0x40 | 0x80;

/// The loaded and initialised library. It is never unloaded, because its exit handlers may outlive its last use.
pub(super) struct Nvml(&'static Library);

impl Nvml {
    /// Loads and initialises the library. Returns `None` if it is missing or finds no driver.
    pub(super) fn load(name: &str) -> Option<Self> {
        // SAFETY: this is the driver's library. Loading it runs only its own initialisers.
        let library = unsafe { Library::new(name) }.ok()?;
        let nvml = Self(Box::leak(Box::new(library)));
        let init: unsafe extern "C" fn() -> c_int = nvml.function("nvmlInit_v2")?;
        // SAFETY: the call has no arguments.
        let code = unsafe { init() };
        if code != 0 {
            tracing::debug!(code, "NVML does not start");
        }
        (code == 0).then_some(nvml)
    }

    /// Returns the condition of the GPU at `address`. Fields that the library does not report are unknown.
    pub(super) fn condition(&self, address: PciAddress) -> Condition {
        let Some(device) = self.device(address) else { return Condition::default() };
        let number = |name| self.number::<c_uint>(device, name);
        let reasons = self.number(device, "nvmlDeviceGetCurrentClocksThrottleReasons").unwrap_or(0);
        Condition {
            celsius: self.part(device, "nvmlDeviceGetTemperature", GPU_SENSOR).map(|celsius| celsius as i32),
            power_mw: number("nvmlDeviceGetPowerUsage").map(u64::from),
            power_limit_mw: number("nvmlDeviceGetEnforcedPowerLimit").map(u64::from),
            compute_mhz: self.part(device, "nvmlDeviceGetClockInfo", SM_CLOCK),
            memory_mhz: self.part(device, "nvmlDeviceGetClockInfo", MEMORY_CLOCK),
            throttled_by: throttled_by(reasons).collect(),
            ..Condition::default()
        }
    }

    fn device(&self, address: PciAddress) -> Option<Device> {
        type Find = unsafe extern "C" fn(*const c_char, *mut Device) -> c_int;
        let find: Find = self.function("nvmlDeviceGetHandleByPciBusId_v2")?;
        let PciAddress { domain, bus, device, function } = address;
        let text = CString::new(format!("{domain:08x}:{bus:02x}:{device:02x}.{function}")).ok()?;
        let mut found = null_mut();
        // SAFETY: the text ends with a zero byte. The call writes one handle.
        let code = unsafe { find(text.as_ptr(), &raw mut found) };
        (code == 0).then_some(found)
    }

    fn number<T: Copy + Default>(&self, device: Device, name: &str) -> Option<T> {
        let read: Number<T> = self.function(name)?;
        let mut value = T::default();
        // SAFETY: the library made the handle. The call writes one number.
        let code = unsafe { read(device, &raw mut value) };
        (code == 0).then_some(value)
    }

    fn part(&self, device: Device, name: &str, part: c_uint) -> Option<u32> {
        let read: NumberOfPart = self.function(name)?;
        let mut value = 0;
        // SAFETY: the library made the handle. The call writes one number.
        let code = unsafe { read(device, part, &raw mut value) };
        (code == 0).then_some(value)
    }

    /// Returns a function of the library. `T` is its type in the header.
    fn function<T: Copy>(&self, name: &str) -> Option<T> {
        // SAFETY: all types in this file match the header. The library is never unloaded.
        unsafe { self.0.get::<T>(name.as_bytes()) }.ok().map(|function| *function)
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        let end: Option<unsafe extern "C" fn() -> c_int> = self.function("nvmlShutdown");
        if let Some(end) = end {
            // SAFETY: `load` has initialised the library, and no handle is used any more.
            unsafe { end() };
        }
    }
}

/// Returns the reasons that the bits of `nvmlClocksThrottleReasons` name.
fn throttled_by(bits: c_ulonglong) -> impl Iterator<Item = ThrottleReason> {
    let explained = if bits & NAMED_SLOWDOWNS != 0 { bits & !HARDWARE_SLOWDOWN } else { bits };
    REASONS.into_iter().filter(move |(reason, _)| explained & reason != 0).map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_name_the_reasons() {
        let reasons = |bits| throttled_by(bits).collect::<Vec<_>>();
        assert_eq!(reasons(0x1 | 0x10), [], "an idle GPU");
        assert_eq!(reasons(0x4), [ThrottleReason::Power]);
        assert_eq!(reasons(0x8), [ThrottleReason::Hardware]);
        assert_eq!(reasons(0x8 | 0x80), [ThrottleReason::PowerSupply]);
        assert_eq!(reasons(0x2 | 0x20), [ThrottleReason::Settings, ThrottleReason::Temperature]);
    }
}
