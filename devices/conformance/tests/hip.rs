//! The suite through the HIP backend: on AMD's GPUs where there are some, and on a stand-in for AMD's driver that executes
//! on OpenCL devices, memory, queues, programs and the text of every kernel.

#![allow(clippy::print_stdout)] // a skip is visible

use ragtag_conformance::{Verdict, run};
use ragtag_devices::{Backends, Config, Status};
use ragtag_hal::{Adapter, DeviceId, Limits};
use test_drivers::with_hip_on_opencl;

/// The adapters, or why there are none.
fn adapters(backends: &Backends) -> Result<Vec<Adapter>, String> {
    let report = backends.probe();
    let status = report.backends.into_iter().find(|backend| backend.name == "hip").map(|row| row.status);
    match status {
        Some(Status::Found { adapters }) if !adapters.is_empty() => Ok(adapters),
        Some(Status::Unavailable(unavailable)) => Err(unavailable.to_string()),
        other => Err(format!("no adapter: {other:?}")),
    }
}

/// Runs the suite on every adapter, or says why there is none. At least so many tests must pass.
fn every_hip_device(at_least: usize) -> Result<(), String> {
    let backends = Backends::new(&Config::default());
    for adapter in adapters(&backends)? {
        let open = || {
            let mut devices = backends.open(&[(adapter.clone(), DeviceId(0))], &Limits::default())?;
            Ok(devices.swap_remove(0))
        };
        let report = run(&adapter, open);
        let name = format!("{} ({}, {})", adapter.label(), adapter.name, adapter.driver);
        let passed = |verdict: &Verdict| matches!(verdict, Verdict::Passed { .. });
        let passed = report.tests.iter().filter(|test| passed(&test.verdict)).count();
        for test in &report.tests {
            // That variants in other languages are not for it need not be said for each of them.
            if let Verdict::Skipped { reason } = &test.verdict
                && !reason.contains("does not take")
            {
                println!("{name}: {} skipped: {reason}", test.name);
            }
        }
        println!("{name}: {passed} of {} tests passed", report.tests.len());
        let failures: Vec<_> = report.failures().collect();
        assert!(failures.is_empty(), "{name}: {failures:#?}");
        assert!(passed >= at_least, "{name}: only {passed} tests passed");
    }
    Ok(())
}

#[test]
fn every_device_of_the_machine() {
    if let Err(why) = every_hip_device(11) {
        println!("skipped: HIP: {why}");
    }
}

/// One device of the stand-in is enough: OpenCL's own are tried with the OpenCL backend. A stand-in that finds no device
/// fails the test where OpenCL devices are wanted.
#[test]
fn the_stand_in_on_opencl() {
    with_hip_on_opencl("the_stand_in_on_opencl", &[("HIP_VISIBLE_DEVICES", "0")], || {
        let wanted = std::env::var_os("RAGTAG_TEST_OPENCL_ADAPTERS").is_some();
        match every_hip_device(100) {
            Ok(()) => {}
            Err(why) if wanted => panic!("{why}"),
            Err(why) => println!("skipped: HIP on OpenCL: {why}"),
        }
    });
}
