//! Sensors of GPUs: temperature, power, clocks, and the reasons for limited clocks.
//!
//! NVIDIA's management library and the system's hardware monitors know a GPU by its PCI address, so they report on
//! it whatever API shows the GPU.

mod hwmon;
mod nvml;

use nvml::Nvml;
use ragtag_hal::{Condition, PciAddress};
use std::path::PathBuf;

/// Folder with a subfolder for each PCI device of a Linux system.
const PCI_DEVICES: &str = "/sys/bus/pci/devices";

/// Interfaces that report the condition of GPUs.
pub(crate) struct Sensors {
    nvml: Option<Nvml>,
    pci_devices: PathBuf,
}

impl Sensors {
    /// Returns the interfaces of this system.
    pub(crate) fn of_system() -> Self {
        Self { nvml: Nvml::load(nvml::LIBRARY), pci_devices: PCI_DEVICES.into() }
    }

    /// Returns the condition of the GPU at `address`, or `None` if no interface reports it.
    pub(crate) fn condition(&self, address: PciAddress) -> Option<Condition> {
        let nvidia = self.nvml.as_ref().map(|nvml| nvml.condition(address)).unwrap_or_default();
        nvidia.or(&hwmon::condition(&self.pci_devices.join(address.to_string()))).if_known()
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::selection::fakes::machine;
    use ragtag_hal::ThrottleReason;
    use std::path::Path;
    use std::process::Command;

    /// A library that reports on the GPU at 0000:03:00.0 only. It knows no limit of the power.
    const NVML: &str = r#"
        #include <string.h>
        static int gpu;
        int nvmlInit_v2(void) { return 0; }
        int nvmlShutdown(void) { return 0; }
        int nvmlDeviceGetHandleByPciBusId_v2(const char *address, void **device) {
            *device = &gpu;
            return strcmp(address, "00000000:03:00.0") == 0 ? 0 : 6;
        }
        int nvmlDeviceGetTemperature(void *device, unsigned sensor, unsigned *celsius) {
            *celsius = 87;
            return device != &gpu || sensor != 0;
        }
        int nvmlDeviceGetPowerUsage(void *device, unsigned *mw) { *mw = 312345; return device != &gpu; }
        int nvmlDeviceGetClockInfo(void *device, unsigned clock, unsigned *mhz) {
            *mhz = clock == 1 ? 1410 : clock == 2 ? 1593 : 0;
            return device != &gpu;
        }
        int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *reasons) {
            *reasons = 0x40 | 0x8 | 0x1;
            return device != &gpu;
        }
    "#;

    /// Builds a stand-in for NVIDIA's library in `folder`. Without a compiler, records a skip and returns `None`.
    fn stand_in(folder: &Path) -> Option<Nvml> {
        let (source, library) = (folder.join("nvml.c"), folder.join("libnvidia-ml.so.1"));
        std::fs::write(&source, NVML).unwrap();
        match Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status() {
            Ok(status) => assert!(status.success(), "cannot compile the stand-in"),
            Err(error) => {
                test_support::skip!("C compiler", "{error}");
                return None;
            }
        }
        Some(Nvml::load(library.to_str().unwrap()).expect("the library opens"))
    }

    fn address(bus: u8) -> PciAddress {
        PciAddress { domain: 0, bus, device: 0, function: 0 }
    }

    #[test]
    fn nvidias_library_reports_the_gpu_at_an_address() {
        let folder = tempfile::tempdir().unwrap();
        let Some(nvml) = stand_in(folder.path()) else { return };
        let sensors = Sensors { nvml: Some(nvml), pci_devices: folder.path().into() };
        let condition = Condition {
            celsius: Some(87),
            power_mw: Some(312_345),
            compute_mhz: Some(1410),
            memory_mhz: Some(1593),
            throttled_by: [ThrottleReason::Temperature].into(),
            ..Condition::default()
        };
        assert_eq!(sensors.condition(address(3)), Some(condition));
        assert_eq!(sensors.condition(address(4)), None, "another GPU");
        assert!(Nvml::load("/nonexistent/libnvidia-ml.so.1").is_none());
    }

    #[test]
    fn all_adapters_of_a_gpu_get_its_condition() {
        let folder = tempfile::tempdir().unwrap();
        let monitor = folder.path().join("0000:01:00.0/hwmon/hwmon2");
        std::fs::create_dir_all(&monitor).unwrap();
        std::fs::write(monitor.join("temp1_input"), "61000\n").unwrap();
        let mut report = machine().probe();
        report.read(&Sensors { nvml: None, pci_devices: folder.path().into() });
        let known = report.adapters().filter(|adapter| adapter.condition.is_some());
        let labels: Vec<_> = known.map(ragtag_hal::Adapter::label).collect();
        assert_eq!(labels, ["cuda:0", "vulkan:1"]);
        let json = serde_json::to_value(report.adapter("vulkan:1").unwrap()).unwrap();
        assert_eq!(json["condition"], serde_json::json!({"celsius": 61}));
    }
}
