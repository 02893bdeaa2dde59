//! Calibration: each device times the model's own segments at the model's own shapes, each pair of devices the way between
//! them. What was measured is kept on disk and taken from there the next time.
//!
//! Devices that are one processor are timed at the same time, since they work at the same time in a pipeline and share
//! caches and memory; every other device is timed alone.

mod hand_over;
mod kept;
mod measure;
mod miniature;
mod steps;

use crate::devices::Devices;
use crate::error::{Error, Result};
use crate::model::Model;
use kept::Kept;
use measure::Timer;
use ragtag_hal::{Adapter, AdapterKind};
use ragtag_kernels::{Activations, KvType};
use ragtag_scheduler::cost::Profile;
use ragtag_scheduler::{DeviceFacts, LinkFacts, Links, SoloDevice};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use steps::Steps;

/// What to time, and for how long.
#[derive(Clone, Debug, PartialEq)]
pub struct CalibrationOptions {
    /// Form of the activations in products with quantised weights.
    pub activations: Activations,
    /// Form of keys and values.
    pub kv: KvType,
    /// Most rows of a micro-batch of prefill.
    pub chunk: u32,
    /// Most sequences that decode together.
    pub sequences: u32,
    /// Seconds of timing for each device, about.
    pub seconds: f64,
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
            warnings.push(format!("{device} does not open and is left out: {cause}"));
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
        let kept = Kept::new(options.folder.clone());
        let mut known = Vec::new();
        for adapter in adapters {
            let identity = steps.identity(adapter, together(adapters, adapter))?;
            let profile = if options.force { None } else { kept.profile(&identity) };
            let complete = profile.as_ref().is_some_and(|profile| steps.are_all_in(profile));
            known.push(Known { adapter: adapter.clone(), identity, profile, complete });
        }
        // Those that share a processor are timed together or not at all.
        if known.iter().any(|k| !k.complete && is_processor(&k.adapter)) {
            known.iter_mut().filter(|k| is_processor(&k.adapter)).for_each(|k| k.complete = false);
        }
        let pairs = link_pairs(&known);
        let link = |&(from, to): &(usize, usize)| {
            let facts =
                if options.force { None } else { kept.link(&known[from].adapter, &known[to].adapter) };
            (from, to, facts)
        };
        let links: Vec<_> = pairs.iter().map(link).collect();
        let mut calibration = Self::default();
        let labels: Vec<_> = adapters.iter().map(Adapter::label).collect();
        if known.iter().all(|k| k.complete) && links.iter().all(|(_, _, facts)| facts.is_some()) {
            calibration.profiles = known.into_iter().filter_map(Known::into_labelled).collect();
            calibration.links.known = named(&labels, links);
            return Ok(calibration);
        }
        let missing = known.iter().filter(|k| !k.complete).count() as u64;
        let total = missing * (steps.count() + 1)
            + links.iter().filter(|(_, _, facts)| facts.is_none()).count() as u64;
        let done = AtomicU64::new(0);
        let tick = || progress(done.fetch_add(1, Ordering::Relaxed) + 1, total);
        let job = Job { labels, model, steps: &steps, kept: &kept, seconds: options.seconds, tick: &tick };
        job.run(devices, known, links, &mut calibration)?;
        Ok(calibration)
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

/// A device with what was kept of it.
struct Known {
    adapter: Adapter,
    identity: ragtag_scheduler::cost::ProfileIdentity,
    profile: Option<Profile>,
    /// Whether nothing is missing in it.
    complete: bool,
}

impl Known {
    fn into_labelled(self) -> Option<(String, Arc<Profile>)> {
        self.profile.map(|profile| (self.adapter.label(), Arc::new(profile)))
    }
}

/// A link by the places of its devices, with what is known of it.
type KnownLink = (usize, usize, Option<LinkFacts>);

fn is_processor(adapter: &Adapter) -> bool {
    matches!(adapter.kind, AdapterKind::Cpu | AdapterKind::Software)
}

/// How many of the devices work at the same time as parts of one processor.
fn together(adapters: &[Adapter], adapter: &Adapter) -> u32 {
    match is_processor(adapter) {
        true => adapters.iter().filter(|other| is_processor(other)).count() as u32,
        false => 1,
    }
}

/// Every ordered pair.
fn link_pairs(known: &[Known]) -> Vec<(usize, usize)> {
    let all = 0..known.len();
    all.clone().flat_map(|from| all.clone().filter(move |&to| to != from).map(move |to| (from, to))).collect()
}

fn named(labels: &[String], links: Vec<KnownLink>) -> Vec<(String, String, LinkFacts)> {
    let named = |(from, to, facts): KnownLink| Some((labels[from].clone(), labels[to].clone(), facts?));
    links.into_iter().filter_map(named).collect()
}

/// The work of one calibration.
struct Job<'a> {
    labels: Vec<String>,
    model: &'a Model,
    steps: &'a Steps,
    kept: &'a Kept,
    seconds: f64,
    tick: &'a (dyn Fn() + Sync),
}

impl Job<'_> {
    fn run(
        &self,
        devices: &Devices,
        mut known: Vec<Known>,
        mut links: Vec<KnownLink>,
        calibration: &mut Calibration,
    ) -> Result<()> {
        let labels = &self.labels;
        let opened = devices.open(labels)?;
        let mut solo: Vec<_> =
            opened.into_iter().map(|(_, device)| SoloDevice::new(Box::new(device))).collect();
        let mut timed = Vec::new();
        let of_kind = |processors: bool| {
            let wanted = move |k: &Known| !k.complete && is_processor(&k.adapter) == processors;
            move |(_, (k, _)): &(usize, (&mut Known, &mut SoloDevice))| wanted(k)
        };
        let mut outcomes = Vec::new();
        for (index, (known, device)) in known.iter_mut().zip(&mut solo).enumerate().filter(of_kind(false)) {
            outcomes.push((index, self.profile(known, device)));
        }
        std::thread::scope(|scope| {
            let processors = known.iter_mut().zip(&mut solo).enumerate().filter(of_kind(true));
            let threads: Vec<_> = processors
                .map(|(index, (known, device))| (index, scope.spawn(move || self.profile(known, device))))
                .collect();
            for (index, thread) in threads {
                let panicked = |_| Err(Error::Usage("a thread that timed a device panicked".into()));
                outcomes.push((index, thread.join().unwrap_or_else(panicked)));
            }
        });
        for (index, outcome) in outcomes {
            match outcome {
                Ok(warnings) => {
                    timed.push(index);
                    calibration.timed.push(labels[index].clone());
                    calibration.warnings.extend(warnings);
                }
                Err(error) => {
                    calibration.warnings.push(format!("{} is not calibrated: {error}", labels[index]))
                }
            }
        }
        let missing: Vec<_> =
            links.iter().filter(|link| link.2.is_none()).map(|&(from, to, _)| (from, to)).collect();
        let is_missing = |link: &&mut KnownLink| missing.contains(&(link.0, link.1));
        for (from, to, facts) in links.iter_mut().filter(is_missing) {
            match measure::link(&mut solo, (*from, *to), self.steps.row_bytes()) {
                Ok(measured) => *facts = Some(measured),
                Err(error) => {
                    let (from, to) = (&labels[*from], &labels[*to]);
                    let warning = format!("the link from {from} to {to} is not calibrated: {error}");
                    calibration.warnings.push(warning);
                }
            }
            (self.tick)();
        }
        // What follows opens each device anew.
        drop(solo);
        for index in timed {
            if let Err(error) = self.hand_over(devices, &mut known[index]) {
                let warning = format!("the hand-over of {} is not timed: {error}", labels[index]);
                calibration.warnings.push(warning);
            }
            (self.tick)();
        }
        if let Err(error) = self.links_at_work(devices, &known, &mut links, &missing) {
            calibration.warnings.push(format!("links are timed between devices at rest alone: {error}"));
        }
        for (from, to, facts) in links.iter_mut().filter(is_missing) {
            if let Some(facts) = facts {
                self.kept.keep_link(&known[*from].adapter, &known[*to].adapter, facts);
            }
        }
        calibration.links.known = named(labels, links);
        calibration.profiles = known.into_iter().filter_map(Known::into_labelled).collect();
        calibration.unkept = self.kept.failure().map(str::to_owned);
        Ok(())
    }

    /// Times the missing links again between devices at work, all of them in a few pipelines.
    fn links_at_work(
        &self,
        devices: &Devices,
        known: &[Known],
        links: &mut [KnownLink],
        missing: &[(usize, usize)],
    ) -> Result<()> {
        let stages = known.iter().enumerate().filter(|_| !self.steps.window.is_empty());
        let stages = stages.filter_map(|(at, k)| Some((at, k.adapter.label(), k.profile.as_ref()?)));
        let stages: Vec<_> = stages.collect();
        for order in hand_over::orders(stages.len()) {
            let order: Vec<_> = order.into_iter().map(|at| &stages[at]).collect();
            let pairs: Vec<_> = order.windows(2).map(|pair| (pair[0].0, pair[1].0)).collect();
            if !pairs.iter().any(|pair| missing.contains(pair)) {
                continue;
            }
            let named: Vec<_> = order.iter().map(|(_, label, profile)| (label.clone(), *profile)).collect();
            let measured = hand_over::measure_links(devices, self.steps, &named)?;
            for (pair, facts) in pairs.iter().zip(measured).filter(|(pair, _)| missing.contains(pair)) {
                let link = links.iter_mut().find(|link| (link.0, link.1) == *pair);
                if let Some((link, facts)) = link.zip(facts) {
                    link.2 = Some(facts);
                }
            }
        }
        Ok(())
    }

    /// Times a device and keeps what comes out, together with what was measured elsewhere before; returns warnings.
    fn profile(&self, known: &mut Known, device: &mut SoloDevice) -> Result<Vec<String>> {
        let timer = Timer { model: self.model, steps: self.steps, seconds: self.seconds, tick: self.tick };
        let (mut profile, warnings) = timer.profile(&known.identity, device)?;
        if let Some(before) = &known.profile {
            profile.merge(before);
        }
        self.kept.keep_profile(&profile);
        known.profile = Some(profile);
        Ok(warnings)
    }

    /// Times what a token loses between stages, and keeps that, too.
    fn hand_over(&self, devices: &Devices, known: &mut Known) -> Result<()> {
        let Some(profile) = known.profile.as_mut().filter(|_| !self.steps.window.is_empty()) else {
            return Ok(());
        };
        let measured = hand_over::measure(devices, self.steps, &known.adapter.label(), profile)?;
        if let Some(measured) = measured {
            profile.hand_over_us = measured.stage_us;
            profile.token_return = measured.token_return;
            self.kept.keep_profile(profile);
        }
        Ok(())
    }
}
