//! The suite on every device that a backend of the table shows; without any it says which library or driver is missing.

use ragtag_conformance::{Part, Report, Suite, Verdict};
use ragtag_devices::{Backends, Config, Status};
use ragtag_hal::{Adapter, AdapterKind, DeviceId, Limits};

/// The adapters of a backend, or why there are none.
pub fn adapters(backends: &Backends, name: &str) -> Result<Vec<Adapter>, String> {
    let report = backends.probe();
    let status = report.backends.into_iter().find(|backend| backend.name == name).map(|row| row.status);
    match status {
        Some(Status::Found { adapters }) if !adapters.is_empty() => Ok(adapters),
        Some(Status::Unavailable(unavailable)) => Err(unavailable.to_string()),
        other => Err(format!("no adapter: {other:?}")),
    }
}

/// Runs the suite on each device of a backend, and says how many there are. Devices that are parts of the processor are tried
/// side by side: their drivers compile on one core each.
///
/// Drivers that compile for the processor take long for all variants of all kernels. Alike devices deal these among each
/// other: twins of one driver, and of APIs that run shaders all that the processor executes. Through Vulkan and through wgpu
/// a device gets different parts.
#[track_caller]
pub fn every_device_of(name: &str) -> usize {
    let backends = Backends::new(&Config::default());
    let adapters = match adapters(&backends, name) {
        Ok(adapters) => adapters,
        Err(why) => {
            println!("skipped: {name}: {why}");
            return 0;
        }
    };
    let (parts, others): (Vec<_>, Vec<_>) =
        adapters.iter().partition(|adapter| adapter.kind == AdapterKind::Software);
    std::thread::scope(|scope| {
        let running: Vec<_> =
            parts.iter().map(|one| scope.spawn(|| try_device(&backends, one, dealt(one, &parts)))).collect();
        others.into_iter().for_each(|one| try_device(&backends, one, Part::default()));
        for device in running {
            device.join().unwrap_or_else(|failure| std::panic::resume_unwind(failure));
        }
    });
    adapters.len()
}

/// The part of the variants that is dealt to one of a backend's devices that a processor executes.
fn dealt(one: &Adapter, all: &[&Adapter]) -> Part {
    let shades = ["vulkan", "wgpu"].contains(&&*one.backend);
    let alike: Vec<_> = all.iter().filter(|other| shades || other.driver == one.driver).collect();
    let place = alike.iter().position(|other| other.index == one.index).unwrap_or_default();
    Part { of: alike.len(), index: (place + usize::from(one.backend == "wgpu")) % alike.len() }
}

/// Runs a suite on an adapter.
pub fn run_on(backends: &Backends, adapter: &Adapter, suite: Suite<'_>) -> Report {
    let open = || {
        let mut devices = backends.open(&[(adapter.clone(), DeviceId(0))], &Limits::default())?;
        Ok(devices.swap_remove(0))
    };
    suite.run(adapter, open, |_| {})
}

fn try_device(backends: &Backends, adapter: &Adapter, part: Part) {
    let report = run_on(backends, adapter, Suite::new().part(part));
    let name = format!("{} ({}, {})", adapter.label(), adapter.name, adapter.driver);
    let mut passed = 0;
    for test in &report.tests {
        match &test.verdict {
            Verdict::Passed { .. } => passed += 1,
            // That variants in other languages are not for it need not be said for each of them.
            Verdict::Skipped { reason } if reason.contains("does not take") => {}
            Verdict::Skipped { reason } => println!("{name}: {} skipped: {reason}", test.name),
            Verdict::Failed { .. } => {}
        }
    }
    println!("{name}: {passed} of {} tests passed; part {} of {}", report.tests.len(), part.index, part.of);
    let failures: Vec<_> = report.failures().collect();
    assert!(failures.is_empty(), "{name}: {failures:#?}");
    assert!(passed > 10, "{name}: only {passed} tests passed");
}
