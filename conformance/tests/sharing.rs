//! Tests of memory that devices of different APIs share: the APIs of one physical device, and the CPU with
//! every device that imports its pages.

#![allow(clippy::print_stdout)] // Skips must be visible.

use device_bench::{Bench, shares};
use ragtag_devices::{Backends, Config};
use ragtag_hal::{Adapter, DeviceId, Limits};
use test_drivers::with_hip_on_opencl;

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
