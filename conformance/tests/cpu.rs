//! Runs the suite on CPU devices with one thread, with several threads, and with every available instruction
//! set. Also runs it on devices with injected faults, and checks that the suite finds the faults.

use ragtag_conformance::{KnownFailure, Report, Suite, Verdict, run, run_all};
use ragtag_cpu::{CpuBackend, CpuConfig};
use ragtag_devices::{Backends, Config};
use ragtag_hal::{
    Adapter, Backend, BufferId, Checked, Command, Device, DeviceId, Feature, Features, HostRegion, Limits,
    Memory, Module, ModuleId, PoolStats, ProgramId, QueueKind, RegionId, Result, Submission, Timeline,
    Timing, Work,
};
use ragtag_kernels::NumericsClass;
use std::sync::Arc;

/// Runs `suite` on `cpu:0`. `above` wraps each opened device in another device. Tests of features that the
/// processor lacks are skipped.
fn suite_report(
    suite: Suite<'_>,
    threads: u32,
    features: Option<Features>,
    above: impl Fn(Box<dyn Device>) -> Box<dyn Device>,
) -> Report {
    let backend = CpuBackend::new(CpuConfig { threads: Some(threads), features, ..CpuConfig::default() });
    let adapter = backend.probe().unwrap().swap_remove(0);
    let open = || {
        let mut devices = backend.open(&[(adapter.clone(), DeviceId(0))], &Limits::default())?;
        Ok(Checked::new(above(devices.swap_remove(0))))
    };
    let mut started = Vec::new();
    let report = suite.run(&adapter, open, |name| started.push(name.to_string()));
    assert_eq!(started, suite.names());
    report
}

#[track_caller]
fn assert_passes(report: &Report) {
    let failures: Vec<_> = report.failures().collect();
    assert!(failures.is_empty(), "{}: {failures:#?}", report.adapter.driver);
    assert!(tried(report, "/portable"), "kernels in portable code were skipped");
    for class in [NumericsClass::Exact, NumericsClass::Fast] {
        let worst = report.worst_relative_error(class).expect("kernels of either class");
        assert!(worst <= class.tolerance(), "{class:?}: {worst}");
    }
    assert!(report.tests.iter().any(|test| test.duration_us > 0));
}

/// Returns whether there are tests whose names end in `variant`, and all of them passed.
fn tried(report: &Report, variant: &str) -> bool {
    let mut tests = report.tests.iter().filter(|test| test.name.ends_with(variant)).peekable();
    tests.peek().is_some() && tests.all(|test| matches!(test.verdict, Verdict::Passed { .. }))
}

#[test]
fn one_thread() {
    assert_passes(&suite_report(Suite::new(), 1, None, |device| device));
}

#[test]
fn two_threads() {
    assert_passes(&suite_report(Suite::new(), 2, None, |device| device));
}

#[test]
fn more_threads_than_cores() {
    assert_passes(&suite_report(Suite::new(), 5, None, |device| device));
}

#[test]
fn avx2_only() {
    let report = suite_report(Suite::new(), 2, Some(Features::from([Feature::Avx2])), |device| device);
    assert_passes(&report);
    assert!(tried(&report, "/portable") && !tried(&report, "/avx512-vnni"));
    assert_eq!(tried(&report, "/avx2"), report.adapter.caps.features.contains(&Feature::Avx2));
}

#[test]
fn portable_code_only() {
    let report = suite_report(Suite::new(), 2, Some(Features::new()), |device| device);
    assert_passes(&report);
    assert!(tried(&report, "/portable") && !tried(&report, "/avx2"));
}

#[test]
fn tests_every_adapter_of_the_table() {
    let backends = Backends::new(&Config { cpu_devices: 2, cpu_threads: Some(1), ..Config::default() });
    // This is only a part of the suite. The tests of each backend run all of it.
    let suite = || Suite::new().only("memory/r");
    let summary = run_all(&backends, suite());
    let labels: Vec<_> = summary.reports.iter().map(|report| report.adapter.label()).collect();
    assert!(labels.ends_with(&["cpu:0".into(), "cpu:1".into()]), "{labels:?}");
    for report in &summary.reports {
        let failures: Vec<_> = report.failures().collect();
        assert!(failures.is_empty() && report.passed() > 1, "{}: {failures:#?}", report.adapter.driver);
    }
    let json = serde_json::to_string(&summary).unwrap();
    let back: ragtag_conformance::Summary = serde_json::from_str(&json).unwrap();
    let outline = |summary: &ragtag_conformance::Summary| -> Vec<_> {
        summary.reports.iter().map(|report| (report.adapter.clone(), report.tests.len())).collect()
    };
    assert_eq!(outline(&back), outline(&summary));
    let none = run_all(&Backends::new(&Config { cpu_devices: 0, ..Config::default() }), suite());
    assert!(
        none.absent.iter().any(|absent| absent.backend == "cpu" && absent.cause.contains("no CPU devices"))
    );
}

/// A fault that a test injects into a device.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// Copies omit their last byte.
    ShortCopies,
    /// Downloads of two or more bytes start one byte late.
    ShiftedDownloads,
    /// Dispatches omit their last group.
    MissingGroups,
    /// Submissions ignore the points that they wait for.
    IgnoredWaits,
    /// Re-recording a program has no effect.
    StalePrograms,
    /// Commands run in reverse order.
    ReversedCommands,
    /// If it is out of memory, the device creates a smaller buffer than requested instead of failing.
    EndlessMemory,
}

/// Wrapper that makes a correct device behave as if it had a fault.
struct Faulty {
    inner: Box<dyn Device>,
    fault: Fault,
    recorded: Vec<ProgramId>,
}

impl Faulty {
    fn spoil(&self, commands: &mut [Command]) {
        if self.fault == Fault::ReversedCommands {
            commands.reverse();
        }
        for command in commands {
            match (self.fault, command) {
                (Fault::ShortCopies, Command::Copy { from, to }) if from.bytes > 1 => {
                    from.bytes -= 1;
                    to.bytes -= 1;
                }
                (Fault::ShiftedDownloads, Command::Download { from, .. })
                    if from.bytes > 1 && from.offset == 0 =>
                {
                    from.offset += 1;
                    from.bytes -= 1;
                }
                (Fault::MissingGroups, Command::Dispatch(dispatch)) => {
                    dispatch.grid[0] = dispatch.grid[0].saturating_sub(1);
                }
                _ => {}
            }
        }
    }
}

impl Device for Faulty {
    fn id(&self) -> DeviceId {
        self.inner.id()
    }
    fn adapter(&self) -> &Adapter {
        self.inner.adapter()
    }
    fn memory(&self) -> Result<Vec<Memory>> {
        self.inner.memory()
    }
    fn timeline(&self, queue: QueueKind) -> Arc<Timeline> {
        self.inner.timeline(queue)
    }
    fn import_timeline(&mut self, timeline: Arc<Timeline>) -> Result<()> {
        self.inner.import_timeline(timeline)
    }
    fn pool_stats(&self) -> PoolStats {
        self.inner.pool_stats()
    }
    fn trim_pool(&mut self) -> u64 {
        self.inner.trim_pool()
    }
    fn create_buffer(&mut self, id: BufferId, bytes: u64) -> Result<()> {
        match self.inner.create_buffer(id, bytes) {
            Err(_) if self.fault == Fault::EndlessMemory => self.inner.create_buffer(id, 4096),
            result => result,
        }
    }
    fn destroy_buffer(&mut self, id: BufferId) -> Result<()> {
        self.inner.destroy_buffer(id)
    }
    fn create_module(&mut self, id: ModuleId, module: &Module) -> Result<()> {
        self.inner.create_module(id, module)
    }
    fn destroy_module(&mut self, id: ModuleId) -> Result<()> {
        self.inner.destroy_module(id)
    }
    fn register_region(&mut self, id: RegionId, region: Arc<HostRegion>) -> Result<()> {
        self.inner.register_region(id, region)
    }
    fn unregister_region(&mut self, id: RegionId) -> Result<()> {
        self.inner.unregister_region(id)
    }
    fn record(&mut self, id: ProgramId, mut commands: Vec<Command>) -> Result<()> {
        if self.fault == Fault::StalePrograms && self.recorded.contains(&id) {
            return Ok(());
        }
        self.recorded.push(id);
        self.spoil(&mut commands);
        self.inner.record(id, commands)
    }
    fn destroy_program(&mut self, id: ProgramId) -> Result<()> {
        self.inner.destroy_program(id)
    }
    fn submit(&mut self, mut submission: Submission) -> Result<()> {
        if let Work::Commands(commands) = &mut submission.work {
            self.spoil(commands);
        }
        if self.fault == Fault::IgnoredWaits {
            submission.waits.clear();
        }
        self.inner.submit(submission)
    }
    fn take_timings(&mut self, timings: &mut Vec<Timing>) {
        self.inner.take_timings(timings);
    }
}

/// Checks that the suite fails on a device with `fault`, in every test or group of tests that `tests` names.
#[track_caller]
fn finds(fault: Fault, tests: &[&str]) {
    for test in tests {
        let faulty = |inner| Box::new(Faulty { inner, fault, recorded: Vec::new() }) as Box<dyn Device>;
        let report = suite_report(Suite::new().only(test), 2, None, faulty);
        assert!(report.failures().count() > 0, "{fault:?}: {test} did not fail: {:?}", report.tests);
    }
}

#[test]
fn finds_corrupt_copies() {
    finds(Fault::ShortCopies, &["memory/copy", "programs/replay"]);
    finds(Fault::ShiftedDownloads, &["memory/round-trip"]);
}

#[test]
fn finds_missing_groups() {
    finds(
        Fault::MissingGroups,
        &["kernel/add/", "kernel/matmul/", "kernel/attention/", "kernel/rope-append/"],
    );
}

#[test]
fn finds_missing_order() {
    finds(Fault::IgnoredWaits, &["queues/foreign-point", "queues/poison"]);
    finds(Fault::ReversedCommands, &["queues/commands-in-order"]);
}

#[test]
fn finds_stale_programs() {
    finds(Fault::StalePrograms, &["programs/record-anew"]);
}

#[test]
fn finds_missing_memory() {
    finds(Fault::EndlessMemory, &["memory/out-of-memory"]);
}

/// List of known failures for an adapter whose copies omit their last byte.
const SHORT_COPIES: [KnownFailure; 1] =
    [KnownFailure { tests: "memory/copy", reason: "copies omit their last byte" }];

/// Runs the memory tests on a device whose copies omit their last byte, with a list of known failures.
fn with_short_copies(known: &[KnownFailure]) -> Report {
    let fault = Fault::ShortCopies;
    let above = |inner| Box::new(Faulty { inner, fault, recorded: Vec::new() }) as Box<dyn Device>;
    suite_report(Suite::new().only("memory/").known_failures(known), 1, None, above)
}

#[test]
fn known_failures_become_skips_with_their_reason() {
    let unlisted = with_short_copies(&[]);
    let report = with_short_copies(&SHORT_COPIES);
    let failures: Vec<_> = report.failures().collect();
    assert!(failures.is_empty(), "{failures:#?}");
    for (before, after) in unlisted.tests.iter().zip(&report.tests) {
        match &before.verdict {
            Verdict::Failed { why } => assert!(
                matches!(&after.verdict, Verdict::Skipped { reason }
                    if reason.starts_with("known failure: ") && reason.contains(why)),
                "{after:?}"
            ),
            _ => assert_eq!(before.verdict, after.verdict),
        }
    }
    assert!(unlisted.failures().count() > 0);
}

#[test]
fn known_failure_that_passes_fails() {
    let fill = KnownFailure { tests: "memory/fill", reason: "fills are slow" };
    let nothing = KnownFailure { tests: "memory/teleport", reason: "there is no such test" };
    let report =
        suite_report(Suite::new().only("memory/").known_failures(&[fill, nothing]), 1, None, |device| device);
    let failures: Vec<_> = report
        .failures()
        .map(|test| match &test.verdict {
            Verdict::Failed { why } => (test.name.as_str(), why.as_str()),
            _ => unreachable!("failures have failed"),
        })
        .collect();
    assert_eq!(
        failures,
        [
            ("memory/fill", "passed, but is listed as a known failure: fills are slow"),
            (
                "known-failures/memory/teleport",
                "the list of known failures names \"memory/teleport\", but no such test ran"
            ),
        ]
    );
}

#[test]
fn runs_a_part_of_the_suite() {
    let names = |pattern| Suite::new().only(pattern).names();
    assert_eq!(names("memory/co"), ["memory/copy"]);
    assert!(names("kernel/add/").iter().all(|name| name.starts_with("kernel/add/")));
    assert_eq!(names("nothing"), [""; 0]);
    let all = names("");
    assert!(all.len() > names("kernel/").len() && names("kernel/").len() > names("matmul*portable").len());
    let report = suite_report(Suite::new().only("kernel/add/portable"), 1, None, |device| device);
    assert_eq!((report.tests.len(), report.passed()), (1, 1));
}

#[test]
fn device_that_does_not_open_fails_every_test() {
    let adapter = CpuBackend::new(CpuConfig::default()).probe().unwrap().swap_remove(0);
    let report = run(&adapter, || Err(ragtag_hal::Error::Lost { cause: "unplugged".into() }));
    assert!(!report.tests.is_empty());
    assert_eq!(report.failures().count(), report.tests.len());
}
