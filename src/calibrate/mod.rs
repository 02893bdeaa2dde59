//! Calibration: each device times the model's own segments at the model's own shapes, each pair of devices the way between
//! them. What was measured is kept on disk and taken from there the next time.
//!
//! Devices that are one processor are timed at the same time, since they work at the same time in a pipeline and share
//! caches and memory; every other device is timed alone. Equal parts of a processor share one profile, their mean.

mod budget;
mod filling;
mod found;
mod hand_over;
mod job;
mod kept;
mod measure;
mod miniature;
mod stats;
mod steps;

use crate::devices::Devices;
use crate::error::{Error, Result};
use crate::model::Model;
use budget::Budget;
use found::Found;
use job::Job;
use kept::Kept;
use ragtag_hal::{Adapter, AdapterKind};
use ragtag_kernels::{Activations, KvType};
use ragtag_scheduler::compare::{ComparedPart, Comparison, Phase};
use ragtag_scheduler::cost::Profile;
use ragtag_scheduler::{DeviceFacts, Links, Place};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use steps::Steps;

/// By how much a stage is off that contradicts its profile, over how many decode steps or chunks.
const CONTRADICTING_FACTOR: f64 = 1.5;
const CONTRADICTING_STEPS: u64 = 16;
const CONTRADICTING_CHUNKS: u64 = 8;

/// Most wall time of a calibration that nobody asked for, with some to spare to 3 seconds.
const USUAL_LIMIT: Duration = Duration::from_millis(2700);

/// How long a calibration waits for that of another process: one with a limit, and one without.
const QUICK_PATIENCE: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(120);

/// What to time, and for how long.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct CalibrationOptions {
    /// Form of the activations in products with quantised weights.
    pub activations: Activations,
    /// Form of keys and values.
    pub kv: KvType,
    /// Most rows of a micro-batch of prefill.
    pub chunk: u32,
    /// Most sequences that decode together.
    pub sequences: u32,
    /// Seconds of timing for each device, about, where there is no limit.
    pub seconds: f64,
    /// Most wall time for all devices together, the compilation of kernels apart: by default just under 3 seconds. What tells
    /// most is timed first, and a profile that lacks the rest is kept and used as it is.
    pub limit: Option<Duration>,
    /// Time everything, whatever was kept.
    pub force: bool,
    /// Where results are kept; by default in the folder that `RAGTAG_CACHE_DIR` names, else in the user's for caches.
    pub folder: Option<PathBuf>,
}

impl Default for CalibrationOptions {
    fn default() -> Self {
        Self {
            activations: Activations::Int8,
            kv: KvType::F16,
            chunk: crate::planner::MAX_CHUNK,
            sequences: 1,
            seconds: 1.0,
            limit: Some(USUAL_LIMIT),
            force: false,
            folder: None,
        }
    }
}

/// What was measured of devices and of the ways between them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Calibration {
    /// Profiles by the devices' labels.
    pub profiles: Vec<(String, Arc<Profile>)>,
    /// The links between them.
    pub links: Links,
    /// The devices that were timed now; the others' profiles were kept from before.
    pub timed: Vec<String>,
    /// The devices that did not open. A planner that is told of this excludes them.
    pub closed: Vec<String>,
    /// What went wrong or was odd, for people: a device that does not open or could not be timed, times that drifted.
    pub warnings: Vec<String>,
    /// Why what was measured now is not all kept, if it is not: it holds, and will be measured again.
    pub unkept: Option<String>,
}

impl Calibration {
    /// Times what is not known of the selected devices. `progress` is told how many of how many steps are done; it is not
    /// called where everything was kept.
    ///
    /// # Errors
    /// If the model cannot be lowered, or no device opens. One that does not open, or cannot be timed, is left out with a
    /// warning.
    pub fn run(
        model: &Model,
        devices: &Devices,
        options: &CalibrationOptions,
        progress: &(dyn Fn(u64, u64) + Sync),
    ) -> Result<Self> {
        let mut adapters = devices.selected().to_vec();
        let (mut closed, mut warnings) = (Vec::new(), Vec::new());
        loop {
            let error = match Self::of(&adapters, model, devices, options, progress) {
                Ok(mut calibration) => {
                    calibration.closed = closed;
                    calibration.warnings.splice(0..0, warnings);
                    return Ok(calibration);
                }
                Err(error) => error,
            };
            let Error::Device { device, cause } = &error else { return Err(error) };
            let at = adapters.iter().position(|adapter| adapter.label() == *device);
            let Some(at) = at.filter(|_| adapters.len() > 1) else { return Err(error) };
            warnings.push(format!("cannot open {device}, leaving it out: {cause}"));
            closed.push(adapters.remove(at).label());
        }
    }

    /// Times what is not known of some of the devices.
    fn of(
        adapters: &[Adapter],
        model: &Model,
        devices: &Devices,
        options: &CalibrationOptions,
        progress: &(dyn Fn(u64, u64) + Sync),
    ) -> Result<Self> {
        let steps = Steps::new(model, options)?;
        let mut kept = Kept::new(options.folder.clone());
        let mut found = Found::new(adapters, &steps, &kept, options.force)?;
        if found.is_complete(options.limit.is_some()) {
            return Ok(found.into_calibration());
        }
        let lock = kept.lock(if options.limit.is_some() { QUICK_PATIENCE } else { PATIENCE });
        if lock.waited && !options.force {
            found = Found::new(adapters, &steps, &kept, false)?;
            if found.is_complete(options.limit.is_some()) {
                return Ok(found.into_calibration());
            }
        }
        let total =
            found.missing_profiles() as u64 * (steps.count() + 1) + found.missing_links().len() as u64;
        let done = AtomicU64::new(0);
        let tick = || progress(done.fetch_add(1, Ordering::Relaxed) + 1, total);
        let budget = Budget::new(options.limit);
        Job { steps: &steps, kept: &kept, seconds: options.seconds, budget, tick: &tick }.run(devices, found)
    }

    /// What was kept of the selected devices; nothing is timed.
    ///
    /// # Errors
    /// If the model cannot be lowered.
    pub fn kept(model: &Model, devices: &Devices, options: &CalibrationOptions) -> Result<Self> {
        let steps = Steps::new(model, options)?;
        let kept = Kept::new(options.folder.clone());
        Ok(Found::new(devices.selected(), &steps, &kept, false)?.into_calibration())
    }

    /// Marks the kept profiles that a run contradicts, so that the next calibration times those devices again, and returns
    /// the devices' labels. `devices` are the facts that the comparison rests on; `folder` is as in [`CalibrationOptions`]. A
    /// profile that was made because of such a mark is not marked again for 30 days.
    pub fn contradict(
        devices: &[DeviceFacts],
        comparison: &Comparison,
        folder: Option<PathBuf>,
    ) -> Vec<String> {
        let kept = Kept::new(folder);
        let contradicted = devices.iter().filter(|device| {
            let Some(profile) = &device.profile else { return false };
            let own = |part: &&ComparedPart| part.place == Place::Stage && part.device == device.label;
            comparison.parts.iter().filter(own).any(is_contradiction) && kept.contradict(profile)
        });
        contradicted.map(|device| device.label.clone()).collect()
    }

    /// The profile of a device.
    pub fn profile(&self, label: &str) -> Option<&Arc<Profile>> {
        self.profiles.iter().find(|(own, _)| own == label).map(|(_, profile)| profile)
    }

    /// Facts of devices with what was measured of them.
    pub fn apply(&self, facts: Vec<DeviceFacts>) -> Vec<DeviceFacts> {
        let with = |facts: DeviceFacts| match self.profile(&facts.label) {
            Some(profile) => facts.with_profile(Arc::clone(profile)),
            None => facts,
        };
        facts.into_iter().map(with).collect()
    }
}

/// Whether a stage took so much more or less than predicted that no chance explains it.
fn is_contradiction(part: &ComparedPart) -> bool {
    let fewest = match part.phase {
        Phase::Decode => CONTRADICTING_STEPS,
        Phase::Prefill => CONTRADICTING_CHUNKS,
    };
    let factor = 1.0 + part.deviation;
    part.micro_batches >= fewest && !(1.0 / CONTRADICTING_FACTOR..=CONTRADICTING_FACTOR).contains(&factor)
}

fn is_processor(adapter: &Adapter) -> bool {
    matches!(adapter.kind, AdapterKind::Cpu | AdapterKind::Software)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ragtag_scheduler::FigureSource;

    #[test]
    fn a_run_contradicts_a_profile_once() {
        let folder = tempfile::tempdir().unwrap();
        let folder = || Some(folder.path().to_owned());
        let profile = kept::tests::profile(kept::now_unix_s());
        let kept = Kept::new(folder());
        kept.keep_profile(&profile);
        let facts = DeviceFacts::assumed("cpu:0", AdapterKind::Cpu, 1, 1 << 30, FigureSource::User);
        let facts = [facts.with_profile(Arc::new(profile.clone()))];
        let part = |micro_batches: u64, deviation: f64| ComparedPart {
            place: Place::Stage,
            index: 0,
            device: "cpu:0".into(),
            to: None,
            phase: Phase::Decode,
            micro_batches,
            rows: 1.0,
            bytes: 0.0,
            predicted_us: 100.0,
            measured_us: 100.0 * (1.0 + deviation),
            spread: None,
            waited_us: 0.0,
            deviation,
            parts: Default::default(),
            finding: None,
        };
        let contradicted = |micro_batches: u64, deviation: f64| {
            let comparison =
                Comparison { parts: vec![part(micro_batches, deviation)], ..Comparison::default() };
            Calibration::contradict(&facts, &comparison, folder())
        };
        assert!(contradicted(100, 0.4).is_empty() && contradicted(100, -0.3).is_empty());
        assert!(contradicted(5, 9.0).is_empty(), "too few to tell");
        assert!(kept.profile(&profile.identity).is_some());
        assert_eq!(contradicted(100, 0.6), ["cpu:0"]);
        assert!(kept.profile(&profile.identity).is_none(), "it is measured again");
        let again = kept::tests::profile(profile.measured_unix_s - 1);
        kept.keep_profile(&again);
        assert_eq!(kept.profile(&profile.identity), Some(again.clone()));
        let facts = [facts[0].clone().with_profile(Arc::new(again))];
        let comparison = Comparison { parts: vec![part(100, -0.5)], ..Comparison::default() };
        assert!(Calibration::contradict(&facts, &comparison, folder()).is_empty(), "the new one stays");
    }
}
