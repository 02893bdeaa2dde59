//! Runs one calibration: times devices in order of importance, and caches the results.

use super::Calibration;
use super::budget::Budget;
use super::busy::Meter;
use super::found::{Known, KnownFacts};
use super::hand_over;
use super::kept::{Kept, now_unix_s, profile_age};
use super::measure::{TimedProfile, Timer};
use super::options::is_processor;
use super::steps::Steps;
use crate::calibrate::solo::SoloDevice;
use crate::devices::Devices;
use crate::error::{Error, Result};
use ragtag_planner::cost::Profile;
use std::time::{Duration, Instant};

/// Fractions of the time budget at which calibration stops timing devices and hand-overs, respectively.
const DEVICES_END: f64 = 0.75;
const HAND_OVERS_END: f64 = 1.0;
/// Minimum time that must be left in the budget to start a calibration pipeline and to measure with it.
const SHORTEST_PIPELINE: Duration = Duration::from_millis(250);

/// State of one calibration.
pub(super) struct Job<'a> {
    pub(super) steps: &'a Steps,
    pub(super) kept: &'a Kept,
    pub(super) seconds: f64,
    /// Largest acceptable loss of time to other processes.
    pub(super) max_load: f64,
    pub(super) budget: Budget,
    pub(super) tick: &'a (dyn Fn() + Sync),
}

impl Job<'_> {
    pub(super) fn run(&self, devices: &Devices, mut found: KnownFacts) -> Result<Calibration> {
        let labels: Vec<_> = found.devices.iter().map(|known| known.adapter.label()).collect();
        let (mut timed, mut warnings) = (Vec::new(), Vec::new());
        let opened = devices.open(&labels)?;
        let mut solo: Vec<_> =
            opened.into_iter().map(|(_, device)| SoloDevice::new(Box::new(device))).collect();
        for (index, outcome) in self.trusted_profiles(&mut found.devices, &mut solo) {
            let known = &mut found.devices[index];
            match outcome {
                Ok(TimedProfile { profile, warnings: more, doubt, .. }) => {
                    timed.push(index);
                    warnings.extend(more);
                    known.doubt = doubt.why(self.max_load, cpus());
                    known.profile = Some(self.merged(profile, known));
                }
                Err(error) => {
                    let instead = match self.fall_back(known) {
                        Some(age) => format!(", using the speeds measured {age}"),
                        None => String::new(),
                    };
                    warnings.push(format!("cannot calibrate {}{instead}: {error}", labels[index]));
                }
            }
        }
        self.share_profiles(&mut found.devices, &timed);
        for known in &mut found.devices {
            let Some(why) = known.doubt.clone() else { continue };
            let (label, age) = (known.adapter.label(), self.fall_back(known));
            let instead = match age {
                Some(age) => format!("using the speeds measured {age}"),
                None => "using its speeds for this run only".into(),
            };
            warnings.push(format!("the calibration of {label} is doubtful, {instead}: {why}"));
        }
        // Closes the devices, because the pipelines below open them again.
        drop(solo);
        for &index in &timed {
            if let Err(error) = self.hand_over(devices, &mut found.devices, index) {
                warnings.push(format!("cannot time the hand-over of {}: {error}", labels[index]));
            }
            (self.tick)();
        }
        let timed = timed.into_iter().map(|index| labels[index].clone()).collect();
        let doubtful = found.devices.iter().filter(|known| known.doubt.is_some());
        let doubtful = doubtful.map(|known| known.adapter.label()).collect();
        let unkept = self.kept.failure().map(str::to_owned);
        Ok(Calibration { timed, doubtful, warnings, unkept, ..found.into_calibration() })
    }

    /// Times all devices without a complete profile. Times those with doubtful results again, in the same time, and
    /// returns the better results.
    fn trusted_profiles(
        &self,
        devices: &mut [Known],
        solo: &mut [SoloDevice],
    ) -> Vec<(usize, Result<TimedProfile>)> {
        let mut outcomes = self.profiles(devices, solo);
        let is_doubtful = |outcome: &Result<TimedProfile>| {
            outcome.as_ref().is_ok_and(|timed| timed.doubt.why(self.max_load, cpus()).is_some())
        };
        let doubtful: Vec<_> = outcomes.iter().filter(|(_, it)| is_doubtful(it)).map(|(at, _)| *at).collect();
        if doubtful.is_empty() {
            return outcomes;
        }
        let start = Instant::now();
        // CPU devices are timed together.
        let has_processors = doubtful.iter().any(|&at| is_processor(&devices[at].adapter));
        for (at, known) in devices.iter_mut().enumerate() {
            let again = doubtful.contains(&at) || (has_processors && is_processor(&known.adapter));
            known.complete |= !again;
        }
        let again = Job { budget: Budget::new(self.budget.whole()), tick: &|| (), ..*self };
        for (at, later) in again.profiles(devices, solo) {
            let Some((_, first)) = outcomes.iter_mut().find(|(index, _)| *index == at) else { continue };
            let is_better = match (&*first, &later) {
                (Ok(first), Ok(later)) => later.doubt.is_less_than(&first.doubt),
                (first, _) => first.is_err(),
            };
            if is_better {
                *first = later;
            }
        }
        self.budget.excuse(start.elapsed());
        outcomes
    }

    /// Replaces the profile of a device that was not measured reliably by the last reliable one, and returns the age of
    /// that one. Keeps the profile if there is no reliable one.
    fn fall_back(&self, known: &mut Known) -> Option<String> {
        let last = self.kept.last_good(&known.identity)?;
        let age = profile_age(&last);
        known.profile = Some(last);
        Some(age)
    }

    /// Times all devices without a complete profile. Returns the index and the result of each of them.
    fn profiles(&self, known: &[Known], solo: &mut [SoloDevice]) -> Vec<(usize, Result<TimedProfile>)> {
        let missing = |processors: bool| {
            let wanted = move |k: &Known| !k.complete && is_processor(&k.adapter) == processors;
            move |(_, (k, _)): &(usize, (&Known, &mut SoloDevice))| wanted(k)
        };
        let count = |processors: bool| {
            known.iter().filter(|k| !k.complete && is_processor(&k.adapter) == processors).count()
        };
        // CPU devices are timed concurrently, so all of them together count as one turn.
        let mut turns = count(false) + count(true).min(1);
        let mut outcomes = Vec::new();
        let mut budget = || {
            turns = turns.max(1) - 1;
            self.budget.part(DEVICES_END, 1.0 / (turns + 1) as f64)
        };
        let devices = known.iter().zip(solo.iter_mut()).enumerate();
        for (index, (known, device)) in devices.filter(missing(false)) {
            let outcome = self.profile(known, device, budget());
            if let Ok(timed) = &outcome {
                self.budget.excuse(timed.excused);
            }
            outcomes.push((index, outcome));
        }
        std::thread::scope(|scope| {
            let processors = known.iter().zip(solo.iter_mut()).enumerate().filter(missing(true));
            let whole = budget();
            let threads: Vec<_> = processors
                .map(|(index, (known, device))| {
                    let budget = whole.part(1.0, 1.0);
                    let (steps, seconds, tick) = (self.steps, self.seconds, self.tick);
                    let timer = move |device: &_| Timer::new(steps, seconds, budget, tick, device);
                    (index, scope.spawn(move || timer(device).profile(&known.identity, device)))
                })
                .collect();
            let mut longest = Duration::ZERO;
            for (index, thread) in threads {
                let panicked = |_| Err(Error::Usage("a calibration thread panicked".into()));
                let outcome = thread.join().unwrap_or_else(panicked);
                longest = outcome.as_ref().map_or(longest, |timed| longest.max(timed.excused));
                outcomes.push((index, outcome));
            }
            self.budget.excuse(longest);
        });
        outcomes
    }

    fn profile(&self, known: &Known, device: &mut SoloDevice, budget: Budget) -> Result<TimedProfile> {
        Timer::new(self.steps, self.seconds, budget, self.tick, device).profile(&known.identity, device)
    }

    /// Returns the new profile of a device, extended by samples from the device's previous profile.
    fn merged(&self, profile: Profile, known: &Known) -> Profile {
        let mut profile = Profile { measured_unix_s: now_unix_s(), ..profile };
        if let Some(before) = &known.profile {
            profile.merge(before);
        }
        profile
    }

    /// Caches the new profiles, except doubtful ones. Replaces the profiles of devices with the same identity, such
    /// as equal parts of a CPU, by their mean.
    fn share_profiles(&self, devices: &mut [Known], timed: &[usize]) {
        for &index in timed {
            let identity = devices[index].identity.clone();
            let alike: Vec<_> = (0..devices.len()).filter(|&at| devices[at].identity == identity).collect();
            if alike.iter().find(|at| timed.contains(at)) != Some(&index) {
                continue;
            }
            let profiles = alike.iter().filter(|at| timed.contains(at));
            let profiles: Vec<_> = profiles.filter_map(|&at| devices[at].profile.as_ref()).collect();
            let Some(mean) = Profile::mean(&profiles) else { continue };
            let doubt = alike.iter().find_map(|&at| devices[at].doubt.clone());
            if doubt.is_none() {
                self.kept.keep_profile(&mean);
            }
            for at in alike {
                (devices[at].profile, devices[at].doubt) = (Some(mean.clone()), doubt.clone());
            }
        }
    }

    /// Times the hand-over and the token return of a device and caches them in its profile. Times only the
    /// first of several devices with the same identity, and none with a doubtful profile.
    fn hand_over(&self, devices: &Devices, known: &mut [Known], index: usize) -> Result<()> {
        let has_time = self.budget.left(HAND_OVERS_END) >= SHORTEST_PIPELINE && self.steps.times_head();
        let identity = known[index].identity.clone();
        let is_first = known.iter().position(|other| other.identity == identity) == Some(index);
        let (label, is_doubtful) = (known[index].adapter.label(), known[index].doubt.is_some());
        let Some(profile) = known[index].profile.as_mut() else { return Ok(()) };
        if self.steps.window.is_empty() || !has_time || !is_first || is_doubtful {
            return Ok(());
        }
        let (budget, meter) = (self.budget.part(HAND_OVERS_END, 1.0), Meter::start());
        let measured = hand_over::measure(devices, self.steps, &label, profile, &budget)?;
        if let Some(measured) = measured.filter(|_| meter.lost() <= self.max_load) {
            profile.hand_over_us = measured.stage_us;
            profile.token_return = measured.token_return;
            let profile = profile.clone();
            self.kept.keep_profile(&profile);
            let alike = known.iter_mut().filter(|other| other.identity == identity);
            alike.for_each(|other| other.profile = Some(profile.clone()));
        }
        Ok(())
    }
}

fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, |cpus| cpus.get())
}
