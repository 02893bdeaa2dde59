//! Buffers, host regions and recorded programs of a stage on its device. Some exist once per slot.

use crate::actor::owned::OwnedDevice;
use crate::actor::shared::{SharedBuffers, lent_buffer, optional_buffer};
use crate::actor::streaming::{Streamed, StreamedPart, Streaming};
use crate::core::{MicroBatch, write_params};
use crate::error::{Error, Result};
use ragtag_graph::execution::READ_PLACES;
use ragtag_graph::{CompiledStage, Program, RowKind, Slice, StageBuffer};
use ragtag_hal::{
    Binding, BufferId, BufferRange, Command, Device, Dispatch, HostRegion, ModuleId, ProgramId, RegionId,
};
use ragtag_kernels::params::{DECODE_ROWS, USED_WORDS};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::iter;
use std::ops::Range;
use std::sync::Arc;

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
    picks: Option<BufferId>,
}

/// Objects of one stage on its device.
#[derive(Debug)]
pub(crate) struct StageBuffers {
    module: ModuleId,
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
    /// Host memory for parameter blocks. It has one block per slot.
    params: Arc<HostRegion>,
    params_region: RegionId,
    params_stride: u64,
    /// First program id of the stage.
    first_program: ProgramId,
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
        device: &mut OwnedDevice,
        shared: &mut SharedBuffers,
        compiled: CompiledStage,
        streamed: Streamed<'_>,
        slots: u32,
        is_lent: bool,
        imported: HashMap<usize, BufferId>,
    ) -> ragtag_hal::Result<Self> {
        let streaming = Streaming::new(&compiled, streamed, |weight| imported.contains_key(&weight));
        let programs = (compiled.programs.len() * streaming.parts.len()) as u32 * slots;
        let (module, first_program) = (device.new_module_id(), device.new_program_ids(programs));
        device.create_module(module, &compiled.module)?;
        let arenas = streaming.arenas().map(|bytes| device.new_buffer(bytes));
        let arenas = arenas.collect::<ragtag_hal::Result<Vec<_>>>()?;
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
                        None => lent_buffer(device, weight.bytes(), shared.lends_weights)?,
                    };
                    shared.weights.push((weight.clone(), buffer));
                    unloaded.push(at);
                    buffer
                }
            };
            weights.push(buffer);
        }
        let kv = shared.kv_buffers(device, &compiled)?;
        let [params_bytes, activation_bytes, wire_bytes, logits_bytes, picks_bytes] = compiled.slot_buffers();
        let mut slot = || -> ragtag_hal::Result<SlotBuffers> {
            // The neighbours import the rows in the wire type.
            let (has_wire, mut rows) = (wire_bytes > 0, |bytes, lent| lent_buffer(device, bytes, lent));
            Ok(SlotBuffers {
                activation: rows(activation_bytes, is_lent && !has_wire)?,
                wire: has_wire.then(|| rows(wire_bytes, is_lent)).transpose()?,
                params: device.new_buffer(params_bytes)?,
                logits: optional_buffer(device, logits_bytes)?,
                picks: optional_buffer(device, picks_bytes)?,
            })
        };
        let slots: Vec<_> = (0..slots).map(|_| slot()).collect::<ragtag_hal::Result<_>>()?;
        let params_stride = params_bytes.next_multiple_of(PARAMS_ALIGNMENT);
        let params = Arc::new(HostRegion::new(params_stride as usize * slots.len())?);
        let params_region = device.new_region(&params)?;
        let scratch = shared.scratch;
        let (recorded, words) = (HashSet::new(), vec![0; params_bytes as usize / 4]);
        let mut new_region = |bytes: u64| -> ragtag_hal::Result<_> {
            Ok(Some((device.new_region_id(), Arc::new(HostRegion::new(bytes as usize)?))))
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
        Ok(Self {
            module,
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
            params_region,
            params_stride,
            first_program,
            recorded,
            words,
        })
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
        Some(BufferRange { buffer, offset: 0, bytes: u64::from(rows) * self.compiled.result.row_bytes() })
    }

    /// Returns the best logits of some logit rows of a slot. Returns `None` if there are no rows or the stage does not
    /// find the best logits.
    pub(crate) fn picks(&self, slot: u32, rows: Range<u32>) -> Option<BufferRange> {
        let buffer = self.slots[slot as usize].picks.filter(|_| !rows.is_empty())?;
        let row_bytes = self.compiled.result.picks_row_bytes();
        let bytes = rows.len() as u64 * row_bytes;
        Some(BufferRange { buffer, offset: u64::from(rows.start) * row_bytes, bytes })
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
        let (rows, sequences) = ([batch.rows(), batch.logit_rows()], batch.items.len() as u32);
        let index = self.compiled.program_for(rows, sequences, batch.decode_rows());
        let index = index.ok_or_else(|| Error::protocol(format!("no program holds {}", batch.id)))?;
        if part == 0 {
            self.write_params(slot, index, batch, &failed)?;
        }
        let id = self.program_id(index, part, slot);
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

    /// Records the programs of micro-batches with at most `rows` decode rows and no others, so that the first
    /// request of each size does not wait for this. If the device runs out of memory, the other programs are
    /// recorded when they are needed.
    pub(crate) fn record_decoding(
        &mut self,
        device: &mut dyn Device,
        rows: u32,
        failed: impl Fn(ragtag_hal::Error) -> Error,
    ) -> Result<()> {
        let sizes: BTreeSet<_> =
            (1..=rows).filter_map(|rows| self.compiled.program_for([rows, rows], rows, rows)).collect();
        let parts = self.streaming.parts.len();
        let programs = sizes.iter().flat_map(|size| (0..parts).map(move |part| (*size, part)));
        for (index, part) in programs {
            for slot in 0..self.slots.len() as u32 {
                let id = self.program_id(index, part, slot);
                match device.record(id, self.commands(index, part, slot)?) {
                    Err(error) if error.is_out_of_memory() => return Ok(()),
                    other => other.map_err(&failed)?,
                }
                self.recorded.insert(id);
            }
        }
        Ok(())
    }

    fn program_id(&self, index: usize, part: usize, slot: u32) -> ProgramId {
        let of_slot = (index * self.streaming.parts.len() + part) as u32 * self.slots.len() as u32;
        ProgramId(self.first_program.0 + of_slot + slot)
    }

    /// Writes a micro-batch's parameter blocks for `slot` and the program at `index`, up to the last used word of
    /// each.
    fn write_params(
        &mut self,
        slot: u32,
        index: usize,
        batch: &MicroBatch,
        failed: &impl Fn(ragtag_hal::Error) -> Error,
    ) -> Result<()> {
        let program = &self.compiled.programs[index];
        let (shape, bytes) = (program.params, self.compiled.params_bytes(program));
        let decode_rows = if program.kind == RowKind::Mixed { batch.decode_rows() } else { 0 };
        let words = &mut self.words[..bytes as usize / 4];
        let failure = |e| Error::protocol(format!("{}: {e}", batch.id));
        let block = |words: &mut [u32], at: usize, in_ring| {
            let used = write_params(batch, &shape, in_ring, &mut words[at..]).map_err(failure)?;
            words[at + DECODE_ROWS as usize] = decode_rows;
            Ok::<_, Error>(at..at + used)
        };
        let mut used = vec![block(words, 0, false)?];
        if self.compiled.kv_ring.is_some() {
            used.push(block(words, shape.kv_ring_offset() as usize / 4, true)?);
        }
        if let Some(rope) = &self.compiled.rope_lengths {
            let at = shape.frequencies_offset(self.compiled.kv_ring.is_some()) as usize / 4;
            let rows = words[at..].chunks_exact_mut(rope.pairs() as usize);
            for (item, row) in batch.items.iter().zip(rows) {
                for (word, frequency) in row.iter_mut().zip(&*rope.frequencies(item.length())) {
                    *word = frequency.to_bits();
                }
            }
            used.push(at..at + batch.items.len() * rope.pairs() as usize);
        }
        let start = u64::from(slot) * self.params_stride;
        let range = start as usize..(start + bytes) as usize;
        // The slot's last program has completed, so no device reads these bytes.
        let mut lease = self.params.write(range).map_err(failed)?;
        let places = lease.as_chunks_mut::<4>().0;
        for range in used {
            for (place, word) in places[range.clone()].iter_mut().zip(&words[range]) {
                *place = word.to_ne_bytes();
            }
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

    /// Returns the commands that upload the parameters of a program in `slot`.
    fn uploads(&self, program: &Program, slot: u32) -> impl Iterator<Item = Command> {
        let (region, buffer) = (self.params_region, self.slots[slot as usize].params);
        let (shape, start) = (program.params, u64::from(slot) * self.params_stride);
        let ring = self.compiled.kv_ring.map(|_| shape.kv_ring_offset());
        let blocks = iter::once(0).chain(ring).map(move |at| {
            let to = BufferRange { buffer, offset: at, bytes: shape.bytes() };
            Command::UploadUsed { region, offset: start + at, to, used: USED_WORDS }
        });
        let frequencies = self.compiled.rope_lengths.as_ref().map(|rope| {
            let offset = shape.frequencies_offset(ring.is_some());
            let to = BufferRange { buffer, offset, bytes: shape.frequencies_bytes(rope.pairs()) };
            Command::Upload { region, offset: start + offset, to }
        });
        blocks.chain(frequencies)
    }

    /// Returns the commands of a part of the program at `index`: on the first part the uploads of the
    /// parameters, then the steps of the part.
    fn commands(&self, index: usize, part: usize, slot: u32) -> Result<Vec<Command>> {
        let program = &self.compiled.programs[index];
        let uploads = (part == 0).then(|| self.uploads(program, slot)).into_iter().flatten();
        let segments = &self.streaming.parts[part].segments;
        let steps = program.steps.iter().filter(|step| segments.contains(&step.segment)).map(|step| {
            let bindings =
                step.slices.iter().map(|slice| self.binding(slice, slot)).collect::<Result<_>>()?;
            Ok(Command::Dispatch(Dispatch {
                module: self.module,
                entry: step.entry,
                bindings,
                constants: step.constants.clone(),
                grid: step.grid,
            }))
        });
        uploads.map(Ok).chain(steps).collect()
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
            StageBuffer::Picks => buffers.picks,
            StageBuffer::Params => Some(buffers.params),
        };
        let buffer = buffer.ok_or_else(|| Error::protocol(format!("a program binds {:?}", slice.buffer)))?;
        let range = BufferRange { buffer, offset: slice.offset, bytes: slice.bytes };
        Ok(Binding { range, access: slice.access })
    }
}
