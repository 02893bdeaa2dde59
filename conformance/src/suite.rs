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
}

impl Default for Shapes {
    /// Returns the small set of random shapes that every machine tests.
    fn default() -> Self {
        Self { count: 2, seed: 1 }
    }
}

impl Shapes {
    pub(crate) fn seeds(self) -> impl Iterator<Item = u64> {
        (0..u64::from(self.count)).map(move |i| self.seed.wrapping_add(i))
    }
}

/// Selection among the listed shapes of a variant.
#[derive(Clone, Copy)]
pub(crate) struct Listed {
    /// Index of the first selected shape.
    pub(crate) first: usize,
    /// Step between the selected shapes, at least 1.
    pub(crate) one_in: usize,
}

impl Listed {
    /// Selects every `one_in`th listed shape for the variant at position `place` in its part. Neighbouring
    /// variants start at different shapes, and each `turn` shifts the selection by one shape.
    fn at(place: usize, turn: usize, one_in: usize) -> Self {
        let one_in = one_in.max(1);
        Self { first: (place % one_in + turn % one_in) % one_in, one_in }
    }

    pub(crate) fn of<T>(self, shapes: Vec<T>) -> impl Iterator<Item = T> {
        shapes.into_iter().skip(self.first).step_by(self.one_in)
    }
}

/// One of several equal parts of the selected kernel variants. The variants of each language, which are those
/// that a device runs, are spread evenly. Each of several similar devices tests one part.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// Number of parts. The value 0 counts as 1.
    pub of: usize,
    /// Index of this part, from 0.
    pub index: usize,
}

impl Default for Part {
    fn default() -> Self {
        Self { of: 1, index: 0 }
    }
}

impl Part {
    fn select(self, all: impl Iterator<Item = &'static Variant>) -> impl Iterator<Item = &'static Variant> {
        let (of, mut placed) = (self.of.max(1), HashMap::new());
        all.filter(move |variant| {
            let place: &mut usize = placed.entry(variant.language()).or_default();
            // The table repeats the same few forms for each tensor type. With a plain remainder, a part could have
            // all variants of a form, or of none.
            let part = (*place + *place / of) % of;
            *place += 1;
            part == self.index
        })
    }
}

/// Selection of the tests to run, and the known failures of the adapter.
#[derive(Clone, Copy, Debug, Default)]
pub struct Suite<'a> {
    only: &'a str,
    part: Part,
    shapes: Shapes,
    listed_one_in: usize,
    listed_turn: usize,
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

    /// Limits the suite to one part of the kernel variants and, for each variant, to one in `listed_one_in`
    /// of its listed shapes (0 counts as 1). All tests without kernels still run. `seed` rotates the parts
    /// and selects the random shapes, so devices that share the suite exchange parts when the seed changes.
    /// Over `part.of` · `listed_one_in` consecutive seeds, each device tests every listed shape of every
    /// variant once.
    pub fn by_turns(self, part: Part, listed_one_in: usize, seed: u64) -> Self {
        let of = part.of.max(1);
        let (index, turn) = (seed % of as u64, seed / of as u64 % listed_one_in.max(1) as u64);
        let part = Part { of, index: (part.index + index as usize) % of };
        let shapes = Shapes { seed, ..self.shapes };
        Self { part, listed_one_in, listed_turn: turn as usize, shapes, ..self }
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
        let kernels = self.part.select(kernels).enumerate();
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
    /// A kernel variant, with its position in the part.
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
                let listed = Listed::at(place, suite.listed_turn, suite.listed_one_in);
                kernels::run(bench, (variant, suite.guise), listed, suite.shapes)
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

    #[test]
    fn neighbours_together_test_all_listed_shapes() {
        let of =
            |place, turn, one_in| Listed::at(place, turn, one_in).of((0..8).collect()).collect::<Vec<_>>();
        assert_eq!([5, 6, 7].map(|place| of(place, 0, 3)), [vec![2, 5], vec![0, 3, 6], vec![1, 4, 7]]);
        assert_eq!([5, 6, 7].map(|turn| of(0, turn, 3)), [vec![2, 5], vec![0, 3, 6], vec![1, 4, 7]]);
        assert_eq!([of(3, 2, 0), of(3, 2, 1)], [(0..8).collect::<Vec<_>>(), (0..8).collect()]);
    }

    /// Returns the variants that a device tests with `seed`, each along with the index of its first listed
    /// shape.
    fn tried(of: usize, index: usize, seed: u64) -> Vec<(String, usize)> {
        let suite = Suite::new().only("kernel/").by_turns(Part { of, index }, 3, seed);
        assert_eq!(suite.shapes.seeds().next(), Some(seed));
        let first = |entry: Entry| match entry {
            Entry::Kernel((place, _)) => {
                (entry.name(), Listed::at(place, suite.listed_turn, suite.listed_one_in).first)
            }
            Entry::Device(_) => unreachable!("only kernels were asked for"),
        };
        suite.entries().map(first).collect()
    }

    #[test]
    fn each_device_tests_each_shape_of_each_variant_once_over_all_seeds() {
        let variants = ragtag_kernels::variants().len();
        for of in [1, 2, 3, 4, 6] {
            // Seeds are hashes, so any range of seeds must work, including the largest.
            for from in [0, u64::from(u32::MAX) - 7] {
                for index in 0..of {
                    let seeds = from..from + 3 * of as u64;
                    let mut all: Vec<_> = seeds.flat_map(|seed| tried(of, index, seed)).collect();
                    all.sort();
                    all.dedup();
                    assert_eq!(all.len(), 3 * variants, "device {index} of {of}");
                }
            }
        }
    }

    #[test]
    fn parts_have_a_fair_share_of_each_language_and_form() {
        for of in [2, 3, 4, 6, 12] {
            for (language, form) in [
                (KernelLanguage::HipC, ""),
                (KernelLanguage::HipC, "tiled"),
                (KernelLanguage::Wgsl, ""),
                (KernelLanguage::Wgsl, "gemv"),
            ] {
                let is_counted =
                    |variant: &&Variant| variant.language() == Some(language) && variant.name.contains(form);
                let variants = || ragtag_kernels::variants().iter();
                let count = |index| Part { of, index }.select(variants()).filter(is_counted).count();
                let counts: Vec<_> = (0..of).map(count).collect();
                let mean = counts.iter().sum::<usize>() / of;
                let most = if form.is_empty() { mean + 1 } else { 2 * mean };
                assert!(counts.iter().all(|&count| count <= most), "{language:?} {form}: {counts:?}");
            }
        }
    }

    #[test]
    fn devices_together_test_each_variant_once_with_any_seed() {
        for seed in [0, 1, 5, u64::from(u32::MAX)] {
            let mut names: Vec<_> =
                (0..4).flat_map(|index| tried(4, index, seed)).map(|(name, _)| name).collect();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), ragtag_kernels::variants().len(), "seed {seed}");
        }
    }
}
