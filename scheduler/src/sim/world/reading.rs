//! Hosts that read streamed weights from the model's file. Each is a device with a single queue, which signals the
//! timeline of the reads of one stage.

use super::World;
use crate::core::{FileParts, StageAction};
use crate::sim::device::{Job, SimDevice, Submitted, timeline};
use crate::sim::spec::{SimSpec, SimStage};
use ragtag_hal::QueueKind;
use std::collections::BTreeSet;

/// Returns the index of the reading host of each stage, if it has one. `first` is the first index.
pub(super) fn readers(stages: &[&SimStage], first: usize) -> Vec<Option<usize>> {
    let mut next = first;
    let reader = |stage: &&SimStage| {
        let reads = stage.parts.iter().any(|part| part.read_ns.is_some());
        reads.then(|| {
            next += 1;
            next - 1
        })
    };
    stages.iter().map(reader).collect()
}

/// Returns the parts of a stage whose weights the host `reader` reads.
pub(super) fn file_parts(reader: usize, stage: &SimStage) -> FileParts {
    let parts = stage.parts.iter().enumerate().filter(|(_, part)| part.read_ns.is_some());
    FileParts { timeline: timeline(reader, QueueKind::Upload), parts: parts.map(|(at, _)| at).collect() }
}

/// Returns the devices, followed by the reading hosts. `hosted` lists the stages of each device.
pub(super) fn devices(hosted: &[Vec<usize>], readers: &[Option<usize>], spec: &SimSpec) -> Vec<SimDevice> {
    let reading = (0..readers.len()).filter(|&stage| readers[stage].is_some()).map(|stage| vec![stage]);
    hosted.iter().cloned().chain(reading).map(|stages| SimDevice::new(&stages, spec)).collect()
}

/// Returns, for each device and then for each reading host, the devices and hosts whose work may wait for its
/// points. They run the same stages or neighbouring ones. With a prefill stage, these are all.
pub(super) fn around(
    hosted: &[Vec<usize>],
    hosts: &[usize],
    readers: &[Option<usize>],
    has_prefill: bool,
) -> Vec<Vec<usize>> {
    let neighbours = |&stage: &usize| match has_prefill {
        true => 0..hosts.len(),
        false => stage.saturating_sub(1)..hosts.len().min(stage + 2),
    };
    let of_device = |stages: &Vec<usize>| {
        let devices = stages.iter().flat_map(neighbours).map(|stage| hosts[stage]);
        let around: BTreeSet<_> = devices.chain(stages.iter().filter_map(|&stage| readers[stage])).collect();
        around.into_iter().collect::<Vec<_>>()
    };
    let of_reader = |(host, reader): (&usize, &Option<usize>)| Some(vec![*host, (*reader)?]);
    hosted.iter().map(of_device).chain(hosts.iter().zip(readers).filter_map(of_reader)).collect()
}

impl World<'_> {
    /// Submits the read of a part's weights into a place.
    pub(super) fn read(&mut self, stage: usize, action: StageAction) -> Result<(), String> {
        let (Some(reader), StageAction::Read { part, place, after, signal }) = (self.readers[stage], action)
        else {
            return Err(format!("stage {stage} reads no weights"));
        };
        let (job, waits) = (Job::Read { part, place }, after.into_iter().collect());
        self.devices[reader].submit(Submitted { stage, queue: QueueKind::Upload, job, waits, signal });
        Ok(())
    }
}
