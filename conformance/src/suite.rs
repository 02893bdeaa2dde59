//! Lists the tests of the suite and runs them. After a failed test, the next test uses a newly opened device.

use crate::bench::Bench;
use crate::kernels::{self, Guise};
use crate::known::{self, KnownFailure};
use crate::report::{Absent, Outcome, Report, Summary, Verdict};
use crate::{memory, programs, queues};
use ragtag_devices::{BackendReport, Backends, Status};
use ragtag_hal::{Adapter, Checked, DeviceId, Feature, KernelLanguage, Limits, Result};
use ragtag_kernels::{NumericsClass, Variant};
use std::collections::HashMap;
use std::time::Instant;

/// Result of a test: a verdict, or a description of the failure.
pub(crate) type Outcomes = std::result::Result<Verdict, String>;

/// A test of the device that needs no kernel variant.
pub(crate) struct Test {
    pub(crate) name: &'static str,
    pub(crate) run: fn(&mut Bench) -> Outcomes,
    /// Whether the test leaves the device unusable by design.
    pub(crate) destroys: bool,
}

/// Device id of the device under test.
const DEVICE: DeviceId = DeviceId(0);

/// Random shapes for kernel tests, in addition to the listed shapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shapes {
    /// Number of random shapes per variant.
    pub count: u32,
    /// Seed of the first shape. Each later shape uses the next seed.
    pub seed: u64,
    /// Shapes whose launch has more work groups are left out. Software devices take minutes for some of them.
    pub most_groups: u64,
}

impl Default for Shapes {
    /// Returns the small set of random shapes that every machine tests.
    fn default() -> Self {
        Self { count: 2, seed: 1, most_groups: u64::MAX }
    }
}

impl Shapes {
    pub(crate) fn seeds(self) -> impl Iterator<Item = u64> {
        (0..u64::from(self.count)).map(move |i| self.seed.wrapping_add(i))
    }
}

/// Selection of the tests to run, and the known failures of the adapter.
#[derive(Clone, Copy, Debug, Default)]
pub struct Suite<'a> {
    only: &'a str,
    /// Number of devices that divide the variants, and the index of this device. The number 0 counts as 1.
    divided: (usize, usize),
    shapes: Shapes,
    one_listed_in: usize,
    known: &'a [KnownFailure],
    guise: Guise,
}

impl<'a> Suite<'a> {
    /// Returns a suite that runs every test.
    pub fn new() -> Self {
        Self::default()
    }

    /// Selects the tests whose names contain `pattern`. A `*` matches any characters, as in `matmul*avx2`.
    pub fn only(self, pattern: &'a str) -> Self {
        Self { only: pattern, ..self }
    }

    /// Uses `shapes` instead of the default random shapes.
    pub fn shapes(self, shapes: Shapes) -> Self {
        Self { shapes, ..self }
    }

    /// Divides the kernel variants among `devices` similar devices, and selects those of the device at `index`. The
    /// variants of each language are spread evenly. All tests without kernels still run.
    pub fn divided(self, devices: usize, index: usize) -> Self {
        Self { divided: (devices, index), ..self }
    }

    /// Limits the suite to one in `count` of the listed shapes of each variant. Neighbouring variants start at
    /// different shapes. The value 0 counts as 1.
    pub fn one_listed_in(self, count: usize) -> Self {
        Self { one_listed_in: count, ..self }
    }

    /// Runs the kernels in `language` only, as on a device that accepts no other language.
    pub fn in_language(self, language: KernelLanguage) -> Self {
        Self { guise: Guise { language: Some(language), ..self.guise }, ..self }
    }

    /// Runs the kernels as on a device with `feature`. The OpenCL C `functions` stand in for its
    /// instructions.
    pub fn emulating(self, feature: Feature, functions: &'static str) -> Self {
        Self { guise: Guise { emulated: Some((feature, functions)), ..self.guise }, ..self }
    }

    /// Sets the known failures of the adapter. The report shows these tests as skipped, with the reasons. A
    /// listed test that passes counts as a failure, and so does an entry that matches no test.
    pub fn known_failures(self, known: &'a [KnownFailure]) -> Self {
        Self { known, ..self }
    }

    /// Returns the names of the selected tests, in the order in which they run.
    pub fn names(&self) -> Vec<String> {
        self.entries().map(|entry| entry.name()).collect()
    }

    /// Runs the selected tests on devices from `open`, which must all belong to `adapter`. Opens a device at
    /// the start, and a new one after each test that made the device unusable. Calls `starts` with the name
    /// of each test before the test runs.
    pub fn run(
        &self,
        adapter: &Adapter,
        open: impl Fn() -> Result<Checked>,
        mut starts: impl FnMut(&str),
    ) -> Report {
        let mut stand = Stand { open, bench: None };
        let mut tests = Vec::new();
        for entry in self.entries() {
            let name = entry.name();
            starts(&name);
            let start = Instant::now();
            let verdict = stand.run(&entry, self);
            let duration_us = start.elapsed().as_micros() as u64;
            tests.push(Outcome { name, verdict, class: entry.class(), duration_us });
        }
        known::judge(&mut tests, self.known);
        Report { adapter: adapter.clone(), tests }
    }

    fn entries(&self) -> impl Iterator<Item = Entry> {
        let devices = memory::TESTS.iter().chain(queues::TESTS).chain(programs::TESTS).map(Entry::Device);
        let is_selected = |entry: &Entry| known::matches(self.only, &entry.name());
        let kernels = ragtag_kernels::variants().iter();
        let kernels = kernels.filter(move |variant| is_selected(&Entry::Kernel((0, variant))));
        let (mut placed, (of, index)) = (HashMap::<_, usize>::new(), self.divided);
        let kernels = kernels.map(move |variant| {
            let place = placed.entry(variant.language()).or_default();
            *place += 1;
            (*place - 1, variant)
        });
        // The table repeats the same few forms for each tensor type. With a plain remainder, a device could have all
        // variants of a form, or of none.
        let of = of.max(1);
        let kernels = kernels.filter(move |(place, _)| (place + place / of) % of == index);
        devices.filter(is_selected).chain(kernels.map(Entry::Kernel))
    }
}

/// Runs every test on devices from `open`, which must all belong to `adapter`.
pub fn run(adapter: &Adapter, open: impl Fn() -> Result<Checked>) -> Report {
    Suite::new().run(adapter, open, |_| {})
}

/// Runs `suite` on every adapter of `backends`.
pub fn run_all(backends: &Backends, suite: Suite<'_>) -> Summary {
    let found = backends.probe();
    let reports =
        found.adapters().map(|adapter| suite.run(adapter, || open(backends, adapter), |_| {})).collect();
    Summary { reports, absent: found.backends.iter().filter_map(absent).collect() }
}

/// Returns `backend` with the reason why it has no adapter. Returns `None` if it has one.
pub fn absent(backend: &BackendReport) -> Option<Absent> {
    let cause = match &backend.status {
        Status::NotCompiled => "not compiled into this build".into(),
        Status::Unavailable(unavailable) => unavailable.to_string(),
        Status::Found { adapters } if adapters.is_empty() => "it reports no adapter".into(),
        Status::Found { .. } | Status::NotProbed => return None,
    };
    Some(Absent { backend: backend.name.clone(), cause })
}

fn open(backends: &Backends, adapter: &Adapter) -> Result<Checked> {
    let mut devices = backends.open(&[(adapter.clone(), DEVICE)], &Limits::default())?;
    Ok(devices.swap_remove(0))
}

/// Entry in the list of tests.
#[derive(Clone, Copy)]
enum Entry {
    Device(&'static Test),
    /// A kernel variant, with its position among those of its language.
    Kernel((usize, &'static Variant)),
}

impl Entry {
    fn name(self) -> String {
        match self {
            Entry::Device(test) => test.name.into(),
            Entry::Kernel((_, variant)) => kernels::name(variant),
        }
    }

    fn class(self) -> Option<NumericsClass> {
        match self {
            Entry::Device(_) => None,
            Entry::Kernel((_, variant)) => Some(variant.class),
        }
    }

    fn destroys(self) -> bool {
        matches!(self, Entry::Device(test) if test.destroys)
    }

    fn run(self, bench: &mut Bench, suite: &Suite<'_>) -> Outcomes {
        match self {
            Entry::Device(test) => (test.run)(bench),
            Entry::Kernel((place, variant)) => {
                let step = suite.one_listed_in.max(1);
                kernels::run(bench, (variant, suite.guise), (place % step, step), suite.shapes)
            }
        }
    }
}

/// Runs tests, and opens devices as the tests need them.
struct Stand<F> {
    open: F,
    bench: Option<Bench>,
}

impl<F: Fn() -> Result<Checked>> Stand<F> {
    fn run(&mut self, entry: &Entry, suite: &Suite<'_>) -> Verdict {
        let outcome = self.bench().and_then(|bench| {
            let outcome = entry.run(bench, suite)?;
            bench.clear().map(|()| outcome)
        });
        if entry.destroys() || outcome.is_err() {
            self.bench = None;
        }
        outcome.unwrap_or_else(|why| Verdict::Failed { why })
    }

    fn bench(&mut self) -> std::result::Result<&mut Bench, String> {
        let bench = match self.bench.take() {
            Some(bench) => bench,
            None => Bench::new((self.open)().map_err(|error| format!("cannot open the device: {error}"))?),
        };
        Ok(self.bench.insert(bench))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the names of the variants that each of `devices` devices tests.
    fn divided(devices: usize) -> Vec<Vec<String>> {
        let suite = |index| Suite::new().only("kernel/").divided(devices, index);
        (0..devices).map(|index| suite(index).names()).collect()
    }

    #[test]
    fn devices_together_test_each_variant_once() {
        let all = Suite::new().only("kernel/").names();
        assert_eq!(all.len(), ragtag_kernels::variants().len());
        for devices in [1, 2, 3, 4, 16] {
            let mut names = divided(devices).concat();
            names.sort();
            let mut all = all.clone();
            all.sort();
            assert_eq!(names, all, "{devices} devices");
        }
    }

    #[test]
    fn devices_have_a_fair_part_of_each_language_and_form() {
        for devices in [2, 3, 4, 6, 12] {
            for (language, form) in [("/hip", ""), ("/hip", "tiled"), ("/wgsl", ""), ("/wgsl", "gemv")] {
                let is_counted = |name: &&String| name.contains(language) && name.contains(form);
                let count = |names: &Vec<String>| names.iter().filter(is_counted).count();
                let counts: Vec<_> = divided(devices).iter().map(count).collect();
                let mean = counts.iter().sum::<usize>() / devices;
                let most = if form.is_empty() { mean + 1 } else { 2 * mean };
                assert!(counts.iter().all(|&count| count <= most), "{language} {form}: {counts:?}");
            }
        }
    }

    #[test]
    fn the_selection_does_not_depend_on_the_seed() {
        let suite = |seed| Suite::new().divided(3, 1).shapes(Shapes { seed, ..Shapes::default() });
        assert_eq!(suite(1).names(), suite(u64::MAX).names());
    }
}
