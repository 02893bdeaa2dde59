//! The synthetic model: its stages, weights, kernels and expected output.

use ragtag_graph::{
    CompiledStage, Program, ProgramStep, RowKind, Slice, StageBuffer, StageResult, WeightBuffer, WeightChunk,
    WeightContent,
};
use ragtag_hal::{Access, EntryAbi, HostCall, Module, ModuleSource};
use ragtag_kernels::params::{BLOCK_TOKENS, LOGIT_ROWS, ParamsShape, ROWS};
use ragtag_scheduler::WeightSource;
use std::ops::Range;

/// Size of one row of activations in bytes: one hash plus padding.
pub const ROW_BYTES: u64 = 24;
const ROW: usize = ROW_BYTES as usize / 8;

pub fn mix(a: u64, b: u64) -> u64 {
    let x = (a ^ b.rotate_left(23)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x ^ x >> 31
}

#[derive(Clone, Copy, Debug)]
pub struct Model {
    pub layers: usize,
    pub vocabulary: u32,
    pub kv_blocks: u32,
    pub table_blocks: u32,
    pub weight_bytes: u64,
    /// Maximum number of rows of each of the two buckets.
    pub buckets: [u32; 2],
    pub sequences: u32,
}

impl Default for Model {
    fn default() -> Self {
        Self {
            layers: 4,
            vocabulary: 97,
            kv_blocks: 64,
            table_blocks: 8,
            weight_bytes: 1000,
            buckets: [4, 16],
            sequences: 4,
        }
    }
}

fn no_extents(_: &[u32], extents: &mut [u64]) {
    extents.fill(0);
}

const fn abi(name: &'static str, bindings: &'static [Access]) -> EntryAbi {
    EntryAbi { name, bindings, constants: 4, extents: no_extents }
}

use Access::{Read, ReadWrite, Write};
static EMBED: EntryAbi = abi("embed", &[Read, Write]);
static LAYER: EntryAbi = abi("layer", &[Read, ReadWrite, ReadWrite, Read]);
static HEAD: EntryAbi = abi("head", &[Read, Read, Write]);

impl Model {
    /// Returns the number of segments: the embedding, one per layer, and the head.
    pub fn segments(&self) -> usize {
        self.layers + 2
    }

    fn kv_bytes(&self) -> u64 {
        u64::from(self.kv_blocks) * BLOCK_TOKENS as u64 * 8
    }

    /// Compiles a stage that consists of `segments`.
    pub fn compile(&self, segments: Range<usize>) -> CompiledStage {
        let layers: Vec<usize> = segments.clone().filter(|&s| s > 0 && s <= self.layers).collect();
        let last = segments.end == self.segments();
        let weights = layers.iter().map(|l| WeightBuffer {
            name: format!("layer {l}"),
            content: WeightContent::Vector {
                tensors: Vec::new(),
                values: self.weight_bytes / 4,
                pitch: None,
                affine: ragtag_graph::ops::Affine::IDENTITY,
            },
            segment: *l,
        });
        CompiledStage {
            segments: segments.clone(),
            module: Module {
                name: "made up".into(),
                entries: vec![&EMBED, &LAYER, &HEAD],
                source: ModuleSource::Host(vec![embed, layer, head]),
            },
            weights: weights.collect(),
            kv_bytes: layers.iter().map(|_| self.kv_bytes()).collect(),
            kv_blocks: self.kv_blocks,
            kv_ring: None,
            rope_lengths: None,
            is_kv_ring: vec![false; layers.len()],
            variants: Vec::new(),
            scratch_bytes: 0,
            row_bytes: ROW_BYTES,
            crossing_row_bytes: None,
            result: match last {
                true => StageResult::Logits { vocabulary: self.vocabulary },
                false => StageResult::Nothing,
            },
            programs: self.buckets.iter().map(|&rows| self.program(rows, &segments)).collect(),
        }
    }

    fn program(&self, rows: u32, segments: &Range<usize>) -> Program {
        let params = ParamsShape {
            rows,
            logit_rows: rows,
            sequences: self.sequences,
            table_blocks: self.table_blocks,
        };
        let slice = |buffer, bytes, access| Slice { buffer, offset: 0, bytes, access };
        let read_params = slice(StageBuffer::Params, params.bytes(), Read);
        let activation = |access| slice(StageBuffer::Activation, u64::from(rows) * ROW_BYTES, access);
        let logits = slice(StageBuffer::Logits, u64::from(rows * self.vocabulary) * 4, Write);
        let first = segments.start.max(1);
        let steps = segments.clone().map(|segment| {
            let (entry, slices) = if segment == 0 {
                (0, vec![read_params, activation(Write)])
            } else if segment <= self.layers {
                let layer = segment - first;
                let kv = slice(StageBuffer::Kv(layer), self.kv_bytes(), ReadWrite);
                let weight = slice(StageBuffer::Weight(layer), self.weight_bytes, Read);
                (1, vec![read_params, activation(ReadWrite), kv, weight])
            } else {
                (2, vec![read_params, activation(Read), logits])
            };
            let constants = vec![params.rows, params.logit_rows, params.sequences, params.table_blocks];
            ProgramStep { segment, entry, slices, constants, grid: [1, 1, 1] }
        });
        Program { params, kind: RowKind::Any, steps: steps.collect() }
    }

    /// Returns the weight source of a stage that consists of `segments`.
    pub fn weights(&self, segments: Range<usize>) -> Weights {
        Weights { first_layer: segments.start.max(1), bytes: self.weight_bytes }
    }

    /// Returns the hash of the sequence after each of its tokens.
    fn hashes(&self, tokens: &[u32]) -> Vec<u64> {
        let mut rows: Vec<u64> = tokens.iter().zip(0u64..).map(|(&t, p)| mix(u64::from(t), p)).collect();
        for layer in 1..=self.layers {
            let weight = digest((0..self.weight_bytes).map(|at| weight_byte(layer, at)), self.weight_bytes);
            let mut chain = 0;
            for row in &mut rows {
                chain = mix(chain, mix(*row, weight));
                *row = chain;
            }
        }
        rows
    }

    /// Returns, for each token, the next token that greedy sampling selects.
    pub fn next_tokens(&self, tokens: &[u32]) -> Vec<u32> {
        self.hashes(tokens).iter().map(|h| (h % u64::from(self.vocabulary)) as u32).collect()
    }

    /// Returns the greedy continuation of a prompt, `new_tokens` tokens long.
    pub fn reference(&self, prompt: &[u32], new_tokens: usize) -> Vec<u32> {
        let mut tokens = prompt.to_vec();
        for _ in 0..new_tokens {
            tokens.extend(self.next_tokens(&tokens).last().copied());
        }
        tokens.split_off(prompt.len())
    }
}

fn weight_byte(layer: usize, at: u64) -> u8 {
    mix(layer as u64, at) as u8
}

/// Returns a digest of a weight. It covers only every 997th byte and the last byte, because weights may be
/// large.
fn digest(bytes: impl Iterator<Item = u8>, count: u64) -> u64 {
    let some = bytes.zip(0..).filter(|(_, at)| at % 997 == 0 || at + 1 == count);
    some.fold(count, |sum, (byte, at)| mix(sum, mix(u64::from(byte), at)))
}

#[derive(Debug)]
pub struct Weights {
    first_layer: usize,
    bytes: u64,
}

impl WeightSource for Weights {
    fn chunks(&self, _weight: usize, max_bytes: u64) -> Vec<WeightChunk> {
        // Small weights are divided into uneven chunks too.
        let step = max_bytes.min(self.bytes.div_ceil(3));
        let starts = (0..self.bytes).step_by(step as usize);
        starts.map(|offset| WeightChunk { offset, bytes: step.min(self.bytes - offset) }).collect()
    }

    fn fill(
        &self,
        weight: usize,
        chunk: &WeightChunk,
        out: &mut [u8],
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        for (byte, at) in out.iter_mut().zip(chunk.offset..) {
            *byte = weight_byte(self.first_layer + weight, at);
        }
        Ok(())
    }
}

fn shape(call: &HostCall<'_>) -> ParamsShape {
    let &[rows, logit_rows, sequences, table_blocks] = call.constants else { panic!("{:?}", call.constants) };
    ParamsShape { rows, logit_rows, sequences, table_blocks }
}

/// Returns the range of all elements of the binding at `index`.
fn whole<T>(call: &HostCall<'_>, index: usize) -> Range<usize> {
    0..call.bindings[index].bytes() / size_of::<T>()
}

/// # Safety
/// The requirements of [`HostFn`](ragtag_hal::HostFn). The launch must have a single group.
unsafe fn embed(call: &HostCall<'_>, _: Range<u32>) {
    // SAFETY: the caller guarantees the requirements above, and no other code writes the bytes that one group
    // writes.
    let (params, activation) = unsafe { (call.read::<u32>(0), call.write::<u64>(1, whole::<u64>(call, 1))) };
    let shape = shape(call);
    for (at, row) in activation.chunks_exact_mut(ROW).take(params[ROWS as usize] as usize).enumerate() {
        let (token, position) = (params[shape.tokens() + at], params[shape.positions() + at]);
        row.fill(0);
        row[0] = mix(token.into(), position.into());
    }
}

/// # Safety
/// The requirements of [`embed`].
unsafe fn layer(call: &HostCall<'_>, _: Range<u32>) {
    // SAFETY: as in `embed`.
    let (params, activation, kv, weight) = unsafe {
        (
            call.read::<u32>(0),
            call.write::<u64>(1, whole::<u64>(call, 1)),
            call.write::<u64>(2, whole::<u64>(call, 2)),
            call.read::<u8>(3),
        )
    };
    let (shape, weight) = (shape(call), digest(weight.iter().copied(), weight.len() as u64));
    for (at, row) in activation.chunks_exact_mut(ROW).take(params[ROWS as usize] as usize).enumerate() {
        let position = params[shape.positions() + at] as usize;
        let table = &params[shape.tables() + params[shape.table_starts() + at] as usize..];
        let place = |p: usize| table[p / BLOCK_TOKENS] as usize * BLOCK_TOKENS + p % BLOCK_TOKENS;
        kv[place(position)] = mix(row[0], weight);
        row[0] = (0..=position).fold(0, |chain, p| mix(chain, kv[place(p)]));
    }
}

/// # Safety
/// The requirements of [`embed`].
unsafe fn head(call: &HostCall<'_>, _: Range<u32>) {
    // SAFETY: as in `embed`.
    let (params, activation, logits) =
        unsafe { (call.read::<u32>(0), call.read::<u64>(1), call.write::<f32>(2, whole::<f32>(call, 2))) };
    let shape = shape(call);
    let vocabulary = logits.len() / shape.logit_rows as usize;
    let rows = &params[shape.logit_rows()..][..params[LOGIT_ROWS as usize] as usize];
    for (row, logits) in rows.iter().zip(logits.chunks_exact_mut(vocabulary)) {
        logits.fill(0.0);
        logits[(activation[*row as usize * ROW] % vocabulary as u64) as usize] = 1.0;
    }
}
