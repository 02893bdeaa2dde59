//! Runs the suite on every device of a backend. If the backend has no device, names the missing library or
//! driver.

use ragtag_conformance::{Outcome, Report, Shapes, Suite, Verdict};
use ragtag_devices::{Backends, Config, Status};
use ragtag_hal::{Adapter, AdapterKind, DeviceId, Limits};
use test_support::{nightly, seed};

/// Step between the listed shapes that are tested on devices that run shaders on the CPU.
pub const SOME: usize = 3;
/// Software devices that run every kernel for each commit: the start of the driver's name, by API. PoCL runs OpenCL C,
/// lavapipe WGSL, the stand-in for HIP its own variants, and the test driver of Level Zero the committed SPIR-V. The
/// others repeat these kernels, so one in [`FEW`] suffices to test their backends.
const COMPLETE: [(&str, &str); 4] = [
    ("opencl", "Portable Computing Language"),
    ("vulkan", "llvmpipe"),
    ("hip", "HIP"),
    ("level-zero", "Level Zero"),
];
const FEW: usize = 16;
/// Maximum number of work groups of a launch on a software device. For 65,537 groups of 256 items that wait for each other,
/// a device takes ten minutes.
const MOST_GROUPS: u64 = 1 << 15;

/// Test that runs the suite on the stand-in for HIP.
pub const HIP_STAND_IN: &str = "the_stand_in_on_opencl";

/// Maximum number of skipped tests in the whole suite, by backend and by prefix of the driver's name. Only
/// tests of kernels in the driver's own language count. More skips than this maximum mean that the driver has
/// lost a feature.
const SKIPS: [(&str, &str, usize); 9] = [
    // The skipped tests are the products for matrix units, which have their own tests. Two of the drivers also
    // skip the 52 kernels with sub-groups.
    ("opencl", "Portable Computing Language", 56),
    ("opencl", "Intel(R) OpenCL", 4),
    ("opencl", "NVIDIA CUDA", 56),
    ("level-zero", "Level Zero", 4),
    ("hip", "HIP", 8),
    ("vulkan", "llvmpipe", 8),
    ("wgpu", "vulkan, llvmpipe", 8),
    // SwiftShader also lacks f16 and larger work groups.
    ("vulkan", "SwiftShader", 15),
    ("wgpu", "vulkan, SwiftShader", 15),
];

/// Returns the number of a backend's tests that did not pass, and the allowed maximum. For a driver that is
/// not in the table, the maximum is half of the tests.
pub fn not_passed(backend: &str, driver: &str, tests: &[Outcome]) -> (usize, usize) {
    let language = match backend {
        "vulkan" | "wgpu" => "wgsl",
        // Its kernels are built from OpenCL C ahead of time.
        "level-zero" => "opencl",
        backend => backend,
    };
    let is_owed = |test: &&Outcome| {
        let variant = test.name.rsplit('/').next().unwrap_or_default();
        !test.name.starts_with("kernel/") || variant.starts_with(language)
    };
    let owed: Vec<_> = tests.iter().filter(is_owed).collect();
    let passed = owed.iter().filter(|test| matches!(test.verdict, Verdict::Passed { .. })).count();
    let row = SKIPS.iter().find(|(of, start, _)| *of == backend && driver.starts_with(start));
    (owed.len() - passed, row.map_or(owed.len() / 2, |(.., most)| *most))
}

/// Returns the adapters of the backend `name`, or the reason why it has none.
pub fn adapters(backends: &Backends, name: &str) -> Result<Vec<Adapter>, String> {
    let report = backends.probe();
    let status = report.backends.into_iter().find(|backend| backend.name == name).map(|row| row.status);
    match status {
        Some(Status::Found { adapters }) if !adapters.is_empty() => Ok(adapters),
        Some(Status::Unavailable(unavailable)) => Err(unavailable.to_string()),
        other => Err(format!("no adapter: {other:?}")),
    }
}

/// Runs the suite on each device of the backend `name` and returns the number of devices. If there is no
/// device, records a skip that names `missing`. Software devices run in parallel, because each of their
/// drivers compiles on a single core.
///
/// Devices of one software driver divide the kernels among them. Together they run all if [`COMPLETE`] lists the
/// driver or in the nightly run, and otherwise one in [`FEW`].
#[track_caller]
pub fn every_device_of(name: &str, missing: &str) -> usize {
    let backends = Backends::new(&Config::default());
    let adapters = match adapters(&backends, name) {
        Ok(adapters) => adapters,
        Err(why) => {
            test_support::skip!(missing, "{why}");
            return 0;
        }
    };
    let repeat = repeat();
    println!("{repeat}");
    let (parts, others): (Vec<_>, Vec<_>) = adapters.iter().partition(|adapter| is_software(adapter));
    std::thread::scope(|scope| {
        let running: Vec<_> = parts
            .iter()
            .map(|one| (one, software_suite(one, &parts)))
            .map(|(one, suite)| {
                let (backends, repeat) = (&backends, &repeat);
                scope.spawn(move || try_device(backends, one, suite, repeat))
            })
            .collect();
        others.into_iter().for_each(|one| try_device(&backends, one, Suite::new(), &repeat));
        for device in running {
            device.join().unwrap_or_else(|failure| std::panic::resume_unwind(failure));
        }
    });
    adapters.len()
}

/// Returns the command that repeats the current test with its seed.
pub fn repeat() -> String {
    let (thread, seed) = (std::thread::current(), seed());
    let (file, test) = (env!("CARGO_CRATE_NAME"), thread.name().unwrap_or_default());
    format!("RAGTAG_TEST_SEED={seed} cargo test -p ragtag-conformance --test {file} -- {test}")
}

/// Returns the suite of the software device `one`, one of the devices in `all`.
fn software_suite(one: &Adapter, all: &[&Adapter]) -> Suite<'static> {
    let alike: Vec<_> = all.iter().filter(|other| other.driver == one.driver).collect();
    let place = alike.iter().position(|other| other.index == one.index).unwrap_or_default();
    let is_listed = |(api, driver): &(&str, &str)| one.backend == *api && one.driver.name.starts_with(driver);
    let parts = if nightly() || COMPLETE.iter().any(is_listed) { 1 } else { FEW };
    let suite = Suite::new().divided(parts * alike.len(), place);
    let runs_shaders = ["vulkan", "wgpu"].contains(&&*one.backend);
    if runs_shaders && !nightly() { suite.one_listed_in(SOME) } else { suite }
}

/// Returns whether the kernels of an adapter run on the CPU. The stand-in for HIP describes an AMD GPU.
fn is_software(adapter: &Adapter) -> bool {
    adapter.kind == AdapterKind::Software || test_support::Child::inside(HIP_STAND_IN)
}

/// Runs `suite` on an adapter, with random shapes from the seed of the tests.
pub fn run_on(backends: &Backends, adapter: &Adapter, suite: Suite<'_>) -> Report {
    let open = || {
        let mut devices = backends.open(&[(adapter.clone(), DeviceId(0))], &Limits::default())?;
        Ok(devices.swap_remove(0))
    };
    let most_groups = if is_software(adapter) && !nightly() { MOST_GROUPS } else { u64::MAX };
    let shapes = Shapes { seed: seed(), most_groups, ..Shapes::default() };
    suite.shapes(shapes).run(adapter, open, |_| {})
}

fn try_device(backends: &Backends, adapter: &Adapter, suite: Suite<'_>, repeat: &str) {
    let report = run_on(backends, adapter, suite);
    let name = format!("{} ({}, {})", adapter.label(), adapter.name, adapter.driver);
    let mut passed = 0;
    for test in &report.tests {
        match &test.verdict {
            Verdict::Passed { .. } => passed += 1,
            // Skips of variants in other languages are not printed.
            Verdict::Skipped { reason } if reason.contains("does not take") => {}
            Verdict::Skipped { reason } => println!("{name}: {} skipped: {reason}", test.name),
            Verdict::Failed { .. } => {}
        }
    }
    println!("{name}: {passed} of {} tests passed", report.tests.len());
    let failures: Vec<_> = report.failures().collect();
    assert!(failures.is_empty(), "{name}: {failures:#?}\nrepeat with: {repeat}");
    let (missing, most) = not_passed(&adapter.backend, &adapter.driver.name, &report.tests);
    assert!(missing <= most, "{name}: {missing} tests did not pass, and {most} may; repeat with: {repeat}");
}
