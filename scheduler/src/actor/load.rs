//! Loads the stages of a device.

use super::checksum::Checksums;
use super::kept::KeptWeights;
use super::memory::StageBuffers;
use super::owned::OwnedDevice;
use super::passing::{LoadedPassage, Passage};
use super::reading::{Reader, Reading};
use super::shared::{SharedBuffers, import_weights};
use super::streaming::Streamed;
use super::weights::{Loading, WeightSource};
use super::{Actor, ActorSpec, ActorStage, Edge, Stage, StageSpec, stage_error};
use crate::copies::FileReads;
use crate::core::{DeviceCore, Progress, QueuePoints};
use crate::error::Result;
use crate::mailbox::{LINGER, Notice};
use crate::message::{DeviceAddress, DeviceMessage, DeviceUrgent, RunAddress};
use crate::trace::{Recorder, TraceSink};
use ragtag_hal::{Anticipation, Device, HostRegion, QueueKind, Timeline};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Loads the stages of one device.
struct StageLoader<'a> {
    label: &'a str,
    slots: u32,
    decode_rows: u32,
    verified: bool,
    kept: Option<&'a KeptWeights>,
    uploads: &'a Arc<Timeline>,
    run: &'a RunAddress,
    sink: &'a TraceSink,
    abort: &'a AtomicBool,
    progress: &'a (dyn Fn(u32, u64) + Sync),
}

impl StageLoader<'_> {
    fn load(
        &self,
        inputs: ActorStage,
        device: &mut OwnedDevice,
        shared: &mut SharedBuffers,
        points: &mut QueuePoints,
    ) -> Result<Stage> {
        let ActorStage { stage, spec, reads, mut previous, mut next, logits, ends, .. } = inputs;
        let ActorStage { shared_weights, passages, is_prefill, report, .. } = inputs;
        let arenas = spec.arenas();
        let StageSpec { compiled, streamed, from_file, weights, .. } = spec;
        let failed = |cause| stage_error(stage, self.label, cause);
        let mut recorder = Recorder::new(stage, compiled.segments.clone(), self.sink.clone(), ends);
        let row_bytes = compiled.edge_row_bytes();
        let is_lent = [&previous, &next].into_iter().flatten().any(Edge::lends);
        let imported = import_weights(device, &shared_weights, is_prefill).map_err(failed)?;
        let streamed = Streamed { segments: &streamed, arenas, from_file: &from_file };
        let memory = StageBuffers::new(device, shared, compiled, streamed, self.slots, is_lent, imported);
        let memory = memory.map_err(failed)?;
        for edge in [&mut previous, &mut next].into_iter().flatten() {
            edge.lend(device, &memory).map_err(failed)?;
            edge.ring_id = Some(device.new_region(&edge.ring).map_err(failed)?);
        }
        let passages = self.passages(passages, device, &memory).map_err(failed)?;
        let checksums = self.verified.then(|| {
            let most_bytes = u64::from(memory.compiled().max_rows()) * row_bytes;
            Checksums::new(device, most_bytes, 2 * u64::from(self.slots))
        });
        let checksums = checksums.transpose().map_err(failed)?;
        let logits = logits
            .map(|(region, places)| shared.logits_region(device, &region).map(|region| (region, places)));
        let logits = logits.transpose().map_err(failed)?;
        let progress = |bytes| (self.progress)(stage, bytes);
        let Self { label: device_label, uploads, abort, .. } = *self;
        let loading = Loading { stage, device_label, uploads, abort, progress: &progress };
        loading.run(device, &memory, weights.as_ref(), &mut points.upload, &mut recorder)?;
        let reads = reads.zip(memory.reading().cloned());
        let reader = reads.map(|reads| self.reader(reads, &loading, device, &memory, weights)).transpose()?;
        Ok(Stage {
            stage,
            memory,
            reader,
            previous,
            next,
            logits,
            row_bytes,
            passages,
            is_prefill,
            checksums,
            recorder,
            report,
        })
    }

    /// Finds the buffers of passages, and registers their host memory.
    fn passages(
        &self,
        passages: Vec<Passage>,
        device: &mut OwnedDevice,
        memory: &StageBuffers,
    ) -> ragtag_hal::Result<Vec<LoadedPassage>> {
        let load = |passage| {
            let mut passage = LoadedPassage::new(passage, device, memory)?;
            if self.verified {
                passage.verify(device)?;
            }
            Ok(passage)
        };
        passages.into_iter().map(load).collect()
    }

    /// Starts the thread that reads streamed weights from the model's file to a region.
    fn reader(
        &self,
        (to, region): (FileReads, Arc<HostRegion>),
        loading: &Loading<'_>,
        device: &mut OwnedDevice,
        memory: &StageBuffers,
        source: Box<dyn WeightSource>,
    ) -> Result<Reader> {
        let (stage, label) = (loading.stage, self.label.to_owned());
        let parts = loading.reads(memory, source.as_ref())?;
        let imported = device.import_timeline(Arc::clone(&to.timeline));
        imported.map_err(|cause| stage_error(stage, self.label, cause))?;
        let (uploads, run, sink) = (Arc::clone(self.uploads), self.run.clone(), self.sink.clone());
        let place_bytes = memory.streaming().place_bytes();
        Reader::start(Reading { stage, label, to, uploads, source, region, place_bytes, parts, sink, run })
    }

    /// Loads all stages of the device, and exchanges slots with their neighbours.
    fn load_all(
        &self,
        inputs: Vec<ActorStage>,
        device: &mut OwnedDevice,
        points: &mut QueuePoints,
    ) -> Result<Vec<Stage>> {
        let first = inputs.first().map_or(0, |stage| stage.stage);
        let failed = |cause| stage_error(first, self.label, cause);
        let compiled: Vec<_> = inputs.iter().map(|stage| &stage.spec.compiled).collect();
        let mut shared = SharedBuffers::new(device, &compiled).map_err(failed)?;
        let kept = self.kept.filter(|_| KeptWeights::can_keep(device));
        if let Some(kept) = kept {
            let all: Vec<_> =
                inputs.iter().map(|stage| (&stage.spec.compiled, stage.spec.streamed())).collect();
            (shared.weights, shared.lends_weights) = (kept.import(self.label, device, &all), true);
        }
        let load = |stage| self.load(stage, device, &mut shared, points);
        let mut stages = inputs.into_iter().map(load).collect::<Result<Vec<_>>>()?;
        kept.inspect(|kept| kept.keep(self.label, device, &shared.weights));
        let timelines = stages.iter().flat_map(|stage| [&stage.previous, &stage.next]).flatten();
        let timelines: BTreeMap<_, _> = timelines
            .flat_map(|edge| &edge.timelines)
            .chain(stages.iter().flat_map(|stage| &stage.passages).map(LoadedPassage::timeline))
            .map(|timeline| (timeline.id(), Arc::clone(timeline)))
            .collect();
        for timeline in timelines.into_values() {
            device.import_timeline(timeline).map_err(failed)?;
        }
        for stage in &mut stages {
            let (number, edges) = (stage.stage, [&mut stage.previous, &mut stage.next]);
            let failed = |cause| stage_error(number, self.label, cause);
            edges.into_iter().flatten().try_for_each(|edge| edge.borrow(device, failed))?;
        }
        // All devices import slots before they wait for an answer, so no two wait for each other.
        let edges = stages.iter_mut().flat_map(|stage| [&mut stage.previous, &mut stage.next]);
        edges.flatten().try_for_each(|edge| edge.settle(device))?;
        for stage in stages.iter_mut().filter(|stage| !stage.is_prefill) {
            let number = stage.stage;
            let failed = |cause| stage_error(number, self.label, cause);
            stage.memory.record_decoding(device, self.decode_rows, failed)?;
        }
        Ok(stages)
    }
}

impl Actor {
    /// Allocates memory and loads the weights. Calls `progress` with the index of a stage and the number of
    /// bytes that were submitted for it.
    ///
    /// # Errors
    /// Fails if the device or the weight source fails, or if the shape of the stage is invalid.
    pub(crate) fn load(
        spec: ActorSpec,
        abort: &AtomicBool,
        progress: &(dyn Fn(u32, u64) + Sync),
    ) -> Result<Self> {
        let ActorSpec { label, device, stages, slots, decode_rows, mailbox, address, run, .. } = spec;
        let ActorSpec { sink, copies, verified, kept, .. } = spec;
        let mut device = OwnedDevice::new(device);
        let own = QueueKind::ALL.map(|queue| device.timeline(queue));
        report_failures(&own, &address);

        let mut points = QueuePoints::new(|queue| own[queue.index()].id());
        let streamed: Vec<_> =
            stages.iter().map(|stage| (&stage.spec.compiled, stage.spec.streamed())).collect();
        let needed_bytes = SharedBuffers::needed_bytes(&streamed, slots);
        let uploads = &own[QueueKind::Upload.index()];
        let label = label.as_str();
        let loader = StageLoader {
            label,
            slots,
            decode_rows,
            verified,
            kept: kept.as_ref(),
            uploads,
            run: &run,
            sink: &sink,
            abort,
            progress,
        };
        let loaded = loader.load_all(stages, &mut device, &mut points);
        let held_bytes = device.pool_stats().in_use_bytes;
        let stages = loaded.map_err(|error| error.while_loading(held_bytes, needed_bytes))?;
        for stage in &stages {
            stage.next.iter().for_each(|next| stage.recorder.uses(next.routes.clone()));
        }
        let shapes: Vec<_> = stages.iter().map(|stage| stage.shape(slots, verified)).collect();
        let notices = progress_notices(&own, &address);
        let mut actor = Self {
            core: DeviceCore::new(&shapes, points)?,
            stages,
            mailbox,
            run,
            own,
            known: Progress::default(),
            notices,
            actions: Vec::new(),
            timings: Vec::new(),
            handled: 0,
            anticipation: Anticipation::lingering(LINGER),
            copies,
            verified,
            sums: VecDeque::new(),
            refused: VecDeque::new(),
            refusal: None,
            device,
            label: label.into(),
        };
        actor.take_timings();
        Ok(actor)
    }
}

/// Makes the failure of a timeline a message to its actor.
fn report_failures(timelines: &[Arc<Timeline>], address: &DeviceAddress) {
    for timeline in timelines {
        let address = address.clone();
        let failed = move |error: &ragtag_hal::Error| {
            address.send_urgent(DeviceUrgent::Failed(error.clone()));
        };
        Notice::default().listen(timeline, || {}, failed);
    }
}

/// Returns a notice for each timeline, which tells the actor that the timeline has advanced.
fn progress_notices(timelines: &[Arc<Timeline>; 3], address: &DeviceAddress) -> [Notice; 3] {
    timelines.each_ref().map(|timeline| {
        let (notice, address) = (Notice::default(), address.clone());
        // Ignore a full mailbox here: the next regular message reports it. A notice is sent only once
        // until it is armed again.
        notice.listen(timeline, move || drop(address.send(DeviceMessage::Progress)), |_| {});
        notice
    })
}
