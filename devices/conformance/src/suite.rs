//! The list of tests, and how they are run: each on a device that no failed test has touched.

use crate::bench::Bench;
use crate::report::{Absent, Outcome, Report, Summary, Verdict};
use crate::{kernels, memory, programs, queues};
use ragtag_devices::{Backends, Status};
use ragtag_hal::{Adapter, Checked, DeviceId, Limits, Result};

/// What a test returns: its verdict, or why it failed.
pub(crate) type Outcomes = std::result::Result<Verdict, String>;

/// A test of the device alone.
pub(crate) struct Test {
    pub(crate) name: &'static str,
    pub(crate) run: fn(&mut Bench) -> Outcomes,
    /// Leaves the device unusable, by design.
    pub(crate) destroys: bool,
}

/// The id of the device under test.
const DEVICE: DeviceId = DeviceId(0);

/// Runs the suite on the devices that `open` opens: one at first, and another after each test that used one up. They
/// all must be of `adapter`.
pub fn run(adapter: &Adapter, open: impl Fn() -> Result<Checked>) -> Report {
    let mut stand = Stand { open, bench: None, tests: Vec::new() };
    for test in memory::TESTS.iter().chain(queues::TESTS).chain(programs::TESTS) {
        stand.run(test.name.into(), test.destroys, test.run);
    }
    for variant in ragtag_kernels::variants() {
        stand.run(kernels::name(variant), false, |bench| kernels::run(bench, variant));
    }
    Report { adapter: adapter.clone(), tests: stand.tests }
}

/// Runs the suite on every adapter of these backends.
pub fn run_all(backends: &Backends) -> Summary {
    let mut summary = Summary { reports: Vec::new(), absent: Vec::new() };
    for backend in backends.probe().backends {
        let cause = match &backend.status {
            Status::NotCompiled => "not compiled into this build".into(),
            Status::Unavailable(unavailable) => unavailable.to_string(),
            Status::Found { adapters } if adapters.is_empty() => "it shows no adapter".into(),
            Status::Found { adapters } => {
                summary
                    .reports
                    .extend(adapters.iter().map(|adapter| run(adapter, || open(backends, adapter))));
                continue;
            }
        };
        summary.absent.push(Absent { backend: backend.name, cause });
    }
    summary
}

fn open(backends: &Backends, adapter: &Adapter) -> Result<Checked> {
    let mut devices = backends.open(&[(adapter.clone(), DEVICE)], &Limits::default())?;
    Ok(devices.swap_remove(0))
}

/// Where tests are run one after another.
struct Stand<F> {
    open: F,
    bench: Option<Bench>,
    tests: Vec<Outcome>,
}

impl<F: Fn() -> Result<Checked>> Stand<F> {
    fn run(&mut self, name: String, destroys: bool, test: impl FnOnce(&mut Bench) -> Outcomes) {
        let outcome = self.bench().and_then(|bench| {
            let outcome = test(bench)?;
            bench.clear().map(|()| outcome)
        });
        if destroys || outcome.is_err() {
            self.bench = None;
        }
        let verdict = outcome.unwrap_or_else(|why| Verdict::Failed { why });
        self.tests.push(Outcome { name, verdict });
    }

    fn bench(&mut self) -> std::result::Result<&mut Bench, String> {
        let bench = match self.bench.take() {
            Some(bench) => bench,
            None => Bench::new((self.open)().map_err(|error| format!("the device does not open: {error}"))?),
        };
        Ok(self.bench.insert(bench))
    }
}
