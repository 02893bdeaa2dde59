//! The suite on every device that a backend of the table shows; without any it says which library or driver is missing.

use ragtag_conformance::{Verdict, run};
use ragtag_devices::{Backends, Config, Status};
use ragtag_hal::{Adapter, DeviceId, Limits};

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

/// Runs the suite on each device of a backend, and says how many there are.
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
    for adapter in &adapters {
        let open = || {
            let mut devices = backends.open(&[(adapter.clone(), DeviceId(0))], &Limits::default())?;
            Ok(devices.swap_remove(0))
        };
        let report = run(adapter, open);
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
        println!("{name}: {passed} of {} tests passed", report.tests.len());
        let failures: Vec<_> = report.failures().collect();
        assert!(failures.is_empty(), "{name}: {failures:#?}");
        assert!(passed > 10, "{name}: only {passed} tests passed");
    }
    adapters.len()
}
