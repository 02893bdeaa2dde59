//! Trials of kernels: a short check of the kernels of a program on the device that is about to run it.
//!
//! The kernels run in the program's own modules, so that the driver compiles nothing twice. Each kernel first
//! runs random cases that have the constants of the program's launches, where such cases exist, and then the
//! smallest of its listed cases. The number of cases does not depend on the time that they take, so a busy
//! machine tries as much as an idle one.

use crate::bench::{Attempt, Bench};
use crate::kernels::{SEED, name, run_case};
use crate::report::{Outcome, Verdict};
use ragtag_hal::{Checked, Module, ModuleId};
use ragtag_kernels::{Case, Variant, variants};
use std::cmp::Reverse;
use std::time::{Duration, Instant};

/// Maximum number of random cases from which those for a launch are chosen, and their bytes after which no other is
/// made. Large cases have slow references.
const CANDIDATES: u64 = 12;
const CANDIDATES_BYTES: usize = 1 << 20;
/// Maximum number of listed cases that run for each kernel.
const LISTED: usize = 8;
/// Size in bytes above which a listed case does not run, if a smaller one does.
const LARGE_BYTES: usize = 1 << 18;

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

/// Tries each kernel on a device. Returns the outcome of each trial. Skips the trials for which the device has too
/// little memory, and those after the loss of the device.
pub fn try_kernels(device: Checked, trials: &[Trial<'_>], seed: u64) -> Vec<Outcome> {
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
    for one in &mut tried {
        let cases = one.forms(seed).into_iter().chain(one.listed()).collect();
        one.run(&mut bench, cases);
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

    /// Returns random cases that together have each constant of each launch, if a candidate has it. So a form
    /// of the kernel that a constant selects is among them.
    fn forms(&self, seed: u64) -> Vec<Case> {
        let Some(variant) = self.variant else { return Vec::new() };
        let (mut candidates, mut made_bytes) = (Vec::new(), 0);
        for at in 0..CANDIDATES {
            if made_bytes < CANDIDATES_BYTES {
                let case = variant.random_case(seed.wrapping_add(at));
                made_bytes += bytes(&case);
                candidates.push(case);
            }
        }
        let mut chosen: Vec<Case> = Vec::new();
        for launch in &self.trial.launches {
            let has = |case: &Case, index: &usize| case.constants.get(*index) == launch.get(*index);
            let mut open: Vec<usize> = (0..launch.len()).collect();
            open.retain(|index| !chosen.iter().any(|case| has(case, index)));
            loop {
                let new = |case: &Case| open.iter().filter(|index| has(case, index)).count();
                let all = candidates.iter().enumerate();
                let best = all.map(|(at, case)| ((new(case), Reverse(bytes(case))), at)).max();
                let Some(((new, _), at)) = best.filter(|((new, _), _)| *new > 0 || chosen.is_empty()) else {
                    break;
                };
                let case = candidates.swap_remove(at);
                open.retain(|index| !has(&case, index));
                chosen.push(case);
                if new == 0 {
                    break;
                }
            }
        }
        chosen
    }

    /// Returns the smallest listed cases in ascending order of size.
    fn listed(&self) -> Vec<Case> {
        let mut cases = self.variant.map(|variant| variant.cases(SEED)).unwrap_or_default();
        cases.sort_by_key(bytes);
        let small = cases.iter().take(LISTED).filter(|case| bytes(case) <= LARGE_BYTES).count();
        cases.truncate(small.max(1));
        cases
    }

    /// Runs cases until one fails.
    fn run(&mut self, bench: &mut Bench, cases: Vec<Case>) {
        let (Some(variant), Some(module)) = (self.variant, self.module) else { return };
        let start = Instant::now();
        for case in cases {
            let Verdict::Passed { relative_error } = &self.verdict else { break };
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

#[cfg(test)]
mod tests {
    use super::*;
    use ragtag_devices::{Backends, Config};
    use ragtag_hal::{Adapter, CopyFault, CopyFaultKind, Device, DeviceId, Faults, FaultyCopies, Limits};
    use ragtag_kernels::head_norm::Form;
    use ragtag_kernels::{Kernel, module_source, select};

    /// Opens the CPU device with faults.
    fn device(faults: Faults) -> Checked {
        let backends = Backends::new(&Config::default());
        let report = backends.probe_only(&["cpu"]);
        let adapter = report.adapter("cpu:0").expect("a CPU device").clone();
        let check = move |_: &Adapter, device| Checked::with_faults(device, faults.clone());
        let opened = backends.open_with(&[(adapter, DeviceId(0))], &Limits::default(), &check);
        opened.expect("it opens").swap_remove(0)
    }

    /// Tries the kernels `add` and `gather`, and a kernel that does not exist, in one module.
    fn verdicts(faults: Faults) -> Vec<Verdict> {
        let device = device(faults);
        let caps = device.adapter().caps.clone();
        let variants =
            [Kernel::Add, Kernel::Gather].map(|kernel| select(kernel, &caps, 1).expect("a variant"));
        let entries = variants.iter().map(|variant| variant.abi).collect();
        let source = module_source(variants, &caps).expect("one language");
        let module = Module { name: "two kernels".into(), entries, source };
        let mut names: Vec<_> = variants.iter().map(|v| format!("{} {}", v.kernel, v.name)).collect();
        names.push("abacus portable".into());
        let trial = |(at, variant): (usize, &'_ String)| (at as u32, variant.clone());
        let names: Vec<_> = names.iter().enumerate().map(trial).collect();
        let trial =
            |(entry, variant)| Trial { module: &module, entry, variant, launches: vec![&[1, 0, 32][..]] };
        let trials: Vec<_> = names.iter().map(|(at, name)| trial((*at, name.as_str()))).collect();
        let outcomes = try_kernels(device, &trials, 7);
        assert!(outcomes[0].name.starts_with("kernel/add/"), "{outcomes:?}");
        outcomes.into_iter().map(|outcome| outcome.verdict).collect()
    }

    #[test]
    fn wrong_values_fail_and_lack_of_memory_skips() {
        let right = verdicts(Faults::default());
        let [Verdict::Passed { .. }, Verdict::Passed { .. }, Verdict::Skipped { .. }] = &right[..] else {
            panic!("{right:?}")
        };
        let kind = CopyFaultKind::Stale;
        let fault = CopyFault { kind, copies: FaultyCopies::Downloads, least_bytes: 1, after: 0, most: None };
        let wrong = verdicts(Faults { copy_fault: Some(fault), ..Faults::default() });
        assert!(matches!(&wrong[0], Verdict::Failed { .. }), "{wrong:?}");
        let full = verdicts(Faults { most_bytes: Some(0), ..Faults::default() });
        assert!(matches!(&full[..2], [Verdict::Skipped { .. }, Verdict::Skipped { .. }]), "{full:?}");
    }

    #[test]
    fn a_kernel_is_tried_in_the_forms_that_a_program_launches() {
        let device = device(Faults::default());
        let variant = select(Kernel::HeadNorm, &device.adapter().caps, 1).expect("a variant");
        let module = Module {
            name: "a kernel".into(),
            entries: vec![variant.abi],
            source: module_source([variant], &device.adapter().caps).expect("one language"),
        };
        let name = format!("{} {}", variant.kernel, variant.name);
        for form in Form::ALL {
            let epsilon = 1e-5_f32.to_bits();
            let constants = [9, 0, 4, 2, 64, epsilon, form as u32];
            let trial = Trial { module: &module, entry: 0, variant: &name, launches: vec![&constants] };
            let verdict = Verdict::PASSED;
            let tried =
                Tried { trial: &trial, variant: Some(variant), module: None, verdict, took: Duration::ZERO };
            // One of three random cases has the form. All candidates of one seed in 130 lack it.
            let forms = tried.forms(3);
            let forms: Vec<_> = forms.iter().map(|case| case.constants[6]).collect();
            assert!(forms.contains(&(form as u32)) && forms.len() <= 4, "{form:?}: {forms:?}");
        }
    }
}
