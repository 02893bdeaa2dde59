//! The made-up model: its stages, weights, kernels and what it should say.

use ragtag_graph::{CompiledStage, Place, Program, Slice, Step, WeightBuffer, WeightChunk, WeightContent};
use ragtag_hal::{Access, EntryAbi, HostCall, Module, ModuleSource};
use ragtag_kernels::params::{BLOCK_TOKENS, LOGIT_ROWS, ParamsShape, ROWS};
use ragtag_scheduler::WeightSource;
use std::ops::Range;

/// Bytes of a row of activations: one hash, and some bytes that make it longer.
pub const ROW_BYTES: u64 = 24;

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
    /// Rows of the buckets.
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

/// # Safety
/// Always safe: the made-up device interprets entries by their number and never calls this.
unsafe fn interpreted(_: &HostCall<'_>, _: Range<u32>) {}

impl Model {
    /// Segments: embedding, layers, head.
    pub fn segments(&self) -> usize {
        self.layers + 2
    }

    fn kv_bytes(&self) -> u64 {
        u64::from(self.kv_blocks) * BLOCK_TOKENS as u64 * 8
    }

    /// The stage of these segments.
    pub fn compile(&self, segments: Range<usize>) -> CompiledStage {
        let layers: Vec<usize> = segments.clone().filter(|&s| s > 0 && s <= self.layers).collect();
        let last = segments.end == self.segments();
        let weights = layers.iter().map(|l| WeightBuffer {
            name: format!("layer {l}"),
            content: WeightContent::Vector { values: self.weight_bytes / 4 },
            segment: *l,
        });
        CompiledStage {
            segments: segments.clone(),
            module: Module {
                name: "made up".into(),
                entries: vec![&EMBED, &LAYER, &HEAD],
                source: ModuleSource::Host(vec![interpreted; 3]),
            },
            weights: weights.collect(),
            kv_bytes: layers.iter().map(|_| self.kv_bytes()).collect(),
            variants: Vec::new(),
            scratch_bytes: 0,
            row_bytes: ROW_BYTES,
            crossing_row_bytes: None,
            logit_row_bytes: if last { u64::from(self.vocabulary) * 4 } else { 0 },
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
        let slice = |place, bytes, access| Slice { place, offset: 0, bytes, access };
        let read_params = slice(Place::Params, params.bytes(), Read);
        let activation = |access| slice(Place::Activation, u64::from(rows) * ROW_BYTES, access);
        let logits = slice(Place::Logits, u64::from(rows * self.vocabulary) * 4, Write);
        let first = segments.start.max(1);
        let steps = segments.clone().map(|segment| {
            let (entry, slices) = if segment == 0 {
                (0, vec![read_params, activation(Write)])
            } else if segment <= self.layers {
                let layer = segment - first;
                let kv = slice(Place::Kv(layer), self.kv_bytes(), ReadWrite);
                let weight = slice(Place::Weight(layer), self.weight_bytes, Read);
                (1, vec![read_params, activation(ReadWrite), kv, weight])
            } else {
                (2, vec![read_params, activation(Read), logits])
            };
            let constants = vec![params.rows, params.logit_rows, params.sequences, params.table_blocks];
            Step { segment, entry, slices, constants, grid: [1, 1, 1] }
        });
        Program { params, steps: steps.collect() }
    }

    /// Where the weights of a stage come from.
    pub fn weights(&self, segments: Range<usize>) -> Weights {
        Weights { first_layer: segments.start.max(1), bytes: self.weight_bytes }
    }

    /// The hash after each token of a sequence.
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

    /// The token of the largest logit after each token.
    pub fn next_tokens(&self, tokens: &[u32]) -> Vec<u32> {
        self.hashes(tokens).iter().map(|h| (h % u64::from(self.vocabulary)) as u32).collect()
    }

    /// What greedy generation says after a prompt.
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

/// A digest of a weight's bytes: of some of them, since weights may be large.
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
        // Small weights in uneven pieces, too.
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

fn word(bytes: &[u8], index: usize) -> u32 {
    u32::from_ne_bytes(bytes[index * 4..][..4].try_into().unwrap())
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..][..8].try_into().unwrap())
}

/// The kernels: `bindings` hold what the ABI says, in its order; the result replaces them.
pub fn interpret(entry: u32, constants: &[u32], bindings: &mut [Vec<u8>]) {
    let [rows, logit_rows, sequences, table_blocks] = constants else { panic!("constants {constants:?}") };
    let shape = ParamsShape {
        rows: *rows,
        logit_rows: *logit_rows,
        sequences: *sequences,
        table_blocks: *table_blocks,
    };
    let (params, rest) = bindings.split_first_mut().unwrap();
    let rows = word(params, ROWS as usize) as usize;
    let row_bytes = ROW_BYTES as usize;
    match (entry, rest) {
        (0, [activation]) => {
            for row in 0..rows {
                let token = word(params, shape.tokens() + row);
                let position = word(params, shape.positions() + row);
                let hash = mix(u64::from(token), u64::from(position));
                activation[row * row_bytes..][..8].copy_from_slice(&hash.to_ne_bytes());
                activation[row * row_bytes + 8..][..16].fill(0);
            }
        }
        (1, [activation, kv, weight]) => {
            let weight = digest(weight.iter().copied(), weight.len() as u64);
            for row in 0..rows {
                let position = word(params, shape.positions() + row) as usize;
                let sequence = word(params, shape.row_sequences() + row) as usize;
                let table = shape.tables() + sequence * shape.table_blocks as usize;
                let place = |p: usize| {
                    let block = word(params, table + p / BLOCK_TOKENS) as usize;
                    (block * BLOCK_TOKENS + p % BLOCK_TOKENS) * 8
                };
                let key = mix(long(activation, row * row_bytes), weight);
                kv[place(position)..][..8].copy_from_slice(&key.to_ne_bytes());
                let chain = (0..=position).fold(0, |chain, p| mix(chain, long(kv, place(p))));
                activation[row * row_bytes..][..8].copy_from_slice(&chain.to_ne_bytes());
            }
        }
        (2, [activation, logits]) => {
            let vocabulary = logits.len() / 4 / shape.logit_rows as usize;
            for index in 0..word(params, LOGIT_ROWS as usize) as usize {
                let row = word(params, shape.logit_rows() + index) as usize;
                let best = (long(activation, row * row_bytes) % vocabulary as u64) as usize;
                for token in 0..vocabulary {
                    let logit = if token == best { 1.0f32 } else { 0.0 };
                    logits[(index * vocabulary + token) * 4..][..4].copy_from_slice(&logit.to_ne_bytes());
                }
            }
        }
        (entry, _) => panic!("entry {entry}"),
    }
}
