//! Calibration. It times segments with the model's shapes on each device, and probes the links between the
//! devices. It caches the results on disk.
//!
//! All CPU devices are timed at the same time, because they also work at the same time in a pipeline and
//! share caches and memory bandwidth. Every other device is timed alone. CPU devices with the same number of
//! threads share one profile, which is the mean of their measured profiles.

mod apis;
mod budget;
mod busy;
mod doubt;
mod file;
mod filling;
mod found;
mod hand_over;
mod job;
mod kept;
mod links;
mod measure;
mod mend;
mod options;
mod pipeline;
pub(crate) mod solo;
mod stats;
mod steps;
mod sweep;

use crate::devices::Devices;
use crate::error::{Error, Result};
use crate::model::Model;
use budget::Budget;
pub use busy::Meter;
use found::KnownFacts;
use job::Job;
pub(crate) use kept::{Kept, now_unix_s};
pub use kept::{TriedKernel, profile_age};
pub(crate) use links::Topology;
pub use links::{Hop, LinkClass, LinkOptions, LinkRate, LinkReport, ProbedLink, TriedRoute};
pub use options::CalibrationOptions;
use options::{LOCK_WAIT, QUICK_LOCK_WAIT, USUAL_MAX_LOAD};
use ragtag_hal::Adapter;
use ragtag_planner::cost::Profile;
use ragtag_planner::{DeviceFacts, Figure, Plan};
use ragtag_scheduler::compare::Comparison;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use steps::Steps;

/// If host memory has room for this many times the weights of a model, no plan streams from the model's file.
const ROOM: u64 = 2;

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
    /// Labels of the closed devices that have a link without a verified route, each with the failure of one such link.
    pub unrouted: Vec<(String, String)>,
    /// Labels of the devices whose new measurements are doubtful, for example because other processes used the CPUs.
    /// Their profiles are the last reliable ones. A device without one has its doubtful profile.
    pub doubtful: Vec<String>,
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
        let (mut closed, mut unrouted, mut warnings) = (Vec::new(), Vec::new(), Vec::new());
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
            unrouted.push((label.clone(), why));
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
                    (calibration.closed, calibration.unrouted) = (closed, unrouted);
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
        let (seconds, max_load) = (options.seconds, options.max_load);
        Job { steps, kept: &kept, seconds, max_load, budget, tick }.run(devices, found)
    }

    /// Returns the cached results of the selected devices, without timing anything. Includes expired profiles.
    ///
    /// # Errors
    /// Fails if the model cannot be lowered.
    pub fn kept(model: &Model, devices: &Devices, options: &CalibrationOptions) -> Result<Self> {
        let steps = Steps::new(model, options)?;
        let kept = Kept::new(options.folder.clone());
        let mut found = KnownFacts::new(devices.selected(), &steps, &kept, false)?;
        for known in found.devices.iter_mut().filter(|known| known.profile.is_none()) {
            known.profile = kept.last_good(&known.identity);
        }
        let calibration = found.into_calibration();
        Ok(Self { links: LinkReport::kept(devices, options.folder.clone()), ..calibration })
    }

    /// Corrects the cached profiles by the times of a run that contradict them. Returns the labels of their devices.
    /// Does nothing if other processes took more than a tenth of the time from the run. `lost` is that fraction,
    /// from [`Meter::lost`]. Ignores devices that stream weights, because a drive or a bus may limit them.
    ///
    /// `devices` are the device descriptions from which the predictions in `comparison` were computed.
    /// `folder` has the same meaning as in [`CalibrationOptions`].
    pub fn mend(
        devices: &[DeviceFacts],
        plan: &Plan,
        comparison: &Comparison,
        lost: f64,
        folder: Option<PathBuf>,
    ) -> Vec<String> {
        let kept = Kept::new(folder);
        let (mut labels, mut seen) = (Vec::new(), Vec::new());
        let streams =
            |label: &str| plan.all_stages().any(|stage| stage.device == label && !stage.streamed.is_empty());
        let profiles = devices.iter().filter_map(|device| device.profile.as_ref());
        for profile in profiles.filter(|_| lost <= USUAL_MAX_LOAD) {
            let identity = &profile.identity;
            let is_alike = |device: &&DeviceFacts| {
                device.profile.as_ref().is_some_and(|profile| profile.identity == *identity)
            };
            let alike: Vec<_> = devices.iter().filter(is_alike).map(|device| device.label.as_str()).collect();
            let is_cached = |kept: Profile| kept.measured_unix_s == profile.measured_unix_s;
            let is_first = !seen.contains(&identity);
            seen.push(identity);
            if !is_first || alike.iter().any(|label| streams(label)) {
                continue;
            }
            let mended = mend::mended(profile, &alike, comparison);
            if let Some(mended) = mended.filter(|_| kept.last_good(identity).is_some_and(is_cached)) {
                kept.keep_profile(&mended);
                labels.extend(alike.into_iter().map(str::to_owned));
            }
        }
        labels
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

#[cfg(test)]
mod tests {
    use super::*;
    use ragtag_hal::AdapterKind;
    use ragtag_planner::{FigureSource, Place};
    use ragtag_scheduler::compare::Phase;

    #[test]
    fn a_run_corrects_the_cached_profile() {
        let folder = tempfile::tempdir().unwrap();
        let folder = || Some(folder.path().to_owned());
        let profile = kept::tests::profile(kept::now_unix_s());
        let kept = Kept::new(folder());
        let facts = DeviceFacts::assumed("cpu:0", AdapterKind::Cpu, 1, 1 << 30, FigureSource::User);
        let plan = crate::Planner::new(&Model::bundled().unwrap()).device_facts(vec![facts.clone()]);
        let plan = plan.context(64).plan().unwrap();
        let facts = [facts.with_profile(Arc::new(profile.clone()))];
        let part = mend::tests::part(Place::TokenReturn, Phase::Decode, 100, 0.0, 2.0);
        let comparison = Comparison { parts: vec![part], ..Comparison::default() };
        let mend = |lost| Calibration::mend(&facts, &plan, &comparison, lost, folder());
        let latency_us = || kept.profile(&profile.identity).map(|profile| profile.token_return.latency_us);
        assert_eq!((mend(0.0), latency_us()), (vec![], None), "it was not cached");
        kept.keep_profile(&profile);
        assert_eq!((mend(0.2), latency_us()), (vec![], Some(1.0)), "others disturbed the run");
        assert_eq!((mend(0.0), latency_us()), (vec!["cpu:0".to_owned()], Some(1001.0)));
        kept.keep_profile(&kept::tests::profile(profile.measured_unix_s - 9));
        assert_eq!((mend(0.0), latency_us()), (vec![], Some(1.0)), "the run did not use this profile");
    }

    #[test]
    fn an_expired_profile_is_the_last_good_one() {
        let folder = tempfile::tempdir().unwrap();
        let kept = Kept::new(Some(folder.path().to_owned()));
        let old = kept::tests::profile(kept::now_unix_s() - 31 * 24 * 3600);
        kept.keep_profile(&old);
        assert_eq!((kept.profile(&old.identity), kept.last_good(&old.identity)), (None, Some(old)));
    }
}
