//! Loaded stages, as the users of a pipeline see them: how they load and end, and their statistics.

use crate::actor::StageReport;
use crate::actor::kept::KeptWeights;
use crate::capacity::Lanes;
use crate::core::RunShape;
use crate::error::{Error, Result};
use crate::mailbox::mailbox;
use crate::message::{DeviceAddress, DeviceUrgent, RunAddress, RunMessage, RunUrgent};
use crate::runtime::attached::{Attached, Logits, PathEnds};
use crate::runtime::spec::{Layout, LoadProgress, PipelineOptions, PipelineSpec};
use crate::runtime::threads::{self, DeviceThread};
use crate::runtime::wiring::{Wired, connect};
use crate::runtime::{PipelineStats, loader};
use crate::trace::TraceSink;
use crate::transfers::Transfers;
use crate::watch::Watch;
use ragtag_hal::DeviceId;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The stages of a pipeline, which others may replace.
#[derive(Default)]
pub(super) struct Stages {
    loaded: Loaded,
    /// Watch over the work of the threads, once the coordinator has stopped them.
    pub(super) watch: Option<Watch>,
    /// Aborts the stages that are loading.
    abort: Arc<AtomicBool>,
    /// Weights that stages which replace these may keep.
    kept: KeptWeights,
    is_closed: bool,
}

/// Threads and records of loaded stages.
#[derive(Default)]
pub(super) struct Loaded {
    /// Addresses of the devices' mailboxes.
    addresses: Vec<DeviceAddress>,
    actors: Vec<DeviceThread>,
    reports: Vec<Arc<Mutex<StageReport>>>,
    /// Transfer records of the edges, followed by that of the token return.
    crossings: Vec<Transfers>,
    /// Sink of the trace. It is kept here so that the trace stays available after the actors have ended.
    pub(super) sink: TraceSink,
}

/// Stages that end, and free the memory of their devices.
pub struct Stopped {
    threads: Loaded,
    watch: Option<Watch>,
}

impl Stopped {
    /// Waits until the threads have ended. Leaves a device behind that hangs, as
    /// [`Pipeline::shutdown`](crate::Pipeline::shutdown) does. Returns the labels of these devices.
    pub fn end(mut self) -> Vec<String> {
        self.threads.end(self.watch.take())
    }
}

impl std::fmt::Debug for Stopped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stopped").finish_non_exhaustive()
    }
}

/// Loads all stages in parallel, and returns when all are ready. They use the weights in `kept`, and add theirs. After a
/// failure, all threads have ended.
pub(super) fn load(
    pipeline: PipelineSpec,
    options: &PipelineOptions,
    (abort, kept): (Arc<AtomicBool>, Option<&KeptWeights>),
    progress: impl Fn(LoadProgress) + Send + Sync + 'static,
) -> Result<(Attached, Loaded)> {
    let (address, inbox) = mailbox::<RunMessage, RunUrgent>(Lanes::of_run(options.credits));
    let (linked, loaded) = load_for(pipeline, options, &address, (abort, kept), progress)?;
    let Linked { run, addresses, ends, devices, logits, watch } = linked;
    for ends in &ends {
        let moved = address.clone();
        ends.notice.listen(&ends.last, move || drop(moved.send(RunMessage::Downloaded)), |_| {});
    }
    Ok((Attached { run, inbox, actors: addresses, ends, devices, logits, watch }, loaded))
}

/// Data with which a coordinator communicates with loaded stages, besides its mailbox.
pub(super) struct Linked {
    pub(super) run: RunShape,
    pub(super) addresses: Vec<DeviceAddress>,
    pub(super) ends: Vec<PathEnds>,
    /// Device id and device label of each stage.
    pub(super) devices: Vec<(DeviceId, String)>,
    pub(super) logits: Logits,
    pub(super) watch: Watch,
}

/// Loads all stages of this host like [`load`]. They send their messages to `run`.
pub(super) fn load_for(
    pipeline: PipelineSpec,
    options: &PipelineOptions,
    run: &RunAddress,
    (abort, kept): (Arc<AtomicBool>, Option<&KeptWeights>),
    progress: impl Fn(LoadProgress) + Send + Sync + 'static,
) -> Result<(Linked, Loaded)> {
    let layout = Layout::new(&pipeline, options)?;
    layout.run.check()?;
    // A prefill stage imports pages that the stages fill while they load.
    let kept = kept.filter(|_| pipeline.prefill.is_none()).cloned();
    let sink = TraceSink::new(options.trace_spans);
    let logits = Logits::new(&layout)?;
    let wired = connect(pipeline, options, &layout, run, &logits, &sink)?;
    let Wired { mut actors, addresses, reports, devices, ends, crossings, watch, proxies } = wired;
    actors.iter_mut().for_each(|actor| actor.kept = kept.clone());
    let actors =
        loader::start((actors, proxies), &addresses, layout.weight_bytes, abort, Arc::new(progress))?;
    let linked = Linked { run: layout.run, addresses: addresses.clone(), ends, devices, logits, watch };
    Ok((linked, Loaded { addresses, actors, reports, crossings, sink }))
}

impl Loaded {
    pub(super) fn reports(&self) -> &[Arc<Mutex<StageReport>>] {
        &self.reports
    }

    /// Returns the number of stages.
    pub(super) fn count(&self) -> usize {
        self.reports.len()
    }

    /// Adds the statistics of the stages and edges.
    pub(super) fn report(&self, stats: &mut PipelineStats) {
        let report = |r: &Arc<Mutex<StageReport>>| r.lock().unwrap_or_else(PoisonError::into_inner).clone();
        stats.stages = self.reports.iter().map(report).collect();
        stats.edges = self.crossings.iter().map(Transfers::report).collect();
        stats.routes = self.crossings.iter().filter_map(Transfers::routes).collect();
        stats.token_return = stats.edges.pop().unwrap_or_default();
    }

    /// Stops the threads and waits until they have ended. Returns the labels of the devices that were left behind.
    pub(super) fn end(&mut self, watch: Option<Watch>) -> Vec<String> {
        // The coordinator has stopped the devices, unless it could not start.
        self.addresses.drain(..).for_each(|address| address.send_urgent(DeviceUrgent::Stop));
        threads::end(std::mem::take(&mut self.actors), watch)
    }
}

impl Stages {
    pub(super) fn new(loaded: Loaded, kept: KeptWeights) -> Self {
        Self { loaded, kept, ..Self::default() }
    }

    /// Returns the weights that stages which replace these may keep.
    pub(super) fn kept(stages: &Mutex<Self>) -> KeptWeights {
        Self::lock(stages).kept.clone()
    }

    pub(super) fn lock(stages: &Mutex<Self>) -> MutexGuard<'_, Self> {
        stages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the stages that were loaded last. They may have ended.
    pub(super) fn latest(&self) -> &Loaded {
        &self.loaded
    }

    /// Takes the threads of the loaded stages, which end.
    pub(super) fn stopped(stages: &Mutex<Self>) -> Stopped {
        Self::lock(stages).take()
    }

    /// Ends the loaded stages. No other ones replace them any more.
    pub(super) fn close(stages: &Mutex<Self>) -> Vec<String> {
        {
            let mut stages = Self::lock(stages);
            stages.is_closed = true;
            stages.abort.store(true, Ordering::Relaxed);
            stages.kept.retain(&[]);
        }
        Self::stopped(stages).end()
    }

    /// Takes the threads, and leaves the records.
    fn take(&mut self) -> Stopped {
        let Loaded { addresses, actors, .. } = &mut self.loaded;
        let (addresses, actors) = (std::mem::take(addresses), std::mem::take(actors));
        Stopped { threads: Loaded { addresses, actors, ..Loaded::default() }, watch: self.watch.take() }
    }

    /// Returns the flag that aborts the stages that are about to load.
    ///
    /// # Errors
    /// [`Error::Stopped`] if the pipeline has been shut down.
    pub(super) fn begin(stages: &Mutex<Self>) -> Result<Arc<AtomicBool>> {
        let mut stages = Self::lock(stages);
        stages.abort = Arc::default();
        if stages.is_closed { Err(Error::Stopped) } else { Ok(Arc::clone(&stages.abort)) }
    }

    /// Puts loaded stages in the place of those that have ended.
    ///
    /// # Errors
    /// [`Error::Stopped`] if the pipeline has been shut down. The stages have ended then.
    pub(super) fn replace(stages: &Mutex<Self>, mut loaded: Loaded) -> Result<()> {
        let mut stages = Self::lock(stages);
        if stages.is_closed {
            drop(stages);
            loaded.end(None);
            return Err(Error::Stopped);
        }
        stages.loaded = loaded;
        Ok(())
    }
}
