//! Trials of kernels: a short check of the kernels of a program on the device that is about to run it.
//!
//! The kernels run in the program's own modules, so that the driver compiles nothing twice. Each kernel first
//! runs a random case for each of its forms that the program launches. The time that is left goes to its
//! listed cases, in ascending order of size.

use crate::bench::{Attempt, Bench};
use crate::kernels::{SEED, name, run_case};
use crate::report::{Outcome, Verdict};
use ragtag_hal::{Checked, Module, ModuleId};
use ragtag_kernels::{Case, Variant, variants};
use std::cmp::Reverse;
use std::time::{Duration, Instant};

/// Maximum number of random cases from which the one for a launch is chosen, and the time after which no other
/// is made. A case takes long if its reference does.
const CANDIDATES: u64 = 12;
const CANDIDATES_TIME: Duration = Duration::from_millis(5);

/// A kernel to try.
#[derive(Clone, Debug)]
pub struct Trial<'a> {
    /// Module with the kernel.
    pub module: &'a Module,
    /// Index of the kernel in the module.
    pub entry: u32,
    /// Names of the kernel and of its variant, separated by a space, as in receipts.
    pub variant: &'a str,
    /// Constants of the program's launches of the kernel.
    pub launches: Vec<&'a [u32]>,
}

/// Tries each kernel on a device. Takes about `limit` in addition to the time for compiling the modules, or
/// longer if one case of each form takes longer. Returns the outcome of each trial. Skips the trials for which
/// the device has too little memory, and those after the loss of the device.
pub fn try_kernels(device: Checked, trials: &[Trial<'_>], seed: u64, limit: Duration) -> Vec<Outcome> {
    let mut bench = Bench::new(device);
    let mut modules: Vec<(&Module, Attempt<ModuleId>)> = Vec::new();
    let mut tried: Vec<Tried<'_>> = Vec::new();
    for trial in trials {
        let known = modules.iter().find(|(known, _)| std::ptr::eq(*known, trial.module));
        let module = known.map(|(_, module)| module.clone()).unwrap_or_else(|| {
            let module = bench.module(trial.module);
            modules.push((trial.module, module.clone()));
            module
        });
        tried.push(Tried::new(trial, &bench, module));
    }
    let deadline = Instant::now() + limit;
    for one in &mut tried {
        one.run(&mut bench, |one| one.forms(seed), None);
    }
    let mut left = tried.len() as u32;
    for one in &mut tried {
        let now = Instant::now();
        let share = deadline.saturating_duration_since(now) / left;
        left -= 1;
        if !share.is_zero() {
            one.run(&mut bench, Tried::listed, Some(now + share));
        }
    }
    tried.into_iter().map(Tried::outcome).collect()
}

/// A trial and its result so far.
struct Tried<'a> {
    trial: &'a Trial<'a>,
    variant: Option<&'static Variant>,
    module: Option<ModuleId>,
    verdict: Verdict,
    took: Duration,
}

impl<'a> Tried<'a> {
    fn new(trial: &'a Trial<'a>, bench: &Bench, module: Attempt<ModuleId>) -> Self {
        let is_own = |variant: &&Variant| {
            let rest = trial.variant.strip_suffix(variant.name).and_then(|rest| rest.strip_suffix(' '));
            rest.is_some_and(|kernel| variant.kernel.to_string() == kernel)
        };
        let variant = variants().iter().find(is_own);
        let verdict = match &module {
            Ok(_) => Verdict::Passed { relative_error: Some(0.0) },
            Err(why) => failed(bench, why.clone()),
        };
        Self { trial, variant, module: module.ok(), verdict, took: Duration::ZERO }
    }

    /// Returns for each launch the random case whose constants are most like those of the launch, without
    /// duplicates. Of equally similar cases, takes the smallest.
    fn forms(&self, seed: u64) -> Vec<Case> {
        let Some(variant) = self.variant else { return Vec::new() };
        let (mut candidates, start) = (Vec::new(), Instant::now());
        for at in 0..CANDIDATES {
            if at == 0 || start.elapsed() < CANDIDATES_TIME {
                candidates.push(Some(variant.random_case(seed.wrapping_add(at))));
            }
        }
        let likeness = |case: &Case, launch: &[u32]| {
            let same = case.constants.iter().zip(launch).filter(|(own, other)| own == other).count();
            (same, Reverse(bytes(case)))
        };
        let likest = |launch: &&[u32]| {
            let all = candidates.iter().enumerate();
            let all = all.filter_map(|(at, case)| Some((likeness(case.as_ref()?, launch), at)));
            all.max().map(|(_, at)| at)
        };
        let mut chosen: Vec<_> = self.trial.launches.iter().filter_map(likest).collect();
        chosen.sort_unstable();
        chosen.dedup();
        chosen.into_iter().filter_map(|at| candidates[at].take()).collect()
    }

    /// Returns the listed cases in ascending order of size.
    fn listed(&self) -> Vec<Case> {
        let mut cases = self.variant.map(|variant| variant.cases(SEED)).unwrap_or_default();
        cases.sort_by_key(bytes);
        cases
    }

    /// Runs cases until one fails or `end` has passed.
    fn run(&mut self, bench: &mut Bench, cases: impl Fn(&Self) -> Vec<Case>, end: Option<Instant>) {
        let (Some(variant), Some(module)) = (self.variant, self.module) else { return };
        let start = Instant::now();
        for case in cases(self) {
            let Verdict::Passed { relative_error } = &self.verdict else { break };
            if end.is_some_and(|end| Instant::now() > end) {
                break;
            }
            let result = run_case(bench, variant, (module, self.trial.entry), &case);
            self.verdict = match result.and_then(|error| bench.clear().map(|()| error)) {
                Ok(error) => Verdict::Passed { relative_error: relative_error.map(|worst| worst.max(error)) },
                Err(why) => failed(bench, why),
            };
        }
        self.took += start.elapsed();
    }

    fn outcome(self) -> Outcome {
        let name = self.variant.map_or_else(|| self.trial.variant.into(), name);
        let class = self.variant.map(|variant| variant.class);
        let verdict = match self.variant {
            Some(_) => self.verdict,
            None => Verdict::skipped("no conformance cases"),
        };
        Outcome { name, verdict, class, duration_us: self.took.as_micros() as u64 }
    }
}

/// Returns the verdict of a trial that ended for the reason `why`.
fn failed(bench: &Bench, why: String) -> Verdict {
    if bench.is_out_of_memory() { Verdict::skipped(why) } else { Verdict::Failed { why } }
}

/// Returns the size of a case's bindings in bytes.
fn bytes(case: &Case) -> usize {
    case.bindings.iter().map(Vec::len).sum()
}
