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
//! The argument is a list of devices. By default, the program probes all GPUs and the CPU.

#![allow(clippy::print_stdout)] // examples print

use ragtag::{DeviceOptions, Devices, LinkOptions, LinkReport};

fn main() -> ragtag::Result<()> {
    let mut options = DeviceOptions::selecting(std::env::args().nth(1).unwrap_or("auto,cpu".into()));
    let mut devices = Devices::probe(&options)?;
    if devices.selected().len() < 2 {
        options.cpu_devices = 2;
        devices = Devices::probe(&options)?;
    }
    let report = LinkReport::run(&devices, &LinkOptions::default(), &|_, _| ())?;
    for warning in &report.warnings {
        println!("warning: {warning}");
    }
    println!("{:<26} {:<8} {:<9} {:>10} {:>12}", "link", "route", "verified", "latency", "1 MiB");
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
