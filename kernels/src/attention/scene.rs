//! Test scenes for attention. A scene has sequences with keys and values in a cache, and rows that attend to
//! them.

use super::{CHUNKS, NO_WINDOW};
use crate::cases::{Build, Params, Random};
use crate::kernel::KvType;
use crate::kv::CacheLayout;
use crate::params::{BLOCK_TOKENS, ParamsShape};
use crate::rope_append;
use std::ops::Range;

/// A cache that a scene fills. Values are rounded to the cache's type. Unwritten slots are NaN.
struct Cache {
    layout: CacheLayout,
    values: Vec<f32>,
}

impl Cache {
    fn new(layout: CacheLayout, values: usize) -> Self {
        Self { layout, values: vec![f32::NAN; values] }
    }

    /// Stores the keys or values of a head, and returns them as the cache holds them.
    fn put(&mut self, part: usize, slot: usize, row: &[f32]) -> Vec<f64> {
        let rounded = self.layout.cache_type.rounded(row);
        for (dim, value) in rounded.iter().enumerate() {
            self.values[self.layout.index(part, slot, dim)] = *value;
        }
        rounded.into_iter().map(f64::from).collect()
    }

    fn bytes(&self) -> Vec<u8> {
        self.layout.encode(&self.values)
    }
}

/// Numbers of positions in the longest cases. They exceed 256, 1,024 and 4,096 positions, respectively,
/// because kernels execute more steps or different code paths beyond these numbers.
pub(super) const LONG: [u32; 3] = [300, 1100, 5000];

/// Keys and values of one kv head, each `[positions][head dimension]`.
type KeysValues = (Vec<Vec<f64>>, Vec<Vec<f64>>);

/// Largest magnitudes of query values. The rows of a scene use them in turn. With the first, most softmax
/// weights are similar. With the second, all softmax weights are similar. With the third, all but a few are
/// negligible.
const LARGEST: [f32; 3] = [2.0, 1e-3, 40.0];

/// Inputs of an attention case.
pub(super) struct Scene {
    pub label: String,
    /// Constants of the attention kernel.
    pub constants: Vec<usize>,
    pub capacity: usize,
    pub heads: usize,
    pub head_dim: usize,
    kv_heads: usize,
    stride: usize,
    scale: f32,
    window: u32,
    cap: f32,
    params: Params,
    q: Vec<f32>,
    keys: Cache,
    values: Cache,
    /// Keys and values, indexed by sequence, then by kv head.
    kv: Vec<Vec<KeysValues>>,
    /// Number of positions to which each used row attends, or `None` for an invalid row.
    seen: Vec<Option<usize>>,
}

/// Inputs of RoPE and KV append for one row, and the contents of the cache that the kernel must write.
pub(super) struct Fresh {
    pub qkv: Vec<f32>,
    pub frequencies: Vec<f32>,
    pub keys: Vec<Option<f64>>,
    pub values: Vec<Option<f64>>,
}

/// Expected result of attention for one head over a range of positions.
pub(super) struct Softmax {
    pub largest: f64,
    pub sum: f64,
    pub mean: Vec<f64>,
}

impl Scene {
    /// Returns the number of rows in use.
    pub fn rows(&self) -> usize {
        self.seen.len()
    }

    /// Makes split attention compute the first `rows` rows, and attention skip them.
    pub fn skip(&mut self, rows: u32) {
        self.params.decode_rows = rows;
        self.label += &format!(", {rows} decode rows");
    }

    /// Returns the number of rows that split attention computes and attention skips.
    pub fn decode_rows(&self) -> usize {
        self.params.decode_rows as usize
    }

    /// Returns the positions to which `row` attends, or `None` if the row is invalid.
    pub fn visible(&self, row: usize) -> Option<Range<usize>> {
        let size = (self.window & !CHUNKS) as usize;
        let start = |seen: usize| match self.window {
            NO_WINDOW => 0,
            window if window < CHUNKS => seen.saturating_sub(size),
            _ => (0..seen).rev().find(|position| position.is_multiple_of(size)).expect("a chunk starts at 0"),
        };
        self.seen[row].map(|seen| start(seen)..seen)
    }

    /// Limits attention to a window, and the scores to a cap.
    pub fn limit(&mut self, window: u32, cap: f32) {
        (self.window, self.cap) = (window, cap);
        let at = self.constants.len() - 2;
        self.constants[at..].copy_from_slice(&[window as usize, cap.to_bits() as usize]);
        let kind = if window > CHUNKS && window != NO_WINDOW { "chunks of" } else { "window" };
        self.label += &format!(", {kind} {}, cap {cap}", window & !CHUNKS);
    }

    /// In half of all cases, limits attention to a random window or to chunks, and the scores to a random cap or none.
    pub fn limit_randomly(&mut self, random: &mut Random) {
        let (window, cap) = (1 + random.below(190) as u32, [0.0, 0.7, 4.0][random.below(3)]);
        if random.below(2) == 0 {
            self.limit(window | [0, CHUNKS][random.below(2)], cap);
        }
    }

    /// Computes the result of `row` and `head` over `positions`. Computes all scores first, instead of
    /// streaming over them.
    pub fn softmax(&self, row: usize, head: usize, positions: Range<usize>) -> Softmax {
        let q = &self.q[row * self.stride + head * self.head_dim..][..self.head_dim];
        let sequence = self.params.row_sequences[row] as usize;
        let (k, v) = &self.kv[sequence][head * self.kv_heads / self.heads];
        let (k, v) = (&k[positions.clone()], &v[positions]);
        let cap = f64::from(self.cap);
        let score = |k: &Vec<f64>| {
            let score = q.iter().zip(k).map(|(q, k)| f64::from(*q) * k).sum::<f64>() * f64::from(self.scale);
            if cap == 0.0 { score } else { cap * (score / cap).tanh() }
        };
        let scores: Vec<f64> = k.iter().map(score).collect();
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|s| (s - largest).exp()).collect();
        let sum: f64 = weights.iter().sum();
        let mean = |i: usize| weights.iter().zip(v).map(|(w, v)| w * v[i]).sum::<f64>() / sum;
        Softmax { largest, sum, mean: (0..q.len()).map(mean).collect() }
    }

    /// Writes `value` into the first dimension of each query of `row`.
    pub fn spoil(&mut self, row: usize, value: f32) {
        let queries = &mut self.q[row * self.stride..][..self.heads * self.head_dim];
        queries.iter_mut().step_by(self.head_dim).for_each(|first| *first = value);
    }

    /// Makes the keys and values NaN at all positions before the first window of each sequence.
    pub fn poison_before_windows(&mut self) {
        for (sequence, table) in self.params.tables.iter().take(self.kv.len()).enumerate() {
            let own = (0..self.rows()).filter(|row| self.params.row_sequences[*row] as usize == sequence);
            let first = own.filter_map(|row| self.visible(row)).map(|visible| visible.start).min();
            for position in 0..first.unwrap_or(0) {
                for head in 0..self.kv_heads {
                    let part = table[position / BLOCK_TOKENS] as usize * self.kv_heads + head;
                    for cache in [&mut self.keys, &mut self.values] {
                        cache.put(part, position % BLOCK_TOKENS, &vec![f32::NAN; self.head_dim]);
                    }
                }
            }
        }
        self.label += ", NaN before windows";
    }

    /// Adds the parameters, queries, keys and values to `build`.
    pub fn inputs(&self, build: Build) -> Build {
        self.inputs_from(build, &self.q)
    }

    /// Like [`Scene::inputs`], but with `q` in place of the scene's queries.
    pub fn inputs_from(&self, build: Build, q: &[f32]) -> Build {
        let build = build.words(&self.params.words()).floats(q);
        build.bytes(self.keys.bytes()).bytes(self.values.bytes())
    }

    /// Replaces the first row with a row that needs RoPE and KV append. The row's key and value belong to the
    /// last position that it attends to, and the cache slot of this position becomes empty. Both have `times`
    /// times the magnitude of the queries.
    pub fn freshen(
        &mut self,
        random: &mut Random,
        rope_dims: usize,
        (pairing, magnitude): (u32, f32),
        times: f32,
    ) -> Fresh {
        let (heads, kv_heads, head_dim) = (self.heads, self.kv_heads, self.head_dim);
        let frequencies = rope_append::frequencies(rope_dims);
        let mut qkv = random.floats((heads + 2 * kv_heads) * head_dim, 2.0);
        qkv[heads * head_dim..].iter_mut().for_each(|value| *value *= times);
        let mut turned: Vec<f64> = qkv.iter().map(|v| f64::from(*v)).collect();
        let (turning, new_values) = turned.split_at_mut((heads + kv_heads) * head_dim);
        for head in turning.chunks_exact_mut(head_dim) {
            rope_append::reference(head, &frequencies, self.params.positions[0], pairing, magnitude);
        }
        let (queries, new_keys) = turning.split_at(heads * head_dim);
        self.q = queries.iter().map(|v| *v as f32).collect();
        let (mut keys, mut values) =
            (vec![None; self.keys.values.len()], vec![None; self.values.values.len()]);
        if let Some(position) = self.seen[0].map(|seen| seen - 1) {
            let sequence = self.params.row_sequences[0] as usize;
            let block = self.params.tables[sequence][position / BLOCK_TOKENS] as usize;
            let slot = position % BLOCK_TOKENS;
            for head in 0..kv_heads {
                let part = block * kv_heads + head;
                let (k, v) = &mut self.kv[sequence][head];
                for (cache, new, seen, expected) in [
                    (&mut self.keys, new_keys, &mut k[position], &mut keys),
                    (&mut self.values, &*new_values, &mut v[position], &mut values),
                ] {
                    let new = &new[head * head_dim..][..head_dim];
                    *seen = cache.put(part, slot, &new.iter().map(|v| *v as f32).collect::<Vec<_>>());
                    cache.put(part, slot, &vec![f32::NAN; head_dim]);
                    for (dim, value) in cache.layout.cache_type.stored(new).into_iter().enumerate() {
                        expected[cache.layout.index(part, slot, dim)] = Some(value);
                    }
                }
            }
        }
        Fresh { qkv, frequencies, keys, values }
    }
}

/// Returns a random row capacity and sequences that fill part of it. Also returns the number of heads, the
/// number of kv heads, and the head dimension.
pub(super) fn random_scene(random: &mut Random, kv_type: KvType) -> (usize, Vec<(u32, u32)>, [usize; 3]) {
    let (mut starts, mut used) = (Vec::new(), 0);
    for _ in 0..1 + random.below(3) {
        let (first, count) = (random.below(170), 1 + random.below(20));
        starts.push((first as u32, count as u32));
        used += count;
    }
    let kv_heads = 1 + random.below(3);
    let head_dim =
        if kv_type.is_quantised() { 32 * (1 + random.below(5)) } else { 4 * (1 + random.below(40)) };
    let heads = [kv_heads * (1 + random.below(5)), kv_heads, head_dim];
    (used + random.below(5), starts, heads)
}

/// Builds a scene. `starts` lists the first position and the number of rows of each sequence. If the capacity
/// allows more rows, some of them have an invalid sequence, position or block.
pub(super) fn scene(
    random: &mut Random,
    kv_type: KvType,
    (capacity, heads, kv_heads, head_dim): (usize, usize, usize, usize),
    starts: &[(u32, u32)],
) -> Scene {
    let seen = starts.iter().map(|(first, count)| (first + count) as usize).max().unwrap_or_default();
    let table_blocks = seen.div_ceil(BLOCK_TOKENS).max(13);
    let cache_blocks = table_blocks * starts.len() + 3;
    let lying = starts.len() as u32; // Its table names a block that does not exist.
    let shape = ParamsShape {
        rows: capacity as u32,
        logit_rows: 1,
        sequences: lying + 1,
        table_blocks: table_blocks as u32,
    };
    let scale = 1.0 / (head_dim as f32).sqrt();
    // The gap between the queries of two rows holds unrelated values.
    let (width, stride) = (heads * head_dim, heads * head_dim + capacity % 3 * kv_heads * head_dim);
    let mut q = vec![f32::NAN; (capacity - 1) * stride + width];
    for (row, largest) in q.chunks_mut(stride).zip(LARGEST.into_iter().cycle()) {
        row[..width].copy_from_slice(&random.floats(width, largest));
    }
    let values = cache_blocks * kv_heads * head_dim * BLOCK_TOKENS;
    let [mut keys, mut cached] =
        rope_append::layouts(kv_type, head_dim).map(|layout| Cache::new(layout, values));
    let mut params = Params::new(shape);
    let (mut all_kv, mut seen) = (Vec::new(), Vec::new());
    let blocks = random.shuffled(cache_blocks);
    for (s, (start, count)) in starts.iter().enumerate() {
        let table = &blocks[s * table_blocks..(s + 1) * table_blocks];
        let mut kv = vec![(Vec::new(), Vec::new()); kv_heads];
        for (head, (k, v)) in kv.iter_mut().enumerate() {
            for position in 0..(start + count) as usize {
                let block = table[position / BLOCK_TOKENS] as usize;
                let (part, slot) = (block * kv_heads + head, position % BLOCK_TOKENS);
                k.push(keys.put(part, slot, &random.floats(head_dim, 1.0)));
                v.push(cached.put(part, slot, &random.floats(head_dim, 1.0)));
            }
        }
        for position in *start..start + count {
            seen.push(Some(position as usize + 1));
            params.positions.push(position);
            params.row_sequences.push(s as u32);
        }
        params.tables.push(table.to_vec());
        all_kv.push(kv);
    }
    params.tables.push(vec![cache_blocks as u32; table_blocks]);
    for (sequence, position) in [(lying, 3), (lying + 1, 0), (0, (BLOCK_TOKENS * table_blocks) as u32)] {
        if params.positions.len() < capacity {
            params.positions.push(position);
            params.row_sequences.push(sequence);
            seen.push(None);
        }
    }
    let named = match starts.len() {
        0..=8 => format!("{starts:?}"),
        count => format!("{count} sequences"),
    };
    let label =
        format!("{named} in {capacity} rows, {heads} heads on {kv_heads} of {head_dim}, stride {stride}");
    let sequences = starts.len() + 1;
    let mut constants = vec![capacity, sequences, table_blocks, 1, heads, kv_heads, head_dim, cache_blocks];
    constants.extend([scale.to_bits() as usize, stride, NO_WINDOW as usize, 0]);
    let (values, kv) = (cached, all_kv);
    Scene {
        label,
        constants,
        capacity,
        heads,
        head_dim,
        kv_heads,
        stride,
        scale,
        window: NO_WINDOW,
        cap: 0.0,
        params,
        q,
        keys,
        values,
        kv,
        seen,
    }
}
