//! Tests of lost devices. They use internals of the crate. The folder `tests` and the conformance suite test
//! the public interface.

#![allow(clippy::print_stdout)] // a skip is visible

use crate::{VulkanBackend, VulkanConfig};
use device_bench::suite;
use ragtag_hal::{Backend, DeviceId, Limits};

#[test]
fn a_lost_device_reports_its_loss_and_closes() {
    let backend = VulkanBackend::new(VulkanConfig { cache_folder: None, ..VulkanConfig::default() });
    let adapters = backend.probe().unwrap_or_else(|unavailable| {
        test_support::skip!("Vulkan driver", "{unavailable}");
        Vec::new()
    });
    for adapter in adapters {
        let device = backend.open_one(DeviceId(0), &adapter, &Limits::default()).unwrap();
        suite::a_lost_device_reports_its_loss_and_closes(device, suite::unplug);
    }
    assert_eq!(backend.validation_messages(), Vec::<String>::new());
}
