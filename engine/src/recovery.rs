//! Recovery from the failure of a device. A thread of the engine plans for the devices that are left, loads the stages, and
//! lets the requests go on. No token is lost.
//!
//! The new plan keeps the types of activations and of keys and values, and if they fit, the context and the prefill chunk.
//! A device that has failed is not used for a minute, and twice as long after each further failure. It may then be part of
//! the plan after the next failure of another device.

use crate::devices::Devices;
use crate::error::{Error, Result};
use crate::fitting::Fitting;
use crate::held::Current;
use crate::model::Model;
use crate::planner::Planner;
use crate::prepared::{Options, Prepared};
use ragtag_planner::plan::Plan;
use ragtag_scheduler::{Error as RunError, Interruption, Recovery};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap, VecDeque};
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
    /// Failure from which the engine recovers now, in words.
    pub recovers_from: Option<String>,
    /// Reason why the run has ended, if a failure has ended it, in words.
    pub ended_by: Option<String>,
}

/// The thread that recovers a pipeline. Dropping it waits for the thread, which ends soon after the pipeline.
#[derive(Debug)]
pub(crate) struct Supervisor(Option<JoinHandle<()>>);

impl Drop for Supervisor {
    fn drop(&mut self) {
        let _ = self.0.take().map(JoinHandle::join);
    }
}

/// A pipeline with all that replaces its stages.
pub(crate) struct Supervised {
    pub(crate) recovery: Recovery,
    pub(crate) model: Model,
    pub(crate) devices: Devices,
    pub(crate) planner: Planner,
    pub(crate) options: Options,
    pub(crate) current: Arc<Mutex<Current>>,
}

impl Supervised {
    /// Starts the thread. Without it, the next failure ends the run.
    pub(crate) fn start(self) -> Option<Supervisor> {
        let history = History { most: self.options.max_recoveries, ..History::default() };
        let body = move || self.supervise(history);
        let thread = std::thread::Builder::new().name("ragtag recovery".into()).spawn(body);
        let thread = thread.inspect_err(|cause| tracing::warn!(%cause, "no thread for recoveries"));
        Some(Supervisor(Some(thread.ok()?)))
    }

    fn supervise(mut self, mut history: History) {
        while let Some(interruption) = self.recovery.wait() {
            let Interruption { error, device } = &interruption;
            tracing::warn!(device, %error, "a device has failed");
            *self.current().recovery.lost.entry(device.clone()).or_default() += 1;
            let reason = match history.begin(Instant::now()) {
                true => match self.recover(&interruption, &mut history) {
                    Ok(()) => continue,
                    Err(Error::Run(RunError::Stopped)) => return,
                    Err(cause) => cause.to_string(),
                },
                false => format!("the limit of recoveries within an hour is {}", history.most),
            };
            return self.give_up(error, reason);
        }
    }

    /// Lets the run end with the error of the device.
    fn give_up(&self, error: &RunError, reason: String) {
        tracing::warn!(reason, "the run ends");
        {
            let mut current = self.current();
            (current.recovery.recovers_from, current.recovery.ended_by) = (None, Some(error.to_string()));
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

    /// Replaces the stages after a failure.
    fn recover(&mut self, interruption: &Interruption, history: &mut History) -> Result<()> {
        let (Interruption { error, device }, since) = (interruption, Instant::now());
        self.current().recovery.recovers_from = Some(error.to_string());
        self.tell(&RecoveryNews::Lost { device: device.clone(), error: error.clone() });
        let left = self.recovery.clear();
        // The threads have freed their memory.
        self.current().claim = None;
        history.lose(interruption, &self.current().plan, left.contains(device), since);
        let (plan, mut changes) = self.replace(history)?;
        changes.extend(left.iter().map(|device| format!("{device} hangs and keeps its memory")));
        {
            let mut current = self.current();
            (current.recovery.recoveries, current.recovery.recovers_from) =
                (current.recovery.recoveries + 1, None);
        }
        self.tell(&RecoveryNews::Recovered { plan, after: since.elapsed(), changes });
        Ok(())
    }

    /// Loads the stages of a plan for the devices that are left. Plans again if a device is out of memory or fails.
    /// Returns the plan, and what differs from the previous one.
    fn replace(&mut self, history: &History) -> Result<(Arc<Plan>, Vec<String>)> {
        let before = self.current().plan.clone();
        let planner = self.planner_without(history, &before);
        let mut fitting = match planner.near(&before) {
            Ok((planner, plan)) => Fitting::recovering(planner, plan),
            // The selection `auto` leaves the CPU out only if there is a GPU.
            Err(error) => match self.devices.joined_by_cpu() {
                Some(devices) => {
                    self.devices = devices;
                    let (planner, plan) = self.planner_without(history, &before).near(&before)?;
                    Fitting::recovering(planner, plan)
                }
                None => return Err(error),
            },
        };
        while let Err(error) = self.load(&fitting.plan) {
            fitting.next(&self.devices, error)?;
        }
        let mut changes = changes(&before, &fitting.plan);
        changes.extend(self.planner.ignored(fitting.planner()));
        Ok((self.current().plan.clone(), changes))
    }

    /// Returns a planner for the memory that is free now, without the devices that must not be used.
    fn planner_without(&self, history: &History, before: &Plan) -> Planner {
        let excluded = history.excluded(Instant::now());
        let planner = self.planner.clone().with_free_memory(&self.devices).avoiding(&excluded);
        let short = history
            .short
            .iter()
            .fold(planner, |planner, (device, &bytes)| planner.holding_at_most(device, bytes));
        tracing::debug!(?excluded, before = %before.split(), "planning again");
        short
    }

    /// Loads the stages of `plan`, and lets the requests go on with them.
    fn load(&self, plan: &Plan) -> Result<()> {
        let prepared = Prepared::new(&self.model, &self.devices, plan, &self.options)?;
        self.recovery.restart(prepared.spec, &prepared.run, |_| ())?;
        prepared.claim.allocated();
        let mut current = self.current();
        (current.plan, current.stages) = (Arc::new(plan.clone()), prepared.stages.into());
        (current.since, current.claim) = (Instant::now(), Some(prepared.claim));
        Ok(())
    }
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

    /// Records the failure of a device. If it is short of memory for the first time, the next plan uses less of it. In all
    /// other cases, the next plan does without the device.
    fn lose(&mut self, interruption: &Interruption, plan: &Plan, is_left: bool, now: Instant) {
        let Interruption { error, device } = interruption;
        let cause = match error {
            RunError::Stage { cause, .. } | RunError::Device { cause, .. } => Some(cause.root()),
            _ => None,
        };
        let is_short = cause.is_some_and(ragtag_hal::Error::is_out_of_memory) && !is_left;
        if is_short && !self.short.contains_key(device) {
            let stages = plan.all_stages().filter(|stage| stage.device == *device);
            let bytes = stages.map(|stage| stage.memory_bytes.total).fold(0, u64::saturating_add);
            self.short.insert(device.clone(), bytes - bytes.div_ceil(SHORT_SHARE));
            return;
        }
        let (count, at) = self.lost.entry(device.clone()).or_insert((0, now));
        (*count, *at) = (*count + 1, now);
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

    fn lost(device: &str, cause: ragtag_hal::Error) -> Interruption {
        let error = RunError::Stage { stage: 0, device: device.into(), cause };
        Interruption { error, device: device.into() }
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
        history.lose(&gone(), &plan, false, start);
        let excluded = |history: &History, seconds| !history.excluded(after(seconds)).is_empty();
        assert_eq!([59, 60].map(|seconds| excluded(&history, seconds)), [true, false]);
        history.lose(&gone(), &plan, false, after(100));
        assert_eq!([219, 220].map(|seconds| excluded(&history, seconds)), [true, false]);
    }

    #[test]
    fn a_device_that_is_short_of_memory_gets_less_before_it_is_left_out() {
        let (mut history, plan, now) = (History::default(), plan(), Instant::now());
        let short = lost("a:0", ragtag_hal::Error::OutOfMemory { wanted: 1, free: None });
        history.lose(&short, &plan, false, now);
        assert!(history.excluded(now).is_empty());
        assert!(history.short["a:0"] < plan.stages[0].memory_bytes.total);
        history.lose(&short, &plan, false, now);
        assert_eq!(history.excluded(now), ["a:0"]);
    }
}
