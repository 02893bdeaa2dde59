//! Loads the stages of a device.

use super::checksum::Checksums;
use super::memory::StageBuffers;
use super::owned::OwnedDevice;
use super::passing::LoadedPassage;
use super::reading::{Reader, Reading};
use super::shared::{SharedBuffers, import_weights};
use super::streaming::Streamed;
use super::weights::Loading;
use super::{Actor, ActorSpec, ActorStage, Edge, Stage, stage_error};
use crate::core::{DeviceCore, Progress, QueuePoints, StageShape};
use crate::error::Result;
use crate::mailbox::{LINGER, Notice};
use crate::message::{DeviceMessage, DeviceUrgent, RunAddress};
use crate::runtime::StageSpec;
use crate::trace::{Recorder, TraceSink};
use ragtag_hal::{Anticipation, Device, QueueKind, Timeline};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Loads the stages of one device.
struct StageLoader<'a> {
    label: &'a str,
    slots: u32,
    verified: bool,
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
        let passages = passages.into_iter().map(|passage| {
            let mut passage = LoadedPassage::new(passage, device, &memory)?;
            if self.verified {
                passage.verify(device)?;
            }
            Ok(passage)
        });
        let passages = passages.collect::<ragtag_hal::Result<Vec<_>>>().map_err(failed)?;
        let checksums = self.verified.then(|| {
            let most_bytes = u64::from(memory.compiled().max_rows()) * row_bytes;
            Checksums::new(device, most_bytes, 2 * u64::from(self.slots))
        });
        let checksums = checksums.transpose().map_err(failed)?;
        let logits = logits.map(|(region, part_bytes)| {
            shared.logits_region(device, &region).map(|region| (region, part_bytes))
        });
        let logits = logits.transpose().map_err(failed)?;
        let progress = |bytes| (self.progress)(stage, bytes);
        let Self { label: device_label, uploads, abort, .. } = *self;
        let loading = Loading { stage, device_label, uploads, abort, progress: &progress };
        loading.run(device, &memory, weights.as_ref(), &mut points.upload, &mut recorder)?;
        let reader = match reads.zip(memory.reading()) {
            Some((to, region)) => {
                let parts = loading.reads(&memory, weights.as_ref())?;
                device.import_timeline(Arc::clone(&to.timeline)).map_err(failed)?;
                let (uploads, region) = (Arc::clone(uploads), Arc::clone(region));
                let (place_bytes, sink) = (memory.streaming().place_bytes(), self.sink.clone());
                let (label, run, source) = (device_label.into(), self.run.clone(), weights);
                let work =
                    Reading { stage, label, to, uploads, source, region, place_bytes, parts, sink, run };
                Some(Reader::start(work)?)
            }
            None => None,
        };
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
        let ActorSpec { label, device, stages, slots, mailbox, address, run, sink, copies, verified } = spec;
        let first = stages.first().map_or(0, |stage| stage.stage);
        let failed = |cause| stage_error(first, &label, cause);
        let mut device = OwnedDevice::new(device);
        let own = QueueKind::ALL.map(|queue| device.timeline(queue));
        for timeline in &own {
            let address = address.clone();
            let failed = move |error: &ragtag_hal::Error| {
                address.send_urgent(DeviceUrgent::Failed(error.clone()));
            };
            Notice::default().listen(timeline, || {}, failed);
        }

        let mut points = QueuePoints::new(|queue| own[queue.index()].id());
        let compiled: Vec<_> = stages.iter().map(|stage| &stage.spec.compiled).collect();
        let streamed: Vec<_> =
            stages.iter().map(|stage| (&stage.spec.compiled, stage.spec.streamed())).collect();
        let needed_bytes = SharedBuffers::needed_bytes(&streamed, slots);
        let uploads = &own[QueueKind::Upload.index()];
        let label = label.as_str();
        let loader = StageLoader { label, slots, verified, uploads, run: &run, sink: &sink, abort, progress };
        let loaded = SharedBuffers::new(&mut device, &compiled).map_err(failed).and_then(|mut shared| {
            let load = |stage| loader.load(stage, &mut device, &mut shared, &mut points);
            let mut stages = stages.into_iter().map(load).collect::<Result<Vec<_>>>()?;
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
                let failed = |cause| stage_error(number, label, cause);
                edges.into_iter().flatten().try_for_each(|edge| edge.borrow(&mut device, failed))?;
            }
            // All devices import slots before they wait for an answer, so no two wait for each other.
            let edges = stages.iter_mut().flat_map(|stage| [&mut stage.previous, &mut stage.next]);
            edges.flatten().try_for_each(|edge| edge.settle(&mut device))?;
            Ok(stages)
        });
        let held_bytes = device.pool_stats().in_use_bytes;
        let stages = loaded.map_err(|error| error.while_loading(held_bytes, needed_bytes))?;
        let shape = |stage: &Stage| StageShape {
            slots,
            row_bytes: stage.row_bytes,
            incoming: stage.previous.as_ref().map(|edge| edge.routes.clone()),
            outgoing: stage.next.as_ref().map(|edge| edge.routes.clone()),
            next_slots: slots,
            verified,
            parts: stage.memory.parts(),
            from_file: stage.reader.as_ref().map(Reader::parts),
            passes: stage.passes(),
        };
        for stage in &stages {
            stage.next.iter().for_each(|next| stage.recorder.uses(next.routes.clone()));
        }
        let shapes: Vec<_> = stages.iter().map(shape).collect();

        let notices: [Notice; 3] = Default::default();
        for (notice, timeline) in notices.iter().zip(&own) {
            let address = address.clone();
            // Ignore a full mailbox here: the next regular message reports it. A notice is sent only once
            // until it is armed again.
            notice.listen(timeline, move || drop(address.send(DeviceMessage::Progress)), |_| {});
        }
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
