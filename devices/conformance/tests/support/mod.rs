//! The suite on every device that a backend of the table shows; without any it says which library or driver is missing.

use ragtag_conformance::{Part, Report, Suite, Verdict};
use ragtag_devices::{Backends, Config, Status};
use ragtag_hal::{Adapter, AdapterKind, DeviceId, Limits};

/// Where shaders are compiled for the processor, one in so many of the listed shapes is tried.
pub const SOME: usize = 3;

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
/// other: twins of one driver, and of APIs that run shaders all that the processor executes. Of these Vulkan's have one half of
/// the variants and wgpu's the other, with `RAGTAG_TEST_SEED` by turns; shaders run slowly there, too, and are tried with some
/// of the shapes. `RAGTAG_TEST_ALL` asks for all of it on each.
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
        let running: Vec<_> = parts
            .iter()
            .map(|one| scope.spawn(|| try_device(&backends, one, of_part(one, &parts))))
            .collect();
        others.into_iter().for_each(|one| try_device(&backends, one, Suite::new()));
        for device in running {
            device.join().unwrap_or_else(|failure| std::panic::resume_unwind(failure));
        }
    });
    adapters.len()
}

/// What is tried on one of a backend's devices that are parts of the processor.
fn of_part(one: &Adapter, all: &[&Adapter]) -> Suite<'static> {
    if std::env::var_os("RAGTAG_TEST_ALL").is_some() {
        return Suite::new();
    }
    let shades = ["vulkan", "wgpu"].contains(&&*one.backend);
    let alike: Vec<_> = all.iter().filter(|other| shades || other.driver == one.driver).collect();
    let place = alike.iter().position(|other| other.index == one.index).unwrap_or_default();
    if !shades {
        return Suite::new().part(Part { of: alike.len(), index: place });
    }
    let turn = (seed() + usize::from(one.backend == "wgpu")) % 2;
    Suite::new().part(Part { of: 2 * alike.len(), index: 2 * place + turn }).listed_one_in(SOME)
}

/// What `RAGTAG_TEST_SEED` says, or 0.
fn seed() -> usize {
    std::env::var("RAGTAG_TEST_SEED").map_or(0, |seed| seed.parse().expect("RAGTAG_TEST_SEED is a number"))
}

/// Runs a suite on an adapter.
pub fn run_on(backends: &Backends, adapter: &Adapter, suite: Suite<'_>) -> Report {
    let open = || {
        let mut devices = backends.open(&[(adapter.clone(), DeviceId(0))], &Limits::default())?;
        Ok(devices.swap_remove(0))
    };
    suite.run(adapter, open, |_| {})
}

fn try_device(backends: &Backends, adapter: &Adapter, suite: Suite<'_>) {
    let report = run_on(backends, adapter, suite);
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
