//! Recovery from the failure of a device, and changes of devices. A thread of the engine plans for the devices that are left,
//! loads the stages, and lets the requests go on. No token is lost.
//!
//! The new plan keeps the types of activations and of keys and values, and if they fit, the context and the prefill chunk.
//! A device that has failed is not used for a minute, and twice as long after each further failure. It may then be part of
//! the plan after the next failure of another device, and after the next change.
//!
//! While the engine runs, the thread plans for the failure of each device ([`crate::standby`]).

use crate::device_change::{SharedWanted, Wanted};
use crate::devices::Devices;
use crate::error::{Error, Result};
use crate::fitting::Fitting;
use crate::held::Current;
use crate::model::Model;
use crate::planner::Planner;
use crate::prepared::{Options, Prepared, compile};
use crate::standby::{StandbyPlan, StandbyPlans};
use ragtag_planner::plan::{Plan, PlanStage};
use ragtag_scheduler::{Error as RunError, Interruption, Recovery};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Default of the command for [`EngineOptions::max_recoveries`](crate::EngineOptions::max_recoveries).
pub const MAX_RECOVERIES: u32 = 8;
/// Period in which recoveries are counted.
const PERIOD: Duration = Duration::from_secs(3600);
/// Time for which a device is not used after its first failure.
const QUIET: Duration = Duration::from_secs(60);
/// Reciprocal of the share of its memory that a device loses to the next plan after it ran out of memory.
const SHORT_SHARE: u64 = 16;
/// Time after a start or a recovery until the engine plans for the next failure, so that a short run does not.
const SETTLED: Duration = Duration::from_millis(500);

/// News about the recovery of an engine.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum RecoveryNews {
    /// A device has failed, and the requests wait.
    Lost {
        /// Label of the device.
        device: String,
        /// Error of the run.
        error: RunError,
    },
    /// The requests go on.
    Recovered {
        /// The new plan.
        plan: Arc<Plan>,
        /// Time since the failure.
        after: Duration,
        /// Settings of the new plan that differ from those of the previous one, in words.
        changes: Vec<String>,
    },
    /// The requests go on after a change of the devices.
    Changed {
        /// The new plan.
        plan: Arc<Plan>,
        /// Time since the interruption.
        after: Duration,
        /// Settings of the new plan that differ from those of the previous one, in words.
        changes: Vec<String>,
    },
    /// The devices are free, and the requests wait.
    Suspended,
    /// The run ends, and each request with it.
    GivenUp {
        /// The reason, in words.
        reason: String,
    },
}

/// Callback for news about the recovery of an engine. A thread of the engine calls it.
pub type OnRecovery = Box<dyn FnMut(&RecoveryNews) + Send>;

/// State of the recovery of an engine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RecoveryState {
    /// Number of recoveries so far.
    pub recoveries: u64,
    /// Number of failures of each device, by label.
    pub lost: BTreeMap<String, u64>,
    /// Memory in bytes of devices that hung and were left behind, by label. A device frees it when it has finished its work.
    pub left_bytes: BTreeMap<String, u64>,
    /// Failure from which the engine recovers now, in words.
    pub recovers_from: Option<String>,
    /// Devices for whose failure a plan is ready, so that a recovery is quick.
    pub planned_for: Vec<String>,
    /// Number of changes of the devices so far.
    pub changes: u64,
    /// Whether the devices change now.
    pub is_changing: bool,
    /// Whether the engine is suspended.
    pub is_suspended: bool,
    /// Reason why the run has ended, if a failure has ended it, in words.
    pub ended_by: Option<String>,
}

/// The thread that recovers a pipeline, and what a change of the devices needs. Dropping it waits for the thread, which ends
/// soon after the pipeline.
#[derive(Debug)]
pub(crate) struct Supervisor {
    thread: Option<JoinHandle<()>>,
    pub(crate) wanted: SharedWanted,
    pub(crate) planner: Planner,
    /// The plan with which the engine started.
    pub(crate) first: Arc<Plan>,
    /// Held during a change of the devices.
    pub(crate) turn: Mutex<()>,
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// A pipeline with all that replaces its stages.
pub(crate) struct Supervised {
    recovery: Recovery,
    model: Model,
    planner: Planner,
    options: Options,
    current: Arc<Mutex<Current>>,
    /// The plan with which the engine started.
    first: Arc<Plan>,
    wanted: SharedWanted,
    /// The settings of the loaded stages.
    settings: Wanted,
    standby: StandbyPlans,
}

impl Supervised {
    pub(crate) fn new(
        recovery: Recovery,
        model: Model,
        devices: &Devices,
        planner: Planner,
        options: Options,
        current: Arc<Mutex<Current>>,
    ) -> Self {
        let first = Arc::clone(&Current::lock(&current).plan);
        let (settings, wanted) = (Wanted::new(devices), Arc::new(Mutex::new(Wanted::new(devices))));
        let standby = StandbyPlans::default();
        Self { recovery, model, planner, options, current, first, wanted, settings, standby }
    }

    /// Starts the thread. Without it, the next failure ends the run.
    pub(crate) fn start(self) -> Option<Supervisor> {
        let history = History { most: self.options.max_recoveries, ..History::default() };
        let (wanted, planner) = (Arc::clone(&self.wanted), self.planner.clone());
        let (first, turn) = (Arc::clone(&self.first), Mutex::new(()));
        let body = move || self.supervise(history);
        let thread = std::thread::Builder::new().name("ragtag recovery".into()).spawn(body);
        let thread = thread.inspect_err(|cause| tracing::warn!(%cause, "no thread for recoveries"));
        Some(Supervisor { thread: Some(thread.ok()?), wanted, planner, first, turn })
    }

    fn supervise(mut self, mut history: History) {
        while let Some(interruption) = self.wait(&history) {
            let handled = match &interruption.device {
                Some(device) => self.recover(&interruption.error, device, &mut history),
                None if interruption.has_stopped || self.settings.is_suspended => self.change(&mut history),
                None => {
                    // The change came while stages were replaced.
                    if Wanted::lock(&self.wanted).waiting.is_some() {
                        self.recovery.interrupt();
                    }
                    Ok(())
                }
            };
            match handled {
                Ok(()) => {}
                Err(Error::Run(RunError::Stopped)) => return,
                Err(cause) => return self.give_up(&interruption.error, cause.to_string()),
            }
        }
    }

    /// Waits for an interruption. Meanwhile, plans for the failure of each device.
    fn wait(&mut self, history: &History) -> Option<Interruption> {
        let mut limit = SETTLED;
        loop {
            if let ControlFlow::Break(interruption) = self.recovery.wait_for(limit) {
                return interruption;
            }
            let plan = self.current().plan.clone();
            let next = self.standby.next(&plan).filter(|_| !self.settings.is_suspended);
            let Some(device) = next else { return self.recovery.wait() };
            let standby = self.plan_without(history, &device, &plan);
            self.standby.add(device, standby);
            self.current().recovery.planned_for = self.standby.devices();
            limit = Duration::ZERO;
        }
    }

    /// Makes a plan for the failure of a device.
    fn plan_without(&self, history: &History, device: &str, before: &Plan) -> Option<StandbyPlan> {
        let (mut settings, mut excluded) = (self.settings.settings(), self.excluded(history, &self.settings));
        excluded.push(device.to_owned());
        excluded.sort_unstable();
        let known = |devices: &Devices| self.planner.clone().knowing(devices);
        let (planner, plan) = self.plan(history, &mut settings, &excluded, before, known).ok()?;
        let compiled = compile(&self.model, &settings.devices, &plan, &self.options).ok()?;
        Some(StandbyPlan { settings, planner, plan, compiled, excluded })
    }

    /// Lets the run end with the error of the device.
    fn give_up(&self, error: &RunError, reason: String) {
        tracing::warn!(reason, "the run ends");
        {
            let mut current = self.current();
            (current.recovery.recovers_from, current.recovery.ended_by) = (None, Some(error.to_string()));
            current.recovery.is_changing = false;
        }
        self.tell(&RecoveryNews::GivenUp { reason });
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        Current::lock(&self.current)
    }

    fn tell(&self, news: &RecoveryNews) {
        let mut callback = self.options.on_recovery.lock().unwrap_or_else(PoisonError::into_inner);
        callback.iter_mut().for_each(|tell| tell(news));
    }

    /// Ends the stopped stages, so that their memory is free. Returns the devices that hang, and what to say about each.
    fn clear(&self) -> BTreeMap<String, String> {
        let left = self.recovery.clear();
        let plan = {
            let mut current = self.current();
            current.claim = None;
            Arc::clone(&current.plan)
        };
        self.leave(&left, &plan)
    }

    /// Records the devices that hang and were left behind with the memory of the stages of `plan`. Returns what to say about
    /// each.
    fn leave(&self, left: &[String], plan: &Plan) -> BTreeMap<String, String> {
        let say = |device: &String| {
            let bytes = held_bytes(plan, device);
            *self.current().recovery.left_bytes.entry(device.clone()).or_default() += bytes;
            (device.clone(), format!("{device} hangs and keeps its memory ({} MiB)", bytes >> 20))
        };
        left.iter().map(say).collect()
    }

    /// Replaces the stages after a failure.
    fn recover(&mut self, error: &RunError, device: &str, history: &mut History) -> Result<()> {
        let since = Instant::now();
        tracing::warn!(device, %error, "a device has failed");
        *self.current().recovery.lost.entry(device.to_owned()).or_default() += 1;
        if !history.begin(since) {
            let most = history.most;
            return Err(Error::Usage(format!("the limit of recoveries within an hour is {most}")));
        }
        self.current().recovery.recovers_from = Some(error.to_string());
        self.tell(&RecoveryNews::Lost { device: device.to_owned(), error: error.clone() });
        let before = self.current().plan.clone();
        let standby = self.take_standby(history, error, device, &before);
        let (beside, left) = self.end_stages(standby.as_ref(), &before);
        let left = self.leave(&left, &before);
        let base = history.lose(error, device, &before, left.contains_key(device), since);
        let went_on = beside.or_else(|| self.go_on(standby.as_ref()?));
        let ((plan, mut changes), at) = match (standby, went_on) {
            (Some(StandbyPlan { settings, planner, .. }), Some(at)) => {
                (self.loaded(settings, &before, &planner), at)
            }
            _ => {
                self.recovery.forget_weights();
                let mut settings = self.settings.settings();
                (self.replace(history, &mut settings, &base)?, self.recovered())
            }
        };
        changes.extend(left.into_values());
        self.tell(&RecoveryNews::Recovered { plan, after: at - since, changes });
        Ok(())
    }

    /// Records that the requests go on. Returns the time.
    fn recovered(&self) -> Instant {
        let recovery = &mut self.current().recovery;
        (recovery.recoveries, recovery.recovers_from) = (recovery.recoveries + 1, None);
        Instant::now()
    }

    /// Takes the plan for the failure of `device`, if there is one that applies.
    fn take_standby(
        &mut self,
        history: &History,
        error: &RunError,
        device: &str,
        before: &Arc<Plan>,
    ) -> Option<StandbyPlan> {
        let mut excluded = self.excluded(history, &self.settings);
        if !history.is_new_shortage(error, device) {
            excluded.push(device.to_owned());
            excluded.sort_unstable();
        }
        self.standby.take(device, before, &excluded)
    }

    /// Waits until the stages of the plan `before` have ended. Meanwhile, loads the plan for the failure, if the devices have
    /// the memory for both. Returns the time at which the requests went on, if they did, and the devices that hang.
    fn end_stages(&self, standby: Option<&StandbyPlan>, before: &Plan) -> (Option<Instant>, Vec<String>) {
        let stopped = self.recovery.stopped();
        // Other hosts run the stages of one plan at a time.
        let is_here = |stage: &PlanStage| self.settings.devices.hosts.adapter(&stage.device).is_none();
        let is_alone =
            |standby: &&StandbyPlan| before.all_stages().chain(standby.plan.all_stages()).all(is_here);
        let (beside, left) = std::thread::scope(|scope| {
            let ending = scope.spawn(|| stopped.end());
            let beside = standby.filter(is_alone).and_then(|standby| self.go_on(standby));
            (beside, ending.join().unwrap_or_default())
        });
        if beside.is_none() {
            self.current().claim = None;
        }
        (beside, left)
    }

    /// Loads the plan for a failure, if the devices have the memory. Returns the time at which the requests went on.
    fn go_on(&self, standby: &StandbyPlan) -> Option<Instant> {
        let StandbyPlan { settings, plan, compiled, .. } = standby;
        let devices = &settings.devices;
        let loaded = Prepared::with(&self.model, devices, plan, compiled.clone(), &self.options)
            .and_then(|prepared| prepared.if_it_fits(&self.model, devices, plan, &self.recovery))
            .and_then(|prepared| self.load(prepared, plan));
        let failed = |error: &Error| tracing::debug!(%error, "the plan for the failure does not apply");
        loaded.inspect_err(failed).ok().map(|()| self.recovered())
    }

    /// Replaces the stages by those that a change wants. If this fails, loads stages on the same devices as before.
    fn change(&mut self, history: &mut History) -> Result<()> {
        let since = Instant::now();
        self.current().recovery.is_changing = true;
        let left = if self.settings.is_suspended { BTreeMap::new() } else { self.clear() };
        let mut wanted = Wanted::lock(&self.wanted).take();
        wanted.added.iter().for_each(|device| history.forgive(device));
        let waiting = wanted.waiting.take();
        let before = self.current().plan.clone();
        let first = Arc::clone(&self.first);
        let changed = match wanted.is_suspended {
            true => {
                self.settings = wanted.settings();
                Ok((Arc::clone(&before), Vec::new()))
            }
            false => match self.replace(history, &mut wanted, &first) {
                Err(error) => Err(self.undo(history, &before, error)?),
                done => done,
            },
        };
        let is_suspended = self.settings.is_suspended;
        {
            let recovery = &mut self.current().recovery;
            (recovery.is_changing, recovery.is_suspended) = (false, is_suspended);
            recovery.changes += u64::from(changed.is_ok());
        }
        let answer = changed.map(|(plan, mut changes)| {
            changes.extend(left.into_values());
            let after = since.elapsed();
            self.tell(&match is_suspended {
                true => RecoveryNews::Suspended,
                false => RecoveryNews::Changed { plan: Arc::clone(&plan), after, changes },
            });
            plan
        });
        // The caller may have gone.
        let _ = waiting.map(|waiting| waiting.send(answer));
        Ok(())
    }

    /// Loads stages on the devices of the previous ones, after a change has failed with `error`. A suspended engine stays
    /// suspended. Returns the error.
    fn undo(&mut self, history: &History, before: &Plan, error: Error) -> Result<Error> {
        if matches!(error, Error::Run(RunError::Stopped)) {
            return Err(error);
        }
        tracing::warn!(%error, "the devices cannot change");
        let mut settings = self.settings.settings();
        *Wanted::lock(&self.wanted) = settings.settings();
        if !settings.is_suspended {
            self.replace(history, &mut settings, before)?;
        }
        Ok(error)
    }

    /// Loads the stages of a plan that is near `base`, for the devices that are left. Plans again if a device is out of
    /// memory or fails. Returns the plan, and what differs from the previous one.
    fn replace(
        &mut self,
        history: &History,
        settings: &mut Wanted,
        base: &Plan,
    ) -> Result<(Arc<Plan>, Vec<String>)> {
        let before = self.current().plan.clone();
        let excluded = self.excluded(history, settings);
        let free = |devices: &Devices| self.planner.clone().with_free_memory(devices);
        let (planner, plan) = self.plan(history, settings, &excluded, base, free)?;
        let mut fitting = Fitting::recovering(planner, plan);
        while let Err(error) = self.start_on(&settings.devices, &fitting.plan) {
            fitting.next(&settings.devices, error)?;
        }
        Ok(self.loaded(settings.settings(), &before, fitting.planner()))
    }

    /// Records the settings of stages that were loaded. Returns their plan, and what differs from the previous one.
    fn loaded(&mut self, settings: Wanted, before: &Plan, planner: &Planner) -> (Arc<Plan>, Vec<String>) {
        self.settings = settings;
        let plan = self.current().plan.clone();
        let mut changes = changes(before, &plan);
        changes.extend(self.planner.ignored(planner));
        (plan, changes)
    }

    /// Returns the devices that must not be used, sorted by label.
    fn excluded(&self, history: &History, settings: &Wanted) -> Vec<String> {
        let mut excluded = history.excluded(Instant::now());
        excluded.extend(settings.removed.iter().cloned());
        excluded.sort_unstable();
        excluded
    }

    /// Makes a plan near `base` without the devices `excluded`. `planner` returns the planner for the selected devices. The
    /// CPU joins them if the model needs it and the selection is `auto`.
    fn plan(
        &self,
        history: &History,
        settings: &mut Wanted,
        excluded: &[String],
        base: &Plan,
        planner: impl Fn(&Devices) -> Planner,
    ) -> Result<(Planner, Plan)> {
        tracing::debug!(?excluded, "planning again");
        let near = |devices: &Devices| {
            let planner = planner(devices).avoiding(excluded);
            let short = history.short.iter();
            let less =
                |planner: Planner, (device, &bytes): (&String, &u64)| planner.holding_at_most(device, bytes);
            short.fold(planner, less).near(base)
        };
        match near(&settings.devices) {
            Ok(plan) => Ok(plan),
            // The selection `auto` leaves the CPU out only if there is a GPU.
            Err(error) => match settings.devices.joined_by_cpu() {
                Some(devices) => {
                    settings.devices = devices;
                    near(&settings.devices)
                }
                None => Err(error),
            },
        }
    }

    /// Prepares the stages of `plan`, and lets the requests go on with them.
    fn start_on(&self, devices: &Devices, plan: &Plan) -> Result<()> {
        self.load(Prepared::new(&self.model, devices, plan, &self.options)?, plan)
    }

    /// Loads the prepared stages of `plan`, and lets the requests go on with them.
    fn load(&self, prepared: Prepared, plan: &Plan) -> Result<()> {
        tracing::debug!(plan = %plan.split(), "loading the stages");
        self.recovery.restart(prepared.spec, &prepared.run, |_| ())?;
        prepared.claim.allocated();
        let mut current = self.current();
        (current.plan, current.stages) = (Arc::new(plan.clone()), prepared.stages.into());
        (current.since, current.claim) = (Instant::now(), Some(prepared.claim));
        current.recovery.planned_for.clear();
        Ok(())
    }
}

/// Returns the memory of a device that `plan` uses, in bytes.
fn held_bytes(plan: &Plan, device: &str) -> u64 {
    let stages = plan.all_stages().filter(|stage| stage.device == device);
    stages.map(|stage| stage.memory_bytes.total).fold(0, u64::saturating_add)
}

/// Failures so far.
#[derive(Debug, Default)]
struct History {
    /// Maximum number of recoveries within [`PERIOD`].
    most: u32,
    recent: VecDeque<Instant>,
    /// Number of failures of each device, and the time of the latest.
    lost: HashMap<String, (u32, Instant)>,
    /// Memory of devices that ran out of it, in bytes.
    short: HashMap<String, u64>,
}

impl History {
    /// Counts a recovery, unless the limit is reached.
    fn begin(&mut self, now: Instant) -> bool {
        while self.recent.pop_front_if(|at| now.saturating_duration_since(*at) >= PERIOD).is_some() {}
        let may = self.recent.len() < self.most as usize;
        self.recent.extend(may.then_some(now));
        may
    }

    /// Records the failure of a device. If it is short of memory for the first time, the next plan uses less of it, and
    /// smaller batches. In all other cases, the next plan does without the device. Returns the plan that the next one
    /// should be near to.
    fn lose(&mut self, error: &RunError, device: &str, plan: &Plan, is_left: bool, now: Instant) -> Plan {
        if self.is_new_shortage(error, device) && !is_left {
            let bytes = held_bytes(plan, device);
            self.short.insert(device.to_owned(), bytes - bytes.div_ceil(SHORT_SHARE));
            return Plan { chunk: plan.chunk.div_ceil(2), ..plan.clone() };
        }
        let (count, at) = self.lost.entry(device.to_owned()).or_insert((0, now));
        (*count, *at) = (*count + 1, now);
        plan.clone()
    }

    /// Returns whether a device is short of memory for the first time.
    fn is_new_shortage(&self, error: &RunError, device: &str) -> bool {
        let cause = match error {
            RunError::Stage { cause, .. } | RunError::Device { cause, .. } => Some(cause.root()),
            _ => None,
        };
        cause.is_some_and(ragtag_hal::Error::is_out_of_memory) && !self.short.contains_key(device)
    }

    /// Forgets the failures of a device.
    fn forgive(&mut self, device: &str) {
        self.lost.remove(device);
        self.short.remove(device);
    }

    /// Returns the devices that must not be used yet.
    fn excluded(&self, now: Instant) -> Vec<String> {
        let is_quiet = |(count, at): (u32, Instant)| {
            now.saturating_duration_since(at) < QUIET.saturating_mul(2u32.saturating_pow(count - 1))
        };
        let mut excluded: Vec<_> = self.lost.iter().filter(|(_, loss)| is_quiet(**loss)).collect();
        excluded.sort_unstable();
        excluded.into_iter().map(|(device, _)| device.clone()).collect()
    }
}

/// Describes the settings that differ between two plans.
fn changes(before: &Plan, after: &Plan) -> Vec<String> {
    let pairs = [
        ("context", before.context, after.context),
        ("prefill chunk", before.chunk, after.chunk),
        ("number of sequences", before.sequences, after.sequences),
    ];
    let changed = pairs.into_iter().filter(|(_, before, after)| before != after);
    changed.map(|(what, before, after)| format!("the {what} is {after}, before {before}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ragtag_planner::{DeviceFacts, FigureSource};

    fn lost(device: &str, cause: ragtag_hal::Error) -> RunError {
        RunError::Stage { stage: 0, device: device.into(), cause }
    }

    fn plan() -> Plan {
        let kind = ragtag_hal::AdapterKind::Cpu;
        let facts = DeviceFacts::assumed("a:0", kind, 1, 1 << 30, FigureSource::User);
        Planner::new(&Model::bundled().unwrap()).context(64).device_facts(vec![facts]).plan().unwrap()
    }

    #[test]
    fn recoveries_are_limited_per_hour() {
        let mut history = History { most: 2, ..History::default() };
        let start = Instant::now();
        let at = |minutes: u64| start + Duration::from_secs(60 * minutes);
        let begun = [0, 10, 20, 61, 62, 75].map(|minutes| history.begin(at(minutes)));
        assert_eq!(begun, [true, true, false, true, false, true]);
        assert!(!History::default().begin(start));
    }

    #[test]
    fn a_device_rests_twice_as_long_after_each_failure() {
        let (mut history, plan, start) = (History::default(), plan(), Instant::now());
        let gone = || lost("a:0", ragtag_hal::Error::Lost { cause: "unplugged".into() });
        let after = |seconds| start + Duration::from_secs(seconds);
        history.lose(&gone(), "a:0", &plan, false, start);
        let excluded = |history: &History, seconds| !history.excluded(after(seconds)).is_empty();
        assert_eq!([59, 60].map(|seconds| excluded(&history, seconds)), [true, false]);
        history.lose(&gone(), "a:0", &plan, false, after(100));
        assert_eq!([219, 220].map(|seconds| excluded(&history, seconds)), [true, false]);
    }

    #[test]
    fn a_device_that_is_short_of_memory_gets_less_before_it_is_left_out() {
        let (mut history, plan, now) = (History::default(), plan(), Instant::now());
        let short = lost("a:0", ragtag_hal::Error::OutOfMemory { wanted: 1, free: None });
        let base = history.lose(&short, "a:0", &plan, false, now);
        assert_eq!((base.chunk, base.context), (plan.chunk / 2, plan.context));
        assert!(history.excluded(now).is_empty());
        assert!(history.short["a:0"] < plan.stages[0].memory_bytes.total);
        history.lose(&short, "a:0", &plan, false, now);
        assert_eq!(history.excluded(now), ["a:0"]);
    }
}
