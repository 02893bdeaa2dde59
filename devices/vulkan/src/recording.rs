//! Recording of steps in command buffers, and the pool of command buffers.
//!
//! This module does not depend on program IDs.

use crate::api::{BufferPart, Recorder, SharedQueue, Stamps};
use crate::driver::{HostSpan, Launch, Span, Step};
use crate::error::allocation_failure;
use crate::hazards::{Hazards, Use};
use ragtag_hal::driver::grid_parts;
use ragtag_hal::{Access, Error, Result};
use std::sync::{Arc, Mutex, PoisonError};

/// A pool of idle command buffers for one queue family.
pub(crate) struct Recorders {
    idle: Mutex<Vec<Recorder>>,
    queue: Arc<SharedQueue>,
    /// Whether the host may read device memory directly, without a download.
    shows_host: bool,
    /// Maximum number of groups of a dispatch along each axis.
    max_groups: [u32; 3],
}

impl Recorders {
    pub(crate) fn new(queue: &Arc<SharedQueue>, shows_host: bool) -> Arc<Self> {
        let max_groups = queue.logical().facts().limits.max_compute_work_group_count;
        Arc::new(Self { idle: Mutex::default(), queue: Arc::clone(queue), shows_host, max_groups })
    }

    fn take(&self) -> Result<Recorder> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        idle.map_or_else(|| Recorder::new(&self.queue), Ok)
    }

    fn put(&self, recorder: Recorder) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(recorder);
    }
}

/// Estimated driver memory per step, in bytes. Errors contain this estimate, because drivers do not report
/// the size of a failed allocation.
const STEP_BYTES: u64 = 256;

/// A script's command buffer and staging copies.
pub(crate) struct Prepared {
    recording: Mutex<Option<Arc<Recording>>>,
    steps: usize,
    /// Spans to copy into staging buffers before the script starts.
    pub(crate) copy_ins: Arc<[HostSpan]>,
    /// Spans to copy out of staging buffers after the script has ended.
    pub(crate) copy_outs: Arc<[HostSpan]>,
}

impl Prepared {
    pub(crate) fn new(steps: &[Step]) -> Self {
        let staging = |span: &&HostSpan| span.registered().hold.is_staging();
        let uploads = steps.iter().filter_map(|step| match step {
            Step::Upload { from, .. } => Some(from),
            _ => None,
        });
        let downloads = steps.iter().filter_map(|step| match step {
            Step::Download { to, .. } => Some(to),
            _ => None,
        });
        Self {
            recording: Mutex::default(),
            steps: steps.len(),
            copy_ins: uploads.filter(staging).cloned().collect(),
            copy_outs: downloads.filter(staging).cloned().collect(),
        }
    }

    /// Returns the command buffer, which is recorded on first use. Returns `None` if the script has no
    /// commands.
    ///
    /// # Errors
    /// Returns [`Error::OutOfMemory`] with an estimated size, or another error of the driver.
    pub(crate) fn recording(
        &self,
        recorders: &Arc<Recorders>,
        steps: &[Step],
    ) -> Result<Option<Arc<Recording>>> {
        if steps.is_empty() {
            return Ok(None);
        }
        let mut recording = self.recording.lock().unwrap_or_else(PoisonError::into_inner);
        if recording.is_none() {
            let made = Recording::new(recorders, steps).map_err(|error| self.refused(error))?;
            *recording = Some(Arc::new(made));
        }
        Ok(recording.clone())
    }

    /// Converts the driver's error after a failure to record or submit the script. The size in an
    /// out-of-memory error is an estimate.
    pub(crate) fn refused(&self, error: Error) -> Error {
        allocation_failure(error, self.steps.max(1) as u64 * STEP_BYTES)
    }
}

/// Returns the memory accesses of a step.
fn uses(step: &Step) -> Vec<Use> {
    let used = |span: &Span, writes| {
        let memory = Arc::as_ptr(span.buffer()) as usize;
        Use { memory, range: span.offset()..span.offset() + span.bytes(), writes }
    };
    let host = |span: &HostSpan, writes| {
        let memory = Arc::as_ptr(&span.registered().region) as usize;
        Use { memory, range: span.range().start as u64..span.range().end as u64, writes }
    };
    match step {
        Step::Launch(launch) => {
            let access = launch.abi.bindings.iter().map(|access| *access != Access::Read);
            launch.spans.iter().zip(access).map(|(span, writes)| used(span, writes)).collect()
        }
        Step::Copy { from, to } => vec![used(from, false), used(to, true)],
        Step::Fill { to, .. } => vec![used(to, true)],
        Step::Upload { from, to, .. } => vec![host(from, false), used(to, true)],
        Step::Download { from, to } => vec![used(from, false), host(to, true)],
    }
}

/// Returns true if a step may write to memory of the host.
fn uses_host(step: &Step) -> bool {
    match step {
        Step::Launch(launch) => launch.spans.iter().any(|span| span.buffer().is_host()),
        Step::Copy { to, .. } | Step::Fill { to, .. } | Step::Upload { to, .. } => to.buffer().is_host(),
        Step::Download { .. } => true,
    }
}

/// Returns the byte range of a span, for copy and fill commands.
fn part(span: &Span) -> BufferPart<'_> {
    BufferPart { memory: &span.buffer().memory, offset: span.offset(), bytes: span.bytes() }
}

fn host_part(span: &HostSpan) -> BufferPart<'_> {
    span.registered().hold.part(span.range())
}

/// A recorded command buffer. It can run many times, but only one run may be pending.
pub(crate) struct Recording {
    /// The recorder. It is `None` only while `drop` runs.
    recorder: Option<Recorder>,
    recorders: Arc<Recorders>,
}

impl Recording {
    /// Records steps in a command buffer from the pool.
    ///
    /// # Errors
    /// Returns the driver's error.
    fn new(recorders: &Arc<Recorders>, steps: &[Step]) -> Result<Self> {
        let mut recorder = recorders.take()?;
        let launches = || {
            steps.iter().filter_map(|step| match step {
                Step::Launch(launch) => Some(launch.spans.len() as u32),
                _ => None,
            })
        };
        recorder.begin(launches().count() as u32, launches().sum())?;
        let mut hazards = Hazards::default();
        // True from a copy or a fill until the next barrier. Between launches, a weaker barrier is enough.
        let mut copied = false;
        for step in steps {
            let copies = !matches!(step, Step::Launch(_));
            if hazards.barrier_before(uses(step)) {
                match copied || copies {
                    true => recorder.barrier(),
                    false => recorder.barrier_between_launches(),
                }
                copied = false;
            }
            copied |= copies;
            record(&recorder, step, recorders.max_groups)?;
        }
        if recorders.shows_host || steps.iter().any(uses_host) {
            recorder.show_host();
        }
        recorder.end()?;
        Ok(Self { recorder: Some(recorder), recorders: Arc::clone(recorders) })
    }

    pub(crate) fn recorder(&self) -> Option<&Recorder> {
        self.recorder.as_ref()
    }

    pub(crate) fn stamps(&self) -> Option<&Arc<Stamps>> {
        self.recorder.as_ref()?.stamps()
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if let Some(recorder) = self.recorder.take() {
            self.recorders.put(recorder);
        }
    }
}

fn record(recorder: &Recorder, step: &Step, max_groups: [u32; 3]) -> Result<()> {
    match step {
        Step::Launch(launch) => return record_launch(recorder, &launch.code, &launch.spans, max_groups),
        Step::Copy { from, to } => recorder.copy(part(from), part(to)),
        Step::Fill { to, word } => recorder.fill(part(to), *word),
        Step::Upload { from, to, .. } => recorder.copy(host_part(from), part(to)),
        Step::Download { from, to } => recorder.copy(part(from), host_part(to)),
    }
    Ok(())
}

/// Records a launch. Splits a grid that exceeds the device's limit into parts. The first push constants of
/// each part hold the position of its first group.
fn record_launch(recorder: &Recorder, launch: &Launch, spans: &[Span], max_groups: [u32; 3]) -> Result<()> {
    let Launch { pipeline, constants, grid } = launch;
    let parts: Vec<_> = spans.iter().map(part).collect();
    recorder.bind(pipeline, &parts)?;
    let mut words = vec![0; 3];
    words.extend_from_slice(constants);
    for (first, groups) in grid_parts(*grid, max_groups) {
        words[..3].copy_from_slice(&first);
        recorder.dispatch(pipeline, &words, groups);
    }
    Ok(())
}
