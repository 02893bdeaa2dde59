//! Steps as a command buffer of the driver, and where those come from.
//!
//! This module must not know programs' ids.

use crate::api::{Recorder, SharedQueue, Stamps};
use crate::hazards::Hazards;
use crate::program::Entry;
use crate::script::{Span, Step};
use ragtag_hal::Result;
use std::sync::{Arc, Mutex, PoisonError};

/// The command buffers of a queue's family: those that are not in use wait here.
pub(crate) struct Recorders {
    idle: Mutex<Vec<Recorder>>,
    queue: Arc<SharedQueue>,
    /// Whether the host may read what was written without a download.
    shows_host: bool,
    /// Most groups of a dispatch along each axis.
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

/// A command buffer that can be run any number of times, one after the other.
pub(crate) struct Recording {
    /// `None` once it is being dropped.
    recorder: Option<Recorder>,
    recorders: Arc<Recorders>,
}

impl Recording {
    /// # Errors
    /// If the driver refuses.
    pub(crate) fn new(recorders: &Arc<Recorders>, steps: &[Step]) -> Result<Self> {
        let mut recorder = recorders.take()?;
        let launches = || {
            steps.iter().filter_map(|step| match step {
                Step::Launch { spans, .. } => Some(spans.len() as u32),
                _ => None,
            })
        };
        recorder.begin(launches().count() as u32, launches().sum())?;
        let mut hazards = Hazards::default();
        // Whether there are copies since the last barrier. Launches alone wait for less.
        let mut copied = false;
        for step in steps {
            let copies = !matches!(step, Step::Launch { .. });
            if hazards.barrier_before(step.uses()) {
                match copied || copies {
                    true => recorder.barrier(),
                    false => recorder.barrier_between_launches(),
                }
                copied = false;
            }
            copied |= copies;
            record(&recorder, step, recorders.max_groups)?;
        }
        if recorders.shows_host || steps.iter().any(|step| matches!(step, Step::Download { .. })) {
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
        Step::Launch { entry, spans, constants, grid } => {
            return launch(recorder, entry, spans, constants, *grid, max_groups);
        }
        Step::Copy { from, to } => recorder.copy(from.part(), to.part()),
        Step::Fill { to, word } => recorder.fill(to.part(), *word),
        Step::Upload { from, to } => recorder.copy(from.registered.part(&from.range), to.part()),
        Step::Download { from, to } => recorder.copy(from.part(), to.registered.part(&to.range)),
    }
    Ok(())
}

/// A launch, in parts where the grid is larger than the device launches at once. A part's first group is the first of the
/// push constants.
fn launch(
    recorder: &Recorder,
    entry: &Entry,
    spans: &[Span],
    constants: &[u32],
    grid: [u32; 3],
    max_groups: [u32; 3],
) -> Result<()> {
    let parts: Vec<_> = spans.iter().map(Span::part).collect();
    recorder.bind(&entry.pipeline, &parts)?;
    let mut words = vec![0; 3];
    words.extend_from_slice(constants);
    for (first, groups) in pieces(grid, max_groups) {
        words[..3].copy_from_slice(&first);
        recorder.dispatch(&entry.pipeline, &words, groups);
    }
    Ok(())
}

/// The first group and the number of groups of each piece of a grid.
fn pieces(grid: [u32; 3], most: [u32; 3]) -> impl Iterator<Item = ([u32; 3], [u32; 3])> {
    let [x, y, z] = [0, 1, 2].map(|axis| {
        let (all, most) = (grid[axis], most[axis].max(1));
        move || (0..all).step_by(most as usize).map(move |first| (first, most.min(all - first)))
    });
    z().flat_map(move |(z, depth)| {
        y().flat_map(move |(y, height)| x().map(move |(x, width)| ([x, y, z], [width, height, depth])))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_a_grid_once() {
        let all: Vec<_> = pieces([5, 1, 3], [2, 9, 2]).collect();
        assert_eq!(
            all,
            [
                ([0, 0, 0], [2, 1, 2]),
                ([2, 0, 0], [2, 1, 2]),
                ([4, 0, 0], [1, 1, 2]),
                ([0, 0, 2], [2, 1, 1]),
                ([2, 0, 2], [2, 1, 1]),
                ([4, 0, 2], [1, 1, 1]),
            ]
        );
        assert_eq!(pieces([7, 8, 9], [u32::MAX; 3]).collect::<Vec<_>>(), [([0; 3], [7, 8, 9])]);
        assert_eq!(pieces([u32::MAX, 1, 1], [65535; 3]).count(), 65537);
    }
}
