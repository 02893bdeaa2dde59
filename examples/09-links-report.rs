//! Reports every link between the devices of the machine.
//!
//! Demonstrates how to probe links. For each ordered pair of devices, the program prints each route that
//! Ragtag tried, whether all bytes arrived intact, the latency, and the rate of 1 MiB transfers. A plan uses
//! only verified routes. If the machine has only one device, the CPU serves as two devices.
//!
//! ```sh
//! cargo run --release --example 09-links-report
//! cargo run --release --example 09-links-report -- cuda,vulkan,cpu
//! ```
//!
//! The argument is a list of devices. By default, the program probes all GPUs, software devices and the CPU,
//! each through its preferred API.

#![allow(clippy::print_stdout)] // examples print

use ragtag::{DeviceOptions, Devices, Isolation, LinkOptions, LinkReport};

fn main() -> ragtag::Result<()> {
    let isolation = Isolation::start();
    let options = match std::env::args().nth(1) {
        Some(devices) => DeviceOptions::selecting(devices),
        None => every_device(&isolation),
    };
    let devices = Devices::probe(&options.isolated(&isolation))?;
    for adapter in devices.selected() {
        println!("{:<14} {}", adapter.label(), adapter.name);
    }
    println!("probing each pair, which takes a few seconds");
    let report = LinkReport::run(&devices, &LinkOptions::default(), &|_, _| ())?;
    for warning in &report.warnings {
        println!("warning: {warning}");
    }
    println!("\n{:<26} {:<8} {:<9} {:>10} {:>12}", "link", "route", "verified", "latency", "1 MiB");
    for link in &report.links {
        let name = format!("{} → {}", link.from, link.to);
        for tried in &link.tried {
            let rate = tried.rates.iter().find(|rate| rate.bytes == 1 << 20);
            let (verified, figures) = match (&tried.why, tried.hops.first(), rate) {
                (None, Some(hop), Some(rate)) => {
                    ("yes", format!("{:>7.1} µs {:>7.1} GB/s", hop.us, rate.bytes_per_s / 1e9))
                }
                (why, ..) => ("no", why.clone().unwrap_or_default()),
            };
            println!("{name:<26} {:<8} {verified:<9} {figures}", tried.route.name());
        }
        let best = link.route.map_or("no route".into(), |route| format!("plans use {}", route.name()));
        println!("{name:<26} {}: {best}", link.class);
    }
    Ok(())
}

/// Selects each device through its preferred API. A CPU alone becomes two devices.
fn every_device(isolation: &Isolation) -> DeviceOptions {
    let found = Devices::survey(&DeviceOptions::default().isolated(isolation));
    let labels: Vec<_> = found.devices.iter().filter_map(|device| device.adapters.first().cloned()).collect();
    if labels.len() > 1 {
        return DeviceOptions::selecting(labels.join(","));
    }
    let mut options = DeviceOptions::selecting("cpu");
    options.cpu_devices = 2;
    options
}
