//! Tests of memory that devices of different APIs share: the APIs of one physical device, and the CPU with
//! every device that imports its pages.

#![allow(clippy::print_stdout)] // Skips must be visible.

use device_bench::{Bench, shares};
use ragtag_devices::{Backends, Config};
use ragtag_hal::{Adapter, DeviceId, Limits};
use test_drivers::{hip_on_opencl, library_path, with_hip_on_opencl, with_level_zero_on_opencl};

/// Tests each pair of devices of different APIs that share memory according to their drivers, if `is_wanted`
/// accepts the user. Returns the labels of the owner and the user of each pair.
fn shared(is_wanted: impl Fn(&Adapter) -> bool) -> Vec<[String; 2]> {
    let backends = Backends::new(&Config::default());
    let report = backends.probe();
    let adapters: Vec<&Adapter> = report.adapters().collect();
    let pairs = adapters.iter().flat_map(|owner| adapters.iter().map(move |user| (*owner, *user)));
    let pairs = pairs
        .filter(|(owner, user)| owner.backend != user.backend && user.imports_from(owner) && is_wanted(user));
    let mut tested = Vec::new();
    for (owner, user) in pairs {
        println!("{} ({}) to {} ({})", owner.label(), owner.driver, user.label(), user.driver);
        let wanted = [(owner.clone(), DeviceId(0)), (user.clone(), DeviceId(1))];
        let devices = backends.open(&wanted, &Limits::default()).unwrap();
        let mut both = devices.into_iter().map(Bench::new);
        let [user_waits, owner_waits] = shares(&mut both.next().unwrap(), &mut both.next().unwrap());
        println!("waits on the device: the second {user_waits}, the first {owner_waits}");
        tested.push([owner.label(), user.label()]);
    }
    tested
}

#[test]
fn apis_share_buffers() {
    let tested = shared(|_| true);
    if tested.is_empty() {
        test_support::skip!("two APIs that share memory", "the drivers claim none");
    }
}

#[test]
fn hip_devices_use_the_pages_of_the_cpu() {
    with_hip_on_opencl("hip_devices_use_the_pages_of_the_cpu", &[], || {
        let tested = shared(|user| user.backend == "hip");
        if !tested.contains(&["cpu:0", "hip:0"].map(String::from)) {
            test_support::skip!("OpenCL driver", "HIP has no device");
        }
    });
}

/// Checks the import of dma-bufs across APIs. Files stand for dma-bufs, and stand-ins for both drivers.
#[test]
fn hip_devices_import_dma_bufs_of_level_zero_devices() {
    let test = "hip_devices_import_dma_bufs_of_level_zero_devices";
    let path = library_path(hip_on_opencl()).into_string().unwrap();
    let settings = [("RAGTAG_FAKE_DMA_BUFS", "1"), ("LD_LIBRARY_PATH", path.as_str())];
    with_level_zero_on_opencl(test, &settings, || {
        let backends = Backends::new(&Config::default());
        let report = backends.probe();
        let of = |backend: &str| report.adapters().filter(|one| one.backend == backend).collect::<Vec<_>>();
        let Some(user) = of("hip").first().copied() else {
            return test_support::skip!("OpenCL driver", "HIP has no device");
        };
        for owner in of("level-zero") {
            assert!(!user.imports_from(owner), "only a probe of the link enables the import");
            let wanted = [(owner.clone(), DeviceId(0)), (user.clone(), DeviceId(1))];
            let mut both = backends.open(&wanted, &Limits::default()).unwrap().into_iter().map(Bench::new);
            let waits = shares(&mut both.next().unwrap(), &mut both.next().unwrap());
            assert_eq!(waits, [false; 2], "{} to {}", owner.label(), user.label());
        }
    });
}
