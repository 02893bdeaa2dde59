//! Profiles and links that are known from the cache or from this calibration, and lists of those that are
//! still missing.

use super::kept::Kept;
use super::steps::Steps;
use super::{Calibration, is_processor};
use crate::error::Result;
use ragtag_hal::Adapter;
use ragtag_planner::LinkFacts;
use ragtag_planner::cost::{Profile, ProfileIdentity};
use ragtag_transfer::Routes;
use std::sync::Arc;

/// A device with its profile, if the profile is known.
pub(super) struct Known {
    pub(super) adapter: Adapter,
    pub(super) identity: ProfileIdentity,
    pub(super) profile: Option<Profile>,
    /// Whether the profile is known and contains everything that this calibration needs.
    pub(super) complete: bool,
}

/// A link from one device to another: the indices of both devices, and the facts about the link if they are
/// known.
pub(super) struct KnownLink {
    pub(super) from: usize,
    pub(super) to: usize,
    /// Routes that the link takes.
    routes: Routes,
    pub(super) facts: Option<LinkFacts>,
}

/// All devices, and a link for each ordered pair of devices.
pub(super) struct KnownFacts {
    pub(super) devices: Vec<Known>,
    pub(super) links: Vec<KnownLink>,
}

impl KnownFacts {
    /// Reads the cached profiles and links of `adapters`. If `anew` is set, ignores the cache and treats all
    /// profiles and links as missing.
    pub(super) fn new(adapters: &[Adapter], steps: &Steps, kept: &Kept, anew: bool) -> Result<Self> {
        let mut devices = Vec::new();
        for adapter in adapters {
            let identity = steps.identity(adapter, together(adapters, adapter))?;
            let profile = if anew { None } else { kept.profile(&identity) };
            let complete = profile.as_ref().is_some_and(|profile| steps.is_served_by(profile));
            devices.push(Known { adapter: adapter.clone(), identity, profile, complete });
        }
        // If one CPU device needs timing, all CPU devices are timed, because they are timed together.
        if devices.iter().any(|k| !k.complete && is_processor(&k.adapter)) {
            devices.iter_mut().filter(|k| is_processor(&k.adapter)).for_each(|k| k.complete = false);
        }
        let all = 0..adapters.len();
        let pairs = all.clone().flat_map(|from| all.clone().map(move |to| (from, to)));
        let link = |(from, to): (usize, usize)| {
            let facts = if anew { None } else { kept.link(&adapters[from], &adapters[to]) };
            KnownLink { from, to, routes: kept.routes(&adapters[from], &adapters[to]), facts }
        };
        let links = pairs.filter(|(from, to)| from != to).map(link).collect();
        Ok(Self { devices, links })
    }

    /// Returns whether no device or link needs timing. A quick calibration tolerates missing links as long as
    /// one link is known. A missing link is assumed to be about as fast as the link in the opposite
    /// direction.
    pub(super) fn is_complete(&self, is_quick: bool) -> bool {
        let missing = self.missing_links().len();
        self.missing_profiles() == 0 && (missing == 0 || (is_quick && missing < self.links.len()))
    }

    /// Returns the number of devices that need timing.
    pub(super) fn missing_profiles(&self) -> usize {
        self.devices.iter().filter(|known| !known.complete).count()
    }

    /// Returns the links that need timing, as pairs of the sender's and the receiver's indices.
    pub(super) fn missing_links(&self) -> Vec<(usize, usize)> {
        let missing = self.links.iter().filter(|link| link.facts.is_none());
        missing.map(|link| (link.from, link.to)).collect()
    }

    /// Sets the facts about the link from device `from` to device `to`.
    pub(super) fn set_link(&mut self, (from, to): (usize, usize), facts: LinkFacts) {
        if let Some(link) = self.links.iter_mut().find(|link| (link.from, link.to) == (from, to)) {
            link.facts = Some(facts);
        }
    }

    /// Converts the known profiles and links to a [`Calibration`].
    pub(super) fn into_calibration(self) -> Calibration {
        let labels: Vec<_> = self.devices.iter().map(|known| known.adapter.label()).collect();
        let mut calibration = Calibration::default();
        let reverse = |link: &KnownLink| {
            let reverse = self.links.iter().find(|other| (other.to, other.from) == (link.from, link.to));
            let facts = reverse.and_then(|reverse| reverse.facts.clone());
            facts.map(|facts| LinkFacts { routes: link.routes.clone(), ..facts })
        };
        let links = self.links.iter().filter_map(|link| {
            let facts = link.facts.clone().or_else(|| reverse(link))?;
            Some((labels[link.from].clone(), labels[link.to].clone(), facts))
        });
        calibration.links.known = links.collect();
        let profiles = self.devices.into_iter().zip(&labels);
        calibration.profiles =
            profiles.filter_map(|(known, label)| Some((label.clone(), Arc::new(known.profile?)))).collect();
        calibration
    }
}

/// Returns the number of devices that are timed at the same time as `adapter`, including `adapter`.
fn together(adapters: &[Adapter], adapter: &Adapter) -> u32 {
    match is_processor(adapter) {
        true => adapters.iter().filter(|other| is_processor(other)).count() as u32,
        false => 1,
    }
}
