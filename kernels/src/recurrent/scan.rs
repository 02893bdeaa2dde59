//! State scan: a linear recurrence over the rows of each sequence, with one matrix of state per head.
//!
//! | binding | |
//! | --- | --- |
//! | 0 | parameters |
//! | 1 | x: f32 `[rows, pitch]`: queries and keys of all key heads, values of all heads |
//! | 2 | gates: f32 `[rows, gate pitch]`: one number per head for the decay, or with [`VECTOR`] one for each dimension of its key; with [`DELTA`] one for the strength |
//! | 3 | weights: f32 `[2, heads]`, or `[3, heads]` without [`DELTA`]: A, the biases of the decay, and factors D. With [`VECTOR`] `[heads]`, then `[heads, key dimension]` |
//! | 4 | state: f32 `[slots, heads, key dimension, value dimension]`, read and written |
//! | 5 | out: f32 `[rows, heads, value dimension]`, written |
//!
//! The constants are four capacities (rows, sequences, table blocks, logit rows), the heads, the key heads, the key
//! dimension (at most [`MAX_KEY_DIMENSION`]), the value dimension, the pitch, the first columns of queries, keys and
//! values, the gate pitch, the first columns of the decay's and of the strength's gates, the distance between the gates of
//! the heads of two key heads, the flags, and the slots.
//!
//! For each row of a sequence, head h has the query q and the key k of its key head, the value v, and
//! Δ = softplus(gate + bias). Its state S decays: S ← S · exp(A · Δ), with A = −exp(weight) under [`LOGARITHM`].
//!
//! - With [`DELTA`], q and k are divided by √(their sum of squares + 10⁻⁶), and q also by √(key dimension). The strength β
//!   is the sigmoid of its gate: S ← S + k ⊗ β · (v − Sᵀk), and the result is Sᵀq (a gated delta net).
//! - Otherwise S ← S + k ⊗ Δ · v, and the result is Sᵀq + D · v (Mamba 2, whose names are x for v, B for k, C for q).
//!
//! With [`VECTOR`], which needs [`DELTA`], each row of S, a dimension of the key, has a gate, a bias and so a Δ of its own. The
//! gates of the decay of all heads follow each other (Kimi Delta Attention).
//!
//! Consecutive heads share a key head. With [`TILED`], heads that are `key heads` apart share one.
//!
//! Some variants compute tiles of rows that start at fixed multiples of positions. The bits of a row's result then depend on
//! the position at which its tile was entered: the start of the tile, or of the run.

use super::{Runs, starts};
use crate::abi::{IMPOSSIBLE, array, params, words};
use crate::cases::{Build, Case, Content, Random};
use crate::kernel::{Accuracy, Kernel, Spec};
use crate::layout::Layout;
use ragtag_hal::{Access, EntryAbi};

/// Flag of the delta rule.
pub const DELTA: u32 = 1;
/// Flag of key heads in turn.
pub const TILED: u32 = 2;
/// Flag of logarithms instead of A.
pub const LOGARITHM: u32 = 4;

/// Flag of a decay for each dimension of the key.
pub const VECTOR: u32 = 8;

/// Largest key dimension.
pub const MAX_KEY_DIMENSION: u32 = 128;

/// Items of a group that share the column of a state.
const PARTS: u32 = 4;
/// Work items per group.
pub(crate) const ITEMS: u32 = 128;

/// Constant that is added to the sums of squares of queries and keys.
const EPSILON: f64 = 1e-6;

/// Binary interface.
pub static ABI: EntryAbi = EntryAbi {
    name: "state_scan",
    bindings: &[Access::Read, Access::Read, Access::Read, Access::Read, Access::ReadWrite, Access::Write],
    constants: 18,
    extents: |constants, extents| {
        let [
            rows,
            sequences,
            blocks,
            logit_rows,
            heads,
            key_heads,
            keys,
            values,
            pitch,
            q,
            k,
            v,
            gate_pitch,
            a,
            b,
            stride,
            flags,
            slots,
        ] = array(constants);
        let is_delta = flags & DELTA > 0;
        let fits = |first: u32, heads: u32, width: u32, pitch: u32| {
            let columns = heads.checked_mul(width).and_then(|columns| columns.checked_add(first));
            columns.is_some_and(|end| end <= pitch)
        };
        let in_rows = fits(q, key_heads, keys, pitch)
            && fits(k, key_heads, keys, pitch)
            && fits(v, heads, values, pitch);
        let sharing = heads.checked_div(key_heads).unwrap_or(0);
        let gated =
            |first: u32| fits(first, key_heads.saturating_sub(1), stride, gate_pitch.saturating_sub(sharing));
        let is_vector = flags & VECTOR > 0;
        let has_decays = if is_vector { fits(a, heads, keys, gate_pitch) } else { gated(a) };
        let in_gates = gate_pitch >= sharing && has_decays && (!is_delta || gated(b));
        let divides =
            key_heads > 0 && heads.is_multiple_of(key_heads) && keys <= MAX_KEY_DIMENSION && keys > 0;
        let is_possible = in_rows && in_gates && divides && (is_delta || !is_vector);
        if !is_possible || sequences == 0 || blocks == 0 {
            return extents.fill(IMPOSSIBLE);
        }
        let weights = match (is_vector, is_delta) {
            (true, _) => words(&[1 + keys, heads]),
            (false, true) => words(&[2, heads]),
            (false, false) => words(&[3, heads]),
        };
        let params = params(rows, sequences, blocks, logit_rows);
        let (state, out) = (words(&[slots, heads, keys, values]), words(&[rows, heads, values]));
        extents.copy_from_slice(&[
            params,
            words(&[rows, pitch]),
            words(&[rows, gate_pitch]),
            weights,
            state,
            out,
        ]);
    },
};

/// Returns a grid of sequences × heads × blocks of columns.
pub(crate) fn grid(constants: &[u32]) -> [u32; 3] {
    [constants[0].min(constants[1]), constants[4], constants[7].div_ceil(ITEMS / PARTS)]
}

pub(crate) struct StateScan;

impl Spec for StateScan {
    fn accuracy(&self) -> Accuracy {
        Accuracy::exact(2e-5)
    }

    fn abi(&self, _: Layout) -> &'static EntryAbi {
        &ABI
    }

    fn cases(&self, _: Layout, random: &mut Random) -> Vec<Case> {
        let shapes = [
            [1, 1, 1, 1],
            [4, 2, 128, 128],
            [6, 3, 16, 40],
            [2, 2, 100, 33],
            [4, 1, 64, 64],
            [2, 1, 128, 64],
        ];
        let mut out = Vec::new();
        for ((capacity, starts), shape) in starts().into_iter().zip(shapes) {
            for flags in [DELTA, DELTA | TILED | LOGARITHM, 0, DELTA | VECTOR, DELTA | VECTOR | LOGARITHM] {
                out.push(case(random, capacity, &starts, shape, flags, shape[0] == 6));
            }
        }
        out
    }

    fn random_case(&self, _: Layout, random: &mut Random) -> Case {
        let (capacity, starts) = Runs::random(random, 20);
        let key_heads = 1 + random.below(3);
        let shape =
            [key_heads * (1 + random.below(3)), key_heads, 1 + random.below(128), 1 + random.below(80)];
        let (flags, lies) = (random.below(8) as u32, random.below(4) == 0);
        let flags = if random.below(3) == 0 { flags | DELTA | VECTOR } else { flags };
        case(random, capacity, &starts, shape, flags, lies)
    }
}

fn case(
    random: &mut Random,
    capacity: usize,
    starts: &[(u32, u32)],
    [heads, key_heads, keys, values]: [usize; 4],
    flags: u32,
    lies: bool,
) -> Case {
    let runs = Runs::new(random, capacity, starts, lies);
    let (is_delta, is_vector) = (flags & DELTA > 0, flags & VECTOR > 0);
    let [q_at, k_at, v_at] = [1, 1 + key_heads * keys, 3 + 2 * key_heads * keys];
    // The number of gates of the decay, and of their biases.
    let decays = if is_vector { heads * keys } else { heads };
    let (pitch, gate_pitch) = (v_at + heads * values + 2, heads + decays + 3);
    // The gates of both kinds take turns in every second case.
    let sharing = heads / key_heads;
    let (stride, b_at) = match keys % 2 == 0 || is_vector {
        true => (sharing, 2 + decays),
        false => (2 * sharing, 2 + sharing),
    };
    let x = random.floats(capacity * pitch, 1.0);
    let gates = random.floats(capacity * gate_pitch, 3.0);
    let mut weights = random.floats(heads + decays + if is_delta { 0 } else { heads }, 1.0);
    if flags & LOGARITHM == 0 {
        weights[..heads].iter_mut().for_each(|a| *a = -a.exp());
    }
    let size = keys * values;
    let mut state = vec![f32::NAN; runs.count * heads * size];
    for (.., slot, _) in runs.each() {
        let Some(slot) = slot else { continue };
        let drawn = random.floats(heads * size, 1.0);
        state[slot * drawn.len()..][..drawn.len()].copy_from_slice(&drawn);
    }
    let (mut out, mut states) = (vec![None; capacity * heads * values], vec![None; state.len()]);
    for (first, rows, read, written) in runs.each() {
        for head in 0..heads {
            let old = |slot: usize| &state[(slot * heads + head) * size..][..size];
            let mut s: Vec<f64> = match read {
                Some(slot) => old(slot).iter().map(|value| f64::from(*value)).collect(),
                None => vec![0.0; size],
            };
            for row in first..first + rows {
                let number = |first: usize| {
                    let at = first + head / sharing * stride + head % sharing;
                    f64::from(gates[row * gate_pitch + at])
                };
                let weight = |at: usize| f64::from(weights[at]);
                let part = |column: usize, count: usize| -> Vec<f64> {
                    x[row * pitch + column..][..count].iter().map(|value| f64::from(*value)).collect()
                };
                let key_head = if flags & TILED > 0 { head % key_heads } else { head / (heads / key_heads) };
                let (mut q, mut k) = (part(q_at + key_head * keys, keys), part(k_at + key_head * keys, keys));
                let v = part(v_at + head * values, values);
                let a = if flags & LOGARITHM > 0 { -weight(head).exp() } else { weight(head) };
                let softplus = |gate: f64, bias: f64| (gate + bias).exp().ln_1p();
                let delta = if is_vector { 0.0 } else { softplus(number(2), weight(heads + head)) };
                if is_delta {
                    for (vector, scale) in [(&mut q, 1.0 / (keys as f64).sqrt()), (&mut k, 1.0)] {
                        let squares: f64 = vector.iter().map(|value| value * value).sum();
                        vector.iter_mut().for_each(|value| *value *= scale / (squares + EPSILON).sqrt());
                    }
                }
                let strength = match is_delta {
                    true => 1.0 / (1.0 + (-number(b_at)).exp()),
                    false => delta,
                };
                for (d, line) in s.chunks_exact_mut(values).enumerate() {
                    let own = head * keys + d;
                    let gate = f64::from(gates[row * gate_pitch + 2 + if is_vector { own } else { 0 }]);
                    let delta = if is_vector { softplus(gate, weight(heads + own)) } else { delta };
                    line.iter_mut().for_each(|value| *value *= (a * delta).exp());
                }
                for column in 0..values {
                    let dot = |with: &[f64], s: &[f64]| -> f64 {
                        (0..keys).map(|d| with[d] * s[d * values + column]).sum()
                    };
                    let known = if is_delta { dot(&k, &s) } else { 0.0 };
                    for d in 0..keys {
                        s[d * values + column] += k[d] * strength * (v[column] - known);
                    }
                    let direct = if is_delta { 0.0 } else { weight(2 * heads + head) * v[column] };
                    out[(row * heads + head) * values + column] = Some(dot(&q, &s) + direct);
                }
            }
            if let Some(slot) = written {
                let values = s.into_iter().map(Some).collect::<Vec<_>>();
                states[(slot * heads + head) * size..][..size].copy_from_slice(&values);
            }
        }
    }
    let label = format!(
        "{starts:?} in {capacity} rows, {heads} heads on {key_heads}, {keys} × {values}, flags {flags}, lies {lies}"
    );
    let mut constants = runs.constants();
    constants.extend([heads, key_heads, keys, values, pitch, q_at, k_at, v_at, gate_pitch, 2, b_at, stride]);
    constants.extend([flags as usize, runs.count]);
    let build = Build::new(Kernel::StateScan, label, &constants).words(&runs.params.words());
    let build = build.floats(&x).floats(&gates).floats(&weights).floats(&state);
    let build = build.words(&vec![u32::MAX; out.len()]);
    build.expect(4, Content::F32(states)).expect_f32(5, out)
}
