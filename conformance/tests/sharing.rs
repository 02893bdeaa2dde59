//! Test of memory that the APIs of one physical device share.

#![allow(clippy::print_stdout)] // Skips must be visible.

use device_bench::{Bench, shares};
use ragtag_devices::{Backends, Config};
use ragtag_hal::{Adapter, DeviceId, Limits};

#[test]
fn apis_of_one_device_share_buffers() {
    let backends = Backends::new(&Config::default());
    let report = backends.probe();
    let adapters: Vec<&Adapter> = report.adapters().collect();
    let pairs = adapters.iter().flat_map(|owner| adapters.iter().map(move |user| (*owner, *user)));
    let pairs = pairs.filter(|(owner, user)| owner.backend != user.backend && user.imports_from(owner));
    let mut tested = 0;
    for (owner, user) in pairs {
        println!("{} ({}) to {} ({})", owner.label(), owner.driver, user.label(), user.driver);
        let wanted = [(owner.clone(), DeviceId(0)), (user.clone(), DeviceId(1))];
        let devices = backends.open(&wanted, &Limits::default()).unwrap();
        let mut both = devices.into_iter().map(Bench::new);
        shares(&mut both.next().unwrap(), &mut both.next().unwrap());
        tested += 1;
    }
    if tested == 0 {
        test_support::skip!("two APIs that share memory", "of {} adapters", adapters.len());
    }
}
