//! Calibration. It times segments with the model's shapes on each device, and probes the links between the
//! devices. It caches the results on disk.
//!
//! All CPU devices are timed at the same time, because they also work at the same time in a pipeline and
//! share caches and memory bandwidth. Every other device is timed alone. CPU devices with the same number of
//! threads share one profile, which is the mean of their measured profiles.

mod apis;
mod budget;
mod file;
mod filling;
mod found;
mod hand_over;
mod job;
mod kept;
mod links;
mod measure;
mod pipeline;
mod stats;
mod steps;
mod sweep;

use crate::devices::Devices;
use crate::error::{Error, Result};
use crate::model::Model;
pub(crate) use apis::fastest as fastest_apis;
use budget::Budget;
use found::KnownFacts;
use job::Job;
pub(crate) use kept::{Kept, TriedKernel, now_unix_s};
pub(crate) use links::Topology;
pub use links::{Hop, LinkClass, LinkOptions, LinkRate, LinkReport, ProbedLink, TriedRoute};
use ragtag_hal::{Adapter, AdapterKind};
use ragtag_kernels::{Activations, KvType};
use ragtag_planner::cost::Profile;
use ragtag_planner::{DeviceFacts, Figure, Place};
use ragtag_scheduler::compare::{ComparedPart, Comparison, Phase};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use steps::Steps;

/// A run contradicts a profile if measured and predicted times differ by more than this factor, in either
/// direction. The run must have at least the following numbers of decode steps or chunks.
const CONTRADICTING_FACTOR: f64 = 1.5;
const CONTRADICTING_STEPS: u64 = 16;
const CONTRADICTING_CHUNKS: u64 = 8;

/// If host memory has room for this many times the weights of a model, no plan streams from the model's file.
const ROOM: u64 = 2;

/// Default wall time limit of a calibration. It is slightly shorter than the documented 3 seconds.
const USUAL_LIMIT: Duration = Duration::from_millis(2700);

/// Maximum time to wait for another process that is calibrating. The first value applies to quick probes and to
/// calibrations with a time limit, the second to all others.
const QUICK_LOCK_WAIT: Duration = Duration::from_secs(10);
const LOCK_WAIT: Duration = Duration::from_secs(120);

/// Options for [`Calibration::run`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct CalibrationOptions {
    /// Type of activations in matmuls with quantized weights.
    pub activations: Activations,
    /// Element type of the KV cache.
    pub kv: KvType,
    /// Maximum number of rows of a prefill micro-batch.
    pub chunk: u32,
    /// Maximum number of sequences in one decode step.
    pub sequences: u32,
    /// Approximate duration of the measurements on each device in seconds. It applies only if `limit` is
    /// `None`.
    pub seconds: f64,
    /// Wall time limit for the measurements on all devices, excluding kernel compilation and probes of links.
    /// The default is just under 3 seconds. Calibration takes the most important measurements first. If the
    /// time runs out, it caches and uses incomplete profiles.
    pub limit: Option<Duration>,
    /// Whether to ignore cached results, to time all devices and to probe all links again.
    pub force: bool,
    /// Cache folder. The default is `profiles` in `RAGTAG_CACHE_DIR`, or `ragtag/profiles` in the user's
    /// cache folder.
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

/// Measured profiles of devices and of the links between them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Calibration {
    /// Labels of the devices, each with its profile.
    pub profiles: Vec<(String, Arc<Profile>)>,
    /// Probed links between the devices.
    pub links: LinkReport,
    /// Labels of the devices, each with the rate at which the host reads weights for it from the model's file.
    /// Empty if host memory has room for all weights.
    pub file_rates: Vec<(String, Figure)>,
    /// Labels of the devices that this calibration has timed. All other profiles come from the cache.
    pub timed: Vec<String>,
    /// Labels of the devices that could not be opened, or that have a link without a verified route.
    /// [`Planner::calibrated`](crate::Planner::calibrated) excludes these devices.
    pub closed: Vec<String>,
    /// Warnings for the user, for example about a device that cannot be opened or whose times drift.
    pub warnings: Vec<String>,
    /// Reason why some results could not be cached, if any. These results are valid, but the next calibration
    /// measures them again.
    pub unkept: Option<String>,
}

impl Calibration {
    /// Times the selected devices and makes a quick probe of the links between them, except those with cached
    /// results. Calls `progress` with the number of finished steps and the total number of steps. Does not
    /// call it if all results are cached.
    ///
    /// # Errors
    /// Fails if the model cannot be lowered, or if no device can be opened. If only some devices cannot be
    /// opened or timed, returns a warning for each of them instead. Also warns if a probe has found no
    /// verified route between two devices.
    pub fn run(
        model: &Model,
        devices: &Devices,
        options: &CalibrationOptions,
        progress: &(dyn Fn(u64, u64) + Sync),
    ) -> Result<Self> {
        let (steps, mut adapters) = (Steps::new(model, options)?, devices.selected().to_vec());
        let (mut closed, mut warnings) = (Vec::new(), Vec::new());
        let probing = LinkOptions { reprobe: options.force, ..LinkOptions::quick(options.folder.clone()) };
        let known = KnownFacts::new(&adapters, &steps, &Kept::new(options.folder.clone()), options.force)?;
        let total = LinkReport::missing_steps(devices, &probing) + known.missing_steps(&steps);
        let done = AtomicU64::new(0);
        let tick = || {
            let done = done.fetch_add(1, Ordering::Relaxed) + 1;
            progress(done, total.max(done));
        };
        let mut links = match adapters.len() {
            0 | 1 => LinkReport::default(),
            // If too few devices can be opened, timing them returns the error.
            _ => LinkReport::run(devices, &probing, &|_, _| tick())
                .unwrap_or_else(|_| LinkReport::kept(devices, options.folder.clone())),
        };
        let mut labels = devices.labels();
        while let Some((at, why)) = links.without_route(&labels) {
            adapters.remove(at);
            let label = labels.remove(at);
            warnings.push(format!(
                "leaving {label} out: {why} (to probe again, use ragtag devices --links --reprobe)"
            ));
            closed.push(label);
        }
        loop {
            let error = match Self::of(&adapters, &steps, devices, options, &tick) {
                Ok(mut calibration) => {
                    if let Some(most) =
                        devices.host_memory_bytes(0).filter(|bytes| bytes / ROOM < steps.bytes())
                    {
                        let free = devices.free_host_bytes().unwrap_or(most);
                        let stays = free.saturating_sub(most) >= steps.bytes();
                        calibration.file_rates = file::rates(model, &steps, &adapters, stays);
                    }
                    calibration.unkept = calibration.unkept.or(links.unkept.take());
                    calibration.links = links;
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

    /// Times the devices in `adapters`, except those with cached results.
    fn of(
        adapters: &[Adapter],
        steps: &Steps,
        devices: &Devices,
        options: &CalibrationOptions,
        tick: &(dyn Fn() + Sync),
    ) -> Result<Self> {
        let mut kept = Kept::new(options.folder.clone());
        let mut found = KnownFacts::new(adapters, steps, &kept, options.force)?;
        if found.is_complete() {
            return Ok(found.into_calibration());
        }
        let lock = kept.lock(if options.limit.is_some() { QUICK_LOCK_WAIT } else { LOCK_WAIT });
        if lock.waited && !options.force {
            found = KnownFacts::new(adapters, steps, &kept, false)?;
            if found.is_complete() {
                return Ok(found.into_calibration());
            }
        }
        let budget = Budget::new(options.limit);
        Job { steps, kept: &kept, seconds: options.seconds, budget, tick }.run(devices, found)
    }

    /// Returns the cached results of the selected devices, without timing anything.
    ///
    /// # Errors
    /// Fails if the model cannot be lowered.
    pub fn kept(model: &Model, devices: &Devices, options: &CalibrationOptions) -> Result<Self> {
        let steps = Steps::new(model, options)?;
        let kept = Kept::new(options.folder.clone());
        let calibration = KnownFacts::new(devices.selected(), &steps, &kept, false)?.into_calibration();
        Ok(Self { links: LinkReport::kept(devices, options.folder.clone()), ..calibration })
    }

    /// Marks the cached profiles that a run contradicts, so that the next calibration times these devices
    /// again. Returns the labels of the devices.
    ///
    /// `devices` are the device descriptions from which the predictions in `comparison` were computed.
    /// `folder` has the same meaning as in [`CalibrationOptions`]. After a profile has been marked, its
    /// replacement cannot be marked for 30 days.
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

    /// Returns the profile of the device with the given label, if there is one.
    pub fn profile(&self, label: &str) -> Option<&Arc<Profile>> {
        self.profiles.iter().find(|(own, _)| own == label).map(|(_, profile)| profile)
    }

    /// Adds the measured profiles and rates to the descriptions of their devices.
    pub fn apply(&self, facts: Vec<DeviceFacts>) -> Vec<DeviceFacts> {
        let with = |facts: DeviceFacts| {
            let rate = self.file_rates.iter().find(|(label, _)| *label == facts.label);
            let file_bytes_per_s = rate.map_or(facts.file_bytes_per_s, |(_, rate)| *rate);
            let facts = DeviceFacts { file_bytes_per_s, ..facts };
            match self.profile(&facts.label) {
                Some(profile) => facts.with_profile(Arc::clone(profile)),
                None => facts,
            }
        };
        facts.into_iter().map(with).collect()
    }
}

/// Returns whether the measured time of a stage differs from its prediction by more than
/// [`CONTRADICTING_FACTOR`], over enough micro-batches.
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
    use ragtag_planner::FigureSource;

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
            is_prefill_stage: false,
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
        assert!(contradicted(5, 9.0).is_empty(), "too few steps");
        assert!(kept.profile(&profile.identity).is_some());
        assert_eq!(contradicted(100, 0.6), ["cpu:0"]);
        assert!(kept.profile(&profile.identity).is_none(), "it is measured again");
        let again = kept::tests::profile(profile.measured_unix_s - 1);
        kept.keep_profile(&again);
        assert_eq!(kept.profile(&profile.identity), Some(again.clone()));
        let facts = [facts[0].clone().with_profile(Arc::new(again))];
        let comparison = Comparison { parts: vec![part(100, -0.5)], ..Comparison::default() };
        assert!(Calibration::contradict(&facts, &comparison, folder()).is_empty(), "the new profile is kept");
    }
}
