//! The first use of a device: tries the kernels of a plan before the device computes anything that counts.
//!
//! A driver may compute wrong values without an error. The kernels run on random inputs, and their results are
//! compared with the references of the conformance suite. The cache holds the outcome for the device, its
//! driver and the code of each kernel. CPU devices are not tried: their kernels are part of this program, no
//! driver compiles them, and the reference runs on the same processor.

use crate::calibrate::{Kept, TriedKernel, now_unix_s};
use crate::devices::Devices;
use crate::error::{Error, Result};
use ragtag_conformance::{Outcome, Trial, Verdict, try_kernels};
use ragtag_graph::CompiledStage;
use ragtag_hal::{Adapter, AdapterKind, ModuleSource};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

/// Kernels that are new on a device, with the digests of their code.
struct Untried<'a> {
    adapter: &'a Adapter,
    trials: Vec<Trial<'a>>,
    digests: Vec<String>,
}

/// Tries the kernels of `stages` that are not known to be right on their devices. All devices work at the same
/// time. `folder` has the same meaning as in [`crate::CalibrationOptions`].
///
/// # Errors
/// Returns [`Error::Untrusted`] with the first device that computes wrong values or whose driver fails, and
/// [`Error::Device`] if a device cannot be opened.
pub(crate) fn check(
    devices: &Devices,
    stages: &[(Adapter, CompiledStage)],
    folder: Option<PathBuf>,
) -> Result<()> {
    let kept = Kept::new(folder);
    let mut untried: Vec<Untried<'_>> = Vec::new();
    for (adapter, compiled) in stages.iter().filter(|(adapter, _)| adapter.kind != AdapterKind::Cpu) {
        let at = untried.iter().position(|one| one.adapter.label() == adapter.label());
        let at = at.unwrap_or_else(|| {
            untried.push(Untried { adapter, trials: Vec::new(), digests: Vec::new() });
            untried.len() - 1
        });
        untried[at].add(compiled);
    }
    for one in &mut untried {
        one.leave_out(&kept.kernels(one.adapter));
    }
    untried.retain(|one| !one.trials.is_empty());
    let labels: Vec<_> = untried.iter().map(|one| one.adapter.label()).collect();
    let opened = if labels.is_empty() { Vec::new() } else { devices.open(&labels)? };
    let (seed, start) = (now_unix_s(), Instant::now());
    let outcomes: Vec<Vec<Outcome>> = std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (one, (_, device)) in untried.iter().zip(opened) {
            threads.push(scope.spawn(move || try_kernels(device, &one.trials, seed)));
        }
        threads.into_iter().map(|thread| thread.join().unwrap_or_default()).collect()
    });
    if !untried.is_empty() {
        tracing::debug!(?labels, elapsed = ?start.elapsed(), "tested the kernels of devices at their first use");
    }
    let mut failed = None;
    for (one, outcomes) in untried.iter().zip(outcomes) {
        let error = one.judge(&kept, &outcomes);
        failed = failed.or(error);
    }
    failed.map_or(Ok(()), Err)
}

impl<'a> Untried<'a> {
    /// Adds the kernels of a stage, with the constants of their launches.
    fn add(&mut self, compiled: &'a CompiledStage) {
        for (entry, variant) in compiled.variants.iter().enumerate() {
            let steps = compiled.programs.iter().flat_map(|program| &program.steps);
            let launches = steps.filter(|step| step.entry as usize == entry);
            let mut launches: Vec<_> = launches.map(|step| step.constants.as_slice()).collect();
            launches.sort_unstable();
            launches.dedup();
            let module = &compiled.module;
            match self.trials.iter_mut().find(|known| known.variant == variant) {
                Some(known) => known.launches.extend(launches),
                None => {
                    self.digests.push(digest(self.adapter, variant, &module.source, entry));
                    self.trials.push(Trial { module, entry: entry as u32, variant, launches });
                }
            }
        }
    }

    /// Removes the kernels that have passed before.
    fn leave_out(&mut self, known: &BTreeMap<String, TriedKernel>) {
        let is_new = |trial: &Trial<'_>, digest: &str| {
            known.get(trial.variant).is_none_or(|known| known.digest != digest || known.why.is_some())
        };
        let all = self.trials.drain(..).zip(self.digests.drain(..));
        let (trials, digests) = all.filter(|(trial, digest)| is_new(trial, digest)).unzip();
        (self.trials, self.digests) = (trials, digests);
    }

    /// Writes the outcomes to the cache. Returns an error if a kernel has failed.
    fn judge(&self, kept: &Kept, outcomes: &[Outcome]) -> Option<Error> {
        let (mut tried, mut failures) = (BTreeMap::new(), Vec::new());
        for ((trial, digest), outcome) in self.trials.iter().zip(&self.digests).zip(outcomes) {
            let (device, kernel) = (self.adapter.label(), trial.variant);
            tracing::debug!(device, kernel, us = outcome.duration_us, verdict = ?outcome.verdict, "tested");
            let why = match &outcome.verdict {
                Verdict::Passed { .. } => None,
                Verdict::Failed { why } => Some(why.clone()),
                Verdict::Skipped { reason } => {
                    tracing::warn!(device, kernel, reason, "cannot test the kernel");
                    continue;
                }
            };
            // The label of a case starts with the name of the kernel.
            let own = trial.variant.split(' ').next().map(|kernel| format!("{kernel}: ")).unwrap_or_default();
            let brief = |why: &String| why.strip_prefix(&own).unwrap_or(why).to_owned();
            failures.extend(why.as_ref().map(|why| format!("{kernel}: {}", brief(why))));
            let tested_unix_s = now_unix_s();
            let (digest, name) = (digest.clone(), trial.variant.to_owned());
            tried.insert(name, TriedKernel { digest, tested_unix_s, why });
        }
        kept.keep_kernels(self.adapter, tried);
        let more = failures.len().saturating_sub(1);
        let first = failures.into_iter().next()?;
        let more = if more == 0 { String::new() } else { format!(" (and {more} more kernels)") };
        let Adapter { name, driver, .. } = self.adapter;
        let (device, driver) = (self.adapter.label(), format!("{name}, {driver}"));
        Some(Error::Untrusted { device, driver, kernel: format!("{first}{more}") })
    }
}

/// Returns a digest of Ragtag's version, the device's features, and the code of a kernel.
fn digest(adapter: &Adapter, variant: &str, source: &ModuleSource, entry: usize) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(env!("CARGO_PKG_VERSION").as_bytes());
    hasher.update(format!("{variant} {:?}", adapter.caps.features).as_bytes());
    match source.code(entry) {
        Some(code) => hasher.update(code),
        None => hasher.update(format!("{:?}", adapter.caps.gemm).as_bytes()),
    };
    hasher.finalize().to_hex()[..32].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibrate::CalibrationOptions;
    use crate::devices::DeviceOptions;
    use ragtag_hal::Module;

    fn trials<'a>(adapter: &'a Adapter, module: &'a Module, names: &[&'a str]) -> Untried<'a> {
        let trial = |variant| Trial { module, entry: 0, variant, launches: Vec::new() };
        let digest = |name: &&str| format!("digest of {name}");
        Untried {
            adapter,
            trials: names.iter().map(|name| trial(*name)).collect(),
            digests: names.iter().map(digest).collect(),
        }
    }

    fn outcome(verdict: Verdict) -> Outcome {
        Outcome { name: "kernel/a/b".into(), verdict, class: None, duration_us: 1 }
    }

    #[test]
    fn only_kernels_that_have_passed_are_trusted() {
        let folder = tempfile::tempdir().unwrap();
        let options = CalibrationOptions { folder: Some(folder.path().into()), ..Default::default() };
        let kept = || Kept::new(options.folder.clone());
        let devices = Devices::probe(&DeviceOptions::selecting("cpu")).unwrap();
        let adapter = &devices.selected()[0];
        let module =
            Module { name: "a module".into(), entries: Vec::new(), source: ModuleSource::Host(Vec::new()) };
        let names = ["right opencl", "wrong opencl", "large opencl"];
        let all = trials(adapter, &module, &names);
        let why = "wrong: 3 rows: relative error 1e0, at most 1e-5 is allowed".to_string();
        let verdicts = [
            Verdict::Passed { relative_error: Some(0.0) },
            Verdict::Failed { why },
            Verdict::Skipped { reason: "out of memory".into() },
        ];
        let error = all.judge(&kept(), &verdicts.map(outcome)).unwrap();
        let said = error.to_string();
        let expected =
            "fails its self-test: wrong opencl: 3 rows: relative error 1e0, at most 1e-5 is allowed";
        assert!(said.starts_with("cpu:0 (") && said.ends_with(expected), "{said}");

        let left = |names: &[&'static str], adapter: &Adapter| {
            let mut left = trials(adapter, &module, names);
            left.leave_out(&kept().kernels(adapter));
            left.trials.iter().map(|trial| trial.variant.to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(left(&names, adapter), ["wrong opencl", "large opencl"]);
        assert_eq!(left(&["new opencl"], adapter), ["new opencl"]);
        let mut updated = adapter.clone();
        updated.driver = "another version".into();
        assert_eq!(left(&names, &updated).len(), 3, "another driver");
        let mut changed = trials(adapter, &module, &names[..1]);
        changed.digests[0] = "another digest".into();
        changed.leave_out(&kept().kernels(adapter));
        assert_eq!(changed.trials.len(), 1, "another source");

        // A later pass replaces the failure, and the other outcomes stay.
        let passed = [Verdict::Passed { relative_error: None }].map(outcome);
        assert!(trials(adapter, &module, &names[1..2]).judge(&kept(), &passed).is_none());
        assert_eq!(left(&names, adapter), ["large opencl"]);
    }
}
