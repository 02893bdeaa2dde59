//! Buffers, host regions and recorded programs of a stage on its device. Some exist once per slot.

use crate::actor::passing::kv_segments;
use crate::actor::streaming::{Streamed, StreamedPart, Streaming};
use crate::core::{MicroBatch, write_params};
use crate::error::{Error, Result};
use ragtag_graph::{CompiledStage, Program, Slice, StageBuffer, WeightBuffer};
use ragtag_hal::pool::class_bytes;
use ragtag_hal::{
    Binding, BufferId, BufferRange, Command, Device, Dispatch, HostPages, HostRegion, ModuleId, ProgramId,
    RegionId, SharedMemory,
};
use ragtag_planner::streaming::READ_PLACES;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

/// Host region in which weights are staged.
pub(crate) const STAGING: RegionId = RegionId(0);
/// Host region for logits. It has one part per credit.
pub(crate) const LOGITS: RegionId = RegionId(1);

/// First region id of streamed weights. The regions of the stages have smaller ids.
const STREAMED_REGIONS: u32 = 1 << 16;

/// First module id of the checksum kernels. The modules of the stages have smaller ids.
const CHECKSUM_MODULES: u32 = 1 << 16;

/// Alignment of parameter blocks, in bytes. It ensures that two blocks never share a cache line.
const PARAMS_ALIGNMENT: u64 = 64;

/// The buffers of one slot.
#[derive(Clone, Copy, Debug)]
struct SlotBuffers {
    params: BufferId,
    activation: BufferId,
    /// Activation rows in the wire type. `None` if the wire type is f32.
    wire: Option<BufferId>,
    logits: Option<BufferId>,
}

/// Objects that the stages of one device share, and the next free ids for objects.
#[derive(Debug, Default)]
pub(crate) struct SharedBuffers {
    stages: u32,
    buffers: u32,
    programs: u32,
    /// Number of regions of streamed weights.
    streamed: u32,
    /// Number of passages of keys and values.
    passages: u32,
    /// Whether the host memory for logits is registered.
    has_logits: bool,
    /// Scratch buffer. All stages use the same one, because the device computes one micro-batch at a time.
    scratch: Option<BufferId>,
    /// Buffers of the KV cache, each with its segment. A prefill stage uses those of the other stages.
    kv: Vec<(usize, BufferId)>,
    /// Weights that already have a buffer. A later stage can use the same buffer, for example if the output
    /// projection is also the embedding.
    weights: Vec<(WeightBuffer, BufferId)>,
}

impl SharedBuffers {
    /// Creates the scratch buffer for `stages` on a device that has no objects yet.
    ///
    /// # Errors
    /// Fails if the device runs out of memory.
    pub(crate) fn new(device: &mut dyn Device, stages: &[&CompiledStage]) -> ragtag_hal::Result<Self> {
        let mut shared = Self::default();
        let scratch_bytes = stages.iter().map(|stage| stage.scratch_bytes).max().unwrap_or(0);
        shared.scratch = shared.optional_buffer(device, scratch_bytes)?;
        Ok(shared)
    }

    /// Returns the total bytes of all buffers that `stages` need, each with its streamed segments.
    pub(crate) fn needed_bytes(stages: &[(&CompiledStage, Streamed<'_>)], slots: u32) -> u64 {
        let (mut bytes, mut weights, mut held) = (0, Vec::<&WeightBuffer>::new(), Vec::new());
        for (stage, streamed) in stages {
            let layout = Streaming::new(stage, *streamed, |_| false);
            bytes += layout.arenas().map(class_bytes).sum::<u64>();
            for (_, weight) in stage.weights.iter().enumerate().filter(|(at, _)| !layout.streams(*at)) {
                if !weights.iter().any(|other| other.is_same(weight)) {
                    bytes += class_bytes(weight.bytes());
                    weights.push(weight);
                }
            }
            let kv = stage.kv_bytes.iter().zip(kv_segments(stage));
            let own = kv.filter(|(_, segment)| !held.contains(segment));
            bytes += own.map(|(bytes, _)| class_bytes(*bytes)).sum::<u64>();
            held.extend(stage.segments.clone());
            bytes += stage.slot_buffers().map(class_bytes).iter().sum::<u64>() * u64::from(slots);
        }
        bytes + class_bytes(stages.iter().map(|(stage, _)| stage.scratch_bytes).max().unwrap_or(0))
    }

    /// Returns an unused buffer id.
    pub(crate) fn new_id(&mut self) -> BufferId {
        let id = BufferId(self.buffers);
        self.buffers += 1;
        id
    }

    /// Returns whether the caller must register the host memory for logits, because no stage of the device
    /// has.
    pub(crate) fn registers_logits(&mut self) -> bool {
        !std::mem::replace(&mut self.has_logits, true)
    }

    /// Returns the index of a new passage of keys and values.
    pub(crate) fn new_passage(&mut self) -> u32 {
        self.passages += 1;
        self.passages - 1
    }

    /// Imports host memory for weights, and returns the buffer of each weight. If `streams` is true, ignores
    /// memory that the device cannot import.
    ///
    /// # Errors
    /// Fails if the device cannot import memory and `streams` is false.
    pub(crate) fn import_weights(
        &mut self,
        device: &mut dyn Device,
        weights: &[(usize, Arc<HostPages>)],
        streams: bool,
    ) -> ragtag_hal::Result<HashMap<usize, BufferId>> {
        let mut imported = HashMap::new();
        for (weight, pages) in weights {
            let (id, handle) = (self.new_id(), Arc::clone(pages));
            match device.import_buffer(id, &SharedMemory { bytes: pages.bytes(), handle }) {
                Ok(()) => drop(imported.insert(*weight, id)),
                Err(error) if streams => {
                    let device = device.adapter().label();
                    tracing::warn!(device, %error, "cannot stream from another device; copying the weights");
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(imported)
    }

    /// Creates a buffer for activations. If `is_lent` is true, a neighbour may import it, unless the device
    /// cannot share memory.
    fn edge_buffer(
        &mut self,
        device: &mut dyn Device,
        bytes: u64,
        is_lent: bool,
    ) -> ragtag_hal::Result<BufferId> {
        if !is_lent {
            return self.buffer(device, bytes);
        }
        let id = self.new_id();
        match device.create_shared_buffer(id, bytes) {
            Err(ragtag_hal::Error::Unsupported { .. }) => device.create_buffer(id, bytes)?,
            other => other?,
        }
        Ok(id)
    }

    /// Returns the buffers of a stage's KV cache. Creates those of segments that no earlier stage has.
    fn kv_buffers(
        &mut self,
        device: &mut dyn Device,
        compiled: &CompiledStage,
    ) -> ragtag_hal::Result<Vec<BufferId>> {
        let (segments, earlier) = (kv_segments(compiled), self.kv.clone());
        let mut buffers = Vec::new();
        for (at, (&segment, &bytes)) in segments.iter().zip(&compiled.kv_bytes).enumerate() {
            let nth = segments[..at].iter().filter(|&&other| other == segment).count();
            let mut held = earlier.iter().filter(|(other, _)| *other == segment);
            let buffer = match held.nth(nth) {
                Some((_, buffer)) => *buffer,
                None => {
                    let buffer = self.buffer(device, bytes)?;
                    self.kv.push((segment, buffer));
                    buffer
                }
            };
            buffers.push(buffer);
        }
        Ok(buffers)
    }

    fn buffer(&mut self, device: &mut dyn Device, bytes: u64) -> ragtag_hal::Result<BufferId> {
        let id = self.new_id();
        device.create_buffer(id, bytes)?;
        Ok(id)
    }

    /// Creates a buffer. Returns `None` if `bytes` is 0.
    fn optional_buffer(
        &mut self,
        device: &mut dyn Device,
        bytes: u64,
    ) -> ragtag_hal::Result<Option<BufferId>> {
        if bytes == 0 { Ok(None) } else { self.buffer(device, bytes).map(Some) }
    }
}

/// Objects of one stage on its device.
#[derive(Debug)]
pub(crate) struct StageBuffers {
    /// Index of the stage among the stages of its device.
    index: u32,
    compiled: CompiledStage,
    /// Buffer of each weight. A streamed weight has a buffer of its arena.
    weights: Vec<BufferId>,
    /// Indices of the resident weights that no earlier stage of the device has loaded.
    unloaded: Vec<usize>,
    streaming: Streaming,
    /// Buffers of other devices, each with the streamed weight that it holds.
    imported: HashMap<usize, BufferId>,
    /// Host memory of the streamed weights of each part that no other device holds. `None` if there are none.
    /// The parts from the model's file share a region with [`READ_PLACES`] places.
    streamed: Vec<Option<(RegionId, Arc<HostRegion>)>>,
    kv: Vec<BufferId>,
    scratch: Option<BufferId>,
    slots: Vec<SlotBuffers>,
    params: Arc<HostRegion>,
    params_stride: u64,
    /// First program id of the stage.
    first_program: u32,
    recorded: HashSet<ProgramId>,
    /// Host buffer in which the stage assembles a parameter block.
    words: Vec<u32>,
}

impl StageBuffers {
    /// Allocates all buffers of a stage except the rings, and loads its module. Weights and KV cache are
    /// uninitialised. The weights of streamed segments get host memory and share the arenas. Weights in
    /// `imported` are in memory that other devices use too. If `is_lent` is true, neighbours may import the
    /// slots.
    ///
    /// # Errors
    /// Fails if the device runs out of memory or refuses the module.
    pub(crate) fn new(
        device: &mut dyn Device,
        shared: &mut SharedBuffers,
        compiled: CompiledStage,
        streamed: Streamed<'_>,
        slots: u32,
        is_lent: bool,
        imported: HashMap<usize, BufferId>,
    ) -> ragtag_hal::Result<Self> {
        let (index, first_program) = (shared.stages, shared.programs);
        let streaming = Streaming::new(&compiled, streamed, |weight| imported.contains_key(&weight));
        shared.stages += 1;
        shared.programs += (compiled.programs.len() * streaming.parts.len()) as u32 * slots;
        device.create_module(ModuleId(index), &compiled.module)?;
        let arenas: Vec<_> = streaming
            .arenas()
            .map(|bytes| shared.buffer(device, bytes))
            .collect::<ragtag_hal::Result<_>>()?;
        let (mut weights, mut unloaded) = (Vec::new(), Vec::new());
        for (at, weight) in compiled.weights.iter().enumerate() {
            if let Some(buffer) = streaming.arena_buffer(at) {
                weights.push(arenas[buffer]);
                continue;
            }
            let loaded = shared.weights.iter().find(|(other, _)| other.is_same(weight));
            let buffer = match loaded {
                Some((_, buffer)) => *buffer,
                None => {
                    let buffer = match imported.get(&at) {
                        Some(buffer) => *buffer,
                        None => shared.buffer(device, weight.bytes())?,
                    };
                    shared.weights.push((weight.clone(), buffer));
                    unloaded.push(at);
                    buffer
                }
            };
            weights.push(buffer);
        }
        let kv = shared.kv_buffers(device, &compiled)?;
        let [params_bytes, activation_bytes, wire_bytes, logits_bytes] = compiled.slot_buffers();
        let mut slot = || -> ragtag_hal::Result<SlotBuffers> {
            // The neighbours import the rows in the wire type.
            let (has_wire, mut rows) =
                (wire_bytes > 0, |bytes, lent| shared.edge_buffer(device, bytes, lent));
            Ok(SlotBuffers {
                activation: rows(activation_bytes, is_lent && !has_wire)?,
                wire: has_wire.then(|| rows(wire_bytes, is_lent)).transpose()?,
                params: shared.buffer(device, params_bytes)?,
                logits: shared.optional_buffer(device, logits_bytes)?,
            })
        };
        let slots: Vec<_> = (0..slots).map(|_| slot()).collect::<ragtag_hal::Result<_>>()?;
        let params_stride = params_bytes.next_multiple_of(PARAMS_ALIGNMENT);
        let params = Arc::new(HostRegion::new(params_stride as usize * slots.len())?);
        let scratch = shared.scratch;
        let (recorded, words) = (HashSet::new(), vec![0; params_bytes as usize / 4]);
        let mut new_region = |bytes: u64| -> ragtag_hal::Result<_> {
            let id = RegionId(STREAMED_REGIONS + shared.streamed);
            shared.streamed += 1;
            Ok(Some((id, Arc::new(HostRegion::new(bytes as usize)?))))
        };
        let reading = match streaming.place_bytes() {
            0 => None,
            bytes => new_region(bytes * READ_PLACES as u64)?,
        };
        let region = |part: &StreamedPart| match part.bytes {
            0 => Ok(None),
            _ if part.is_from_file => Ok(reading.clone()),
            bytes => new_region(bytes),
        };
        let streamed = streaming.parts.iter().map(region).collect::<ragtag_hal::Result<_>>()?;
        let stage = Self {
            index,
            compiled,
            weights,
            unloaded,
            streaming,
            imported,
            streamed,
            kv,
            scratch,
            slots,
            params,
            params_stride,
            first_program,
            recorded,
            words,
        };
        device.register_region(stage.params_region(), Arc::clone(&stage.params))?;
        Ok(stage)
    }

    /// Returns the host region for parameter blocks. It has one block per slot.
    fn params_region(&self) -> RegionId {
        RegionId(2 + 4 * self.index)
    }

    /// Returns the host region for checksums of activations.
    pub(crate) fn checksum_region(&self) -> RegionId {
        RegionId(5 + 4 * self.index)
    }

    /// Returns the module of the checksum kernel.
    pub(crate) fn checksum_module(&self) -> ModuleId {
        ModuleId(CHECKSUM_MODULES + self.index)
    }

    /// Returns the host region of the ring for incoming activations.
    pub(crate) fn incoming_region(&self) -> RegionId {
        RegionId(3 + 4 * self.index)
    }

    /// Returns the host region of the ring for outgoing activations.
    pub(crate) fn outgoing_region(&self) -> RegionId {
        RegionId(4 + 4 * self.index)
    }

    /// Returns the indices of the weights that no earlier stage of the device has loaded.
    pub(crate) fn unloaded(&self) -> &[usize] {
        &self.unloaded
    }

    /// Returns the arena of each part, for the core.
    pub(crate) fn parts(&self) -> Vec<Option<usize>> {
        self.streaming.parts.iter().map(|part| part.arena).collect()
    }

    /// Returns the segments of a part.
    pub(crate) fn part_segments(&self, part: usize) -> Range<usize> {
        self.streaming.parts[part].segments.clone()
    }

    /// Returns the streamed weights that host memory holds a copy of: the index of each weight, and its host
    /// memory from a byte offset on.
    pub(crate) fn streamed(&self) -> impl Iterator<Item = (usize, &Arc<HostRegion>, u64)> {
        let parts = self.streaming.parts.iter().zip(&self.streamed).filter(|(part, _)| !part.is_from_file);
        parts.filter_map(|(part, region)| Some((part, &region.as_ref()?.1))).flat_map(|(part, region)| {
            part.weights.iter().filter_map(move |&(weight, offset)| Some((weight, region, offset?)))
        })
    }

    /// Returns the layout of the streamed weights.
    pub(crate) fn streaming(&self) -> &Streaming {
        &self.streaming
    }

    /// Returns the host memory with the places for weights from the model's file, if there are any.
    pub(crate) fn reading(&self) -> Option<&Arc<HostRegion>> {
        let (first, _) = self.streaming.file_parts().next()?;
        self.streamed[first].as_ref().map(|(_, region)| region)
    }

    /// Registers the host memory of the streamed weights. Drivers pin memory faster after it was written.
    pub(crate) fn register_streamed(&self, device: &mut dyn Device) -> ragtag_hal::Result<()> {
        let regions: BTreeMap<_, _> =
            self.streamed.iter().flatten().map(|(id, region)| (*id, region)).collect();
        regions.into_iter().try_for_each(|(id, region)| device.register_region(id, Arc::clone(region)))
    }

    /// Returns the commands that copy the weights of a part from host memory to their arena. Weights from the
    /// model's file are in the given place.
    pub(crate) fn stream(&self, part: usize, place: Option<usize>) -> Vec<Command> {
        let region = self.streamed[part].as_ref().map(|(region, _)| *region);
        let start = place.map_or(0, |place| place as u64 * self.streaming.place_bytes());
        let copy = |&(weight, offset): &(usize, Option<u64>)| {
            let bytes = self.compiled.weights[weight].bytes();
            let whole = |buffer| BufferRange { buffer, offset: 0, bytes };
            let to = whole(self.weights[weight]);
            match (offset, region) {
                (Some(offset), Some(region)) => Command::Upload { region, offset: start + offset, to },
                _ => Command::Copy { from: whole(self.imported[&weight]), to },
            }
        };
        self.streaming.parts[part].weights.iter().map(copy).collect()
    }

    pub(crate) fn compiled(&self) -> &CompiledStage {
        &self.compiled
    }

    pub(crate) fn weight(&self, index: usize) -> BufferId {
        self.weights[index]
    }

    /// Returns the KV cache buffers. The compiled stage lists their sizes.
    pub(crate) fn kv(&self) -> &[BufferId] {
        &self.kv
    }

    /// Returns, for each slot, the buffer that holds activation rows in the wire type.
    pub(crate) fn edge_buffers(&self) -> impl Iterator<Item = BufferId> {
        self.slots.iter().map(|slot| slot.wire.unwrap_or(slot.activation))
    }

    /// Returns a byte range of a slot's activation rows in the wire type.
    pub(crate) fn edge_rows(&self, slot: u32, offset: u64, bytes: u64) -> BufferRange {
        let buffers = &self.slots[slot as usize];
        BufferRange { buffer: buffers.wire.unwrap_or(buffers.activation), offset, bytes }
    }

    /// Returns the first `rows` rows of a slot's logits. Returns `None` if `rows` is 0 or the stage computes
    /// no logits.
    pub(crate) fn logits(&self, slot: u32, rows: u32) -> Option<BufferRange> {
        let buffer = self.slots[slot as usize].logits.filter(|_| rows > 0)?;
        Some(BufferRange { buffer, offset: 0, bytes: u64::from(rows) * self.compiled.logit_row_bytes })
    }

    /// Returns the program of a part to submit for a micro-batch in `slot`. If there is no such program yet,
    /// records it first. For the first part, writes the parameter block, which all parts use.
    ///
    /// # Errors
    /// [`Error::Protocol`] if no bucket is large enough for the micro-batch. `failed` converts errors of the
    /// device.
    pub(crate) fn prepare(
        &mut self,
        device: &mut dyn Device,
        (slot, part): (u32, usize),
        batch: &MicroBatch,
        failed: impl Fn(ragtag_hal::Error) -> Error,
    ) -> Result<ProgramId> {
        let (rows, logit_rows, sequences) = (batch.rows(), batch.logit_rows(), batch.items.len());
        let holds = |p: &Program| {
            p.params.rows >= rows
                && p.params.logit_rows >= logit_rows
                && p.params.sequences as usize >= sequences
        };
        let index = self.compiled.programs.iter().position(holds);
        let index = index.ok_or_else(|| Error::protocol(format!("no program holds {}", batch.id)))?;
        if part == 0 {
            self.write_params(slot, index, batch, &failed)?;
        }
        let parts = self.streaming.parts.len();
        let id = (index * parts + part) as u32 * self.slots.len() as u32 + slot;
        let id = ProgramId(self.first_program + id);
        if !self.recorded.contains(&id) {
            let commands = self.commands(index, part, slot)?;
            let recorded = match device.record(id, commands.clone()) {
                Err(error) if error.is_out_of_memory() && self.forget_programs(device) => {
                    device.record(id, commands)
                }
                other => other,
            };
            recorded.map_err(&failed)?;
            self.recorded.insert(id);
        }
        Ok(id)
    }

    /// Writes a micro-batch's parameter blocks for `slot` and the program at `index`.
    fn write_params(
        &mut self,
        slot: u32,
        index: usize,
        batch: &MicroBatch,
        failed: &impl Fn(ragtag_hal::Error) -> Error,
    ) -> Result<()> {
        let shape = self.compiled.programs[index].params;
        let bytes = self.compiled.params_bytes(&self.compiled.programs[index]);
        let words = &mut self.words[..bytes as usize / 4];
        let (first, ring) = words.split_at_mut(shape.words());
        let failure = |e| Error::protocol(format!("{}: {e}", batch.id));
        write_params(batch, &shape, false, first).map_err(failure)?;
        if self.compiled.kv_ring.is_some() {
            let gap = shape.kv_ring_offset() as usize / 4 - shape.words();
            write_params(batch, &shape, true, &mut ring[gap..]).map_err(failure)?;
        }
        let start = u64::from(slot) * self.params_stride;
        let range = start as usize..(start + bytes) as usize;
        // The slot's last program has completed, so no device reads these bytes.
        let mut lease = self.params.write(range).map_err(failed)?;
        for (bytes, word) in lease.as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *bytes = word.to_ne_bytes();
        }
        Ok(())
    }

    /// Destroys all programs that are not in use on the device. They are recorded again when needed. Returns
    /// whether any program was destroyed.
    fn forget_programs(&mut self, device: &mut dyn Device) -> bool {
        let before = self.recorded.len();
        // `Checked` refuses to destroy a program with an outstanding submission. Such a program stays.
        self.recorded.retain(|id| device.destroy_program(*id).is_err());
        tracing::debug!(before, left = self.recorded.len(), "destroying idle programs, out of memory");
        self.recorded.len() < before
    }

    /// Returns the commands of a part of the program at `index`: on the first part the upload of the
    /// parameter block, then the steps of the part.
    fn commands(&self, index: usize, part: usize, slot: u32) -> Result<Vec<Command>> {
        let program = &self.compiled.programs[index];
        let bytes = self.compiled.params_bytes(program);
        let to = BufferRange { buffer: self.slots[slot as usize].params, offset: 0, bytes };
        let (region, offset) = (self.params_region(), u64::from(slot) * self.params_stride);
        let upload = Command::Upload { region, offset, to };
        let segments = &self.streaming.parts[part].segments;
        let steps = program.steps.iter().filter(|step| segments.contains(&step.segment)).map(|step| {
            let bindings =
                step.slices.iter().map(|slice| self.binding(slice, slot)).collect::<Result<_>>()?;
            Ok(Command::Dispatch(Dispatch {
                module: ModuleId(self.index),
                entry: step.entry,
                bindings,
                constants: step.constants.clone(),
                grid: step.grid,
            }))
        });
        (part == 0).then_some(Ok(upload)).into_iter().chain(steps).collect()
    }

    fn binding(&self, slice: &Slice, slot: u32) -> Result<Binding> {
        let buffers = self.slots[slot as usize];
        let buffer = match slice.buffer {
            StageBuffer::Weight(index) => self.weights.get(index).copied(),
            StageBuffer::Kv(index) => self.kv.get(index).copied(),
            StageBuffer::Scratch => self.scratch,
            StageBuffer::Activation => Some(buffers.activation),
            StageBuffer::Crossing => buffers.wire,
            StageBuffer::Logits => buffers.logits,
            StageBuffer::Params => Some(buffers.params),
        };
        let buffer = buffer.ok_or_else(|| Error::protocol(format!("a program binds {:?}", slice.buffer)))?;
        let range = BufferRange { buffer, offset: slice.offset, bytes: slice.bytes };
        Ok(Binding { range, access: slice.access })
    }
}
