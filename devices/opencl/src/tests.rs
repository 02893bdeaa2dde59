//! Tests of shared contexts and lost devices. They use internals of the crate. The folder `tests` and the
//! conformance suite test the public interface.

#![allow(clippy::print_stdout)] // a skip is visible

use crate::{OpenClBackend, OpenClConfig};
use device_bench::suite;
use ragtag_hal::{Adapter, Backend, DeviceId, Limits};

fn backend() -> OpenClBackend {
    OpenClBackend::new(OpenClConfig { cache_folder: None, ..OpenClConfig::default() })
}

fn adapters(backend: &OpenClBackend) -> Vec<Adapter> {
    backend.probe().unwrap_or_else(|unavailable| {
        test_support::skip!("OpenCL driver", "{unavailable}");
        Vec::new()
    })
}

#[test]
fn devices_of_one_platform_share_a_context() {
    let backend = backend();
    let found = backend.found().unwrap_or_default();
    let pair = found
        .iter()
        .enumerate()
        .find_map(|(at, a)| Some((a, found[at + 1..].iter().find(|b| b.platform == a.platform)?)));
    let Some((a, b)) = pair else {
        test_support::skip!("two devices of one driver", "OpenCL");
        return;
    };
    let open = |wanted: &[(&Adapter, u16)]| {
        let wanted: Vec<_> = wanted.iter().map(|(one, id)| ((*one).clone(), DeviceId(*id))).collect();
        backend.open(&wanted, &Limits::default()).unwrap()
    };
    let (a, b) = (&a.adapter, &b.adapter);
    let both = open(&[(a, 0), (b, 1)]);
    assert_eq!(backend.contexts_in_use(), 1, "two devices that are opened together");
    let again = open(&[(b, 2)]);
    assert_eq!(backend.contexts_in_use(), 1, "a device that is opened later");
    drop(both);
    assert_eq!(backend.contexts_in_use(), 1, "one device remains");
    drop(again);
    assert_eq!(backend.contexts_in_use(), 0, "no device remains");
    let one = open(&[(a, 3)]);
    let other = open(&[(b, 4)]);
    assert_eq!(backend.contexts_in_use(), 2, "a context that is in use gets no more devices");
    drop((one, other));
}

#[test]
fn a_lost_device_reports_its_loss_and_closes() {
    let backend = backend();
    for adapter in adapters(&backend) {
        let found =
            backend.found().unwrap().into_iter().find(|found| found.adapter.label() == adapter.label());
        let device = backend.open_one(DeviceId(0), found.unwrap(), &Limits::default()).unwrap();
        suite::a_lost_device_reports_its_loss_and_closes(device, suite::unplug);
    }
}
