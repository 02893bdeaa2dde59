//! Runs one calibration: times devices in order of importance, and caches the results.

use super::budget::Budget;
use super::found::{Known, KnownFacts};
use super::hand_over;
use super::kept::{Kept, now_unix_s};
use super::measure::Timer;
use super::steps::Steps;
use super::{Calibration, is_processor};
use crate::devices::Devices;
use crate::error::{Error, Result};
use ragtag_planner::cost::Profile;
use ragtag_scheduler::SoloDevice;
use std::time::Duration;

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
    pub(super) budget: Budget,
    pub(super) tick: &'a (dyn Fn() + Sync),
}

/// A measured profile, the warnings about it, and the compilation time that does not count towards the
/// budget.
type Timed = (Profile, Vec<String>, Duration);

impl Job<'_> {
    pub(super) fn run(&self, devices: &Devices, mut found: KnownFacts) -> Result<Calibration> {
        let labels: Vec<_> = found.devices.iter().map(|known| known.adapter.label()).collect();
        let (mut timed, mut warnings) = (Vec::new(), Vec::new());
        let opened = devices.open(&labels)?;
        let mut solo: Vec<_> =
            opened.into_iter().map(|(_, device)| SoloDevice::new(Box::new(device))).collect();
        for (index, outcome) in self.profiles(&found.devices, &mut solo) {
            match outcome {
                Ok((profile, more, _)) => {
                    timed.push(index);
                    warnings.extend(more);
                    found.devices[index].profile = Some(self.merged(profile, &found.devices[index]));
                }
                Err(error) => warnings.push(format!("cannot calibrate {}: {error}", labels[index])),
            }
        }
        self.share_profiles(&mut found.devices, &timed);
        // Closes the devices, because the pipelines below open them again.
        drop(solo);
        for &index in &timed {
            if let Err(error) = self.hand_over(devices, &mut found.devices, index) {
                warnings.push(format!("cannot time the hand-over of {}: {error}", labels[index]));
            }
            (self.tick)();
        }
        let timed = timed.into_iter().map(|index| labels[index].clone()).collect();
        let unkept = self.kept.failure().map(str::to_owned);
        Ok(Calibration { timed, warnings, unkept, ..found.into_calibration() })
    }

    /// Times all devices without a complete profile. Returns the index and the result of each of them.
    fn profiles(&self, known: &[Known], solo: &mut [SoloDevice]) -> Vec<(usize, Result<Timed>)> {
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
            if let Ok((_, _, excused)) = &outcome {
                self.budget.excuse(*excused);
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
                    let timer = move || Timer { steps, seconds, budget, tick };
                    (index, scope.spawn(move || timed(&timer(), known, device)))
                })
                .collect();
            let mut longest = Duration::ZERO;
            for (index, thread) in threads {
                let panicked = |_| Err(Error::Usage("a calibration thread panicked".into()));
                let outcome = thread.join().unwrap_or_else(panicked);
                longest = outcome.as_ref().map_or(longest, |(_, _, excused)| longest.max(*excused));
                outcomes.push((index, outcome));
            }
            self.budget.excuse(longest);
        });
        outcomes
    }

    fn profile(&self, known: &Known, device: &mut SoloDevice, budget: Budget) -> Result<Timed> {
        timed(&Timer { steps: self.steps, seconds: self.seconds, budget, tick: self.tick }, known, device)
    }

    /// Returns the new profile of a device, extended by samples from the device's previous profile.
    fn merged(&self, profile: Profile, known: &Known) -> Profile {
        let mut profile = Profile { measured_unix_s: now_unix_s(), ..profile };
        if let Some(before) = &known.profile {
            profile.merge(before);
        }
        profile
    }

    /// Caches the new profiles. Replaces the profiles of devices with the same identity, such as equal parts
    /// of a CPU, by their mean.
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
            self.kept.keep_profile(&mean);
            alike.into_iter().for_each(|at| devices[at].profile = Some(mean.clone()));
        }
    }

    /// Times the hand-over and the token return of a device and caches them in its profile. Times only the
    /// first of several devices with the same identity.
    fn hand_over(&self, devices: &Devices, known: &mut [Known], index: usize) -> Result<()> {
        let has_time = self.budget.left(HAND_OVERS_END) >= SHORTEST_PIPELINE && self.steps.times_head();
        let identity = known[index].identity.clone();
        let is_first = known.iter().position(|other| other.identity == identity) == Some(index);
        let label = known[index].adapter.label();
        let Some(profile) = known[index].profile.as_mut() else { return Ok(()) };
        if self.steps.window.is_empty() || !has_time || !is_first {
            return Ok(());
        }
        let budget = self.budget.part(HAND_OVERS_END, 1.0);
        let measured = hand_over::measure(devices, self.steps, &label, profile, &budget)?;
        if let Some(measured) = measured {
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

fn timed(timer: &Timer<'_>, known: &Known, device: &mut SoloDevice) -> Result<Timed> {
    let (profile, warnings) = timer.profile(&known.identity, device)?;
    Ok((profile, warnings, timer.budget.excused()))
}
