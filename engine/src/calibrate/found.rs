//! Profiles that are known from the cache or from this calibration.

use super::Calibration;
use super::kept::Kept;
use super::options::is_processor;
use super::steps::Steps;
use crate::error::Result;
use ragtag_hal::Adapter;
use ragtag_planner::cost::{Profile, ProfileIdentity};
use std::sync::Arc;

/// A device with its profile, if the profile is known.
pub(super) struct Known {
    pub(super) adapter: Adapter,
    pub(super) identity: ProfileIdentity,
    pub(super) profile: Option<Profile>,
    /// Whether the profile is known and contains everything that this calibration needs.
    pub(super) complete: bool,
    /// Reason why the profile must not be cached, if it is doubtful.
    pub(super) doubt: Option<String>,
}

/// All devices.
pub(super) struct KnownFacts {
    pub(super) devices: Vec<Known>,
}

impl KnownFacts {
    /// Reads the cached profiles of `adapters`. If `anew` is set, ignores the cache and treats all profiles as
    /// missing.
    pub(super) fn new(adapters: &[Adapter], steps: &Steps, kept: &Kept, anew: bool) -> Result<Self> {
        let mut devices = Vec::new();
        for adapter in adapters {
            let identity = steps.identity(adapter, together(adapters, adapter))?;
            let profile = if anew { None } else { kept.profile(&identity) };
            let complete = profile.as_ref().is_some_and(|profile| steps.is_served_by(profile));
            devices.push(Known { adapter: adapter.clone(), identity, profile, complete, doubt: None });
        }
        // If one CPU device needs timing, all CPU devices are timed, because they are timed together.
        if devices.iter().any(|k| !k.complete && is_processor(&k.adapter)) {
            devices.iter_mut().filter(|k| is_processor(&k.adapter)).for_each(|k| k.complete = false);
        }
        Ok(Self { devices })
    }

    /// Returns whether no device needs timing.
    pub(super) fn is_complete(&self) -> bool {
        self.devices.iter().all(|known| known.complete)
    }

    /// Returns the number of steps of timing the devices that need it.
    pub(super) fn missing_steps(&self, steps: &Steps) -> u64 {
        let missing = self.devices.iter().filter(|known| !known.complete);
        missing.count() as u64 * (steps.count() + 1)
    }

    /// Converts the known profiles to a [`Calibration`] without links.
    pub(super) fn into_calibration(self) -> Calibration {
        let named = |known: Known| Some((known.adapter.label(), Arc::new(known.profile?)));
        let profiles = self.devices.into_iter().filter_map(named).collect();
        Calibration { profiles, ..Calibration::default() }
    }
}

/// Returns the number of devices that are timed at the same time as `adapter`, including `adapter`.
fn together(adapters: &[Adapter], adapter: &Adapter) -> u32 {
    match is_processor(adapter) {
        true => adapters.iter().filter(|other| is_processor(other)).count() as u32,
        false => 1,
    }
}
