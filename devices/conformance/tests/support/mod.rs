//! The suite on every device that a backend of the table shows; without any it says which library or driver is missing.

use ragtag_conformance::{Part, Suite, Verdict};
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
/// Drivers that compile shaders for the processor take long for all variants of all kernels. Where one shows several devices,
/// or is tried through two APIs, each of these tries one half, and all together every variant; or every one tries all if
/// `RAGTAG_TEST_EVERY_VARIANT` is set.
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
            parts.into_iter().map(|one| scope.spawn(|| try_device(&backends, one))).collect();
        others.into_iter().for_each(|one| try_device(&backends, one));
        for device in running {
            device.join().unwrap_or_else(|failure| std::panic::resume_unwind(failure));
        }
    });
    adapters.len()
}

fn try_device(backends: &Backends, adapter: &Adapter) {
    let open = || {
        let mut devices = backends.open(&[(adapter.clone(), DeviceId(0))], &Limits::default())?;
        Ok(devices.swap_remove(0))
    };
    let halves = adapter.kind == AdapterKind::Software
        && ["vulkan", "wgpu"].contains(&&*adapter.backend)
        && std::env::var_os("RAGTAG_TEST_EVERY_VARIANT").is_none();
    let part = match halves {
        true => Part { of: 2, index: (adapter.index as usize + usize::from(adapter.backend == "wgpu")) % 2 },
        false => Part::default(),
    };
    let report = Suite::new().part(part).run(adapter, open, |_| {});
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
