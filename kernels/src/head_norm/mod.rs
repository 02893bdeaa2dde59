//! Head norm: normalises each query head and each key head of a row in one of the ways of [`Form`], and
//! multiplies each dimension by a weight. One form also normalises the value heads. The kernel works in place.
//!
//! | binding | |
//! | --- | --- |
//! | 0 | parameters |
//! | 1 | qkv: f32 `[rows, heads + 2 · kv heads, head dimension]`, read and written |
//! | 2 | weights for queries, then weights for keys: f32 `[2, head dimension]`, or `[heads + kv heads, head dimension]` |
//!
//! The constants are the row capacity, the index of the parameter word that holds the row count, the heads,
//! the kv heads, the head dimension, ε (the bits of an f32), the form, and a period in positions. In the forms [`Form::Whole`] and
//! [`Form::Centred`], each value of a row's queries and keys has its own weight. The value heads in `qkv` stay
//! unchanged, except in the form [`Form::Values`], where they have no weights.
//!
//! In the form [`Form::Growth`], the kernel reads no weights. It multiplies the queries of a row at position p by
//! 1 + ε · ln(1 + ⌊(p + 1) / period⌋). The period is at least 1.
//!
//! Squares and their sum are computed in f32, with the same limits as in [`crate::rms_norm`] and
//! [`crate::layer_norm`].

use crate::abi::{HEADER_BYTES, IMPOSSIBLE, array, words};
use crate::cases::{Build, Case, ROW_SHAPES, Random, RowShape};
use crate::kernel::{Kernel, Spec};
use crate::layout::Layout;
use crate::{layer_norm, rms_norm};
use ragtag_hal::{Access, EntryAbi};
use serde::Serialize;

/// Form of the norm. The kernel receives the discriminant as a constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u32)]
pub enum Form {
    /// RMS norm of each head. All query heads share their weights, and so do all key heads.
    Heads,
    /// RMS norm of all queries of a row as one head, and of all keys.
    Whole,
    /// Layer norm of each head without a bias.
    Centred,
    /// [`Form::Heads`], and an RMS norm of each value head without weights.
    Values,
    /// No norm. Queries grow with their position.
    Growth,
}

impl Form {
    /// All forms.
    pub const ALL: [Form; 5] = [Form::Heads, Form::Whole, Form::Centred, Form::Values, Form::Growth];

    /// Returns whether all query heads share their weights, and so do all key heads.
    pub(crate) fn shares_weights(form: u32) -> bool {
        [Form::Heads, Form::Values].iter().any(|shared| form == *shared as u32)
    }
}

/// Binary interface.
pub static ABI: EntryAbi = EntryAbi {
    name: "head_norm",
    bindings: &[Access::Read, Access::ReadWrite, Access::Read],
    constants: 8,
    extents: |constants, extents| {
        let [rows, _, heads, kv_heads, head_dim, _, form, period] = array(constants);
        let grows = form == Form::Growth as u32;
        if form as usize >= Form::ALL.len() || grows && period == 0 {
            return extents.fill(IMPOSSIBLE);
        }
        let joint = kv_heads.checked_mul(2).and_then(|kv| kv.checked_add(heads));
        let qkv = joint.map_or(IMPOSSIBLE, |joint| words(&[rows, joint, head_dim]));
        let weights = if Form::shares_weights(form) { Some(2) } else { heads.checked_add(kv_heads) };
        let weights = weights.map_or(IMPOSSIBLE, |heads| words(&[heads, head_dim]));
        // Token ids and positions follow the header.
        let positions = if grows { words(&[rows, 2]) } else { 0 };
        let weights = if grows { 0 } else { weights };
        extents.copy_from_slice(&[HEADER_BYTES.saturating_add(positions), qkv, weights]);
    },
};

/// Returns a grid of rows × heads. The heads are the query heads, the key heads and in one form the value heads, or all
/// queries and all keys as one head each.
pub(crate) fn grid(constants: &[u32]) -> [u32; 3] {
    let [rows, _, heads, kv_heads, _, _, form, _] = array(constants);
    let normed = match form {
        _ if form == Form::Growth as u32 => heads,
        _ if form == Form::Whole as u32 => 2,
        _ if form == Form::Values as u32 => heads.saturating_add(kv_heads.saturating_mul(2)),
        _ => heads.saturating_add(kv_heads),
    };
    [rows, normed, 1]
}

pub(crate) struct HeadNorm;

impl Spec for HeadNorm {
    fn abi(&self, _: Layout) -> &'static EntryAbi {
        &ABI
    }

    fn cases(&self, _: Layout, random: &mut Random) -> Vec<Case> {
        let heads = [[1, 1, 32], [6, 2, 40], [4, 4, 128], [24, 1, 7], [3, 3, 64], [2, 1, 300]];
        let shapes = || ROW_SHAPES.into_iter().zip(heads);
        let others = Form::ALL.into_iter().filter(|form| *form != Form::Heads);
        let others = others.flat_map(|form| shapes().map(move |one| (one, form)));
        let others = others.filter(|((shape, _), _)| shape.rows > 0);
        let all = shapes().map(|one| (one, Form::Heads)).chain(others);
        all.map(|((shape, heads), form)| case(random, shape, heads, form)).collect()
    }

    fn random_case(&self, _: Layout, random: &mut Random) -> Case {
        let kv_heads = 1 + random.below(4);
        let heads = [kv_heads * (1 + random.below(4)), kv_heads, 1 + random.below(150)];
        let shape = RowShape::random(random, 20);
        let form = Form::ALL[random.below(Form::ALL.len())];
        case(random, shape, heads, form)
    }
}

fn case(random: &mut Random, shape: RowShape, [heads, kv_heads, head_dim]: [usize; 3], form: Form) -> Case {
    if form == Form::Growth {
        return growth(random, shape, [heads, kv_heads, head_dim]);
    }
    let epsilon = 1e-5_f32;
    let joint = heads + 2 * kv_heads;
    let mut qkv = random.floats(shape.capacity * joint * head_dim, 3.0);
    if form == Form::Centred {
        qkv.iter_mut().for_each(|x| *x += 1.0);
    }
    rms_norm::small_rows(&mut qkv, head_dim);
    let parts = [heads, kv_heads].map(|count| count * head_dim);
    let [q, kv] = if Form::shares_weights(form as u32) { [head_dim; 2] } else { parts };
    let weights = random.floats(q + kv, 1.5);
    let norm = |values: &[f32], weights: &[f32]| -> Vec<f64> {
        if form != Form::Centred {
            let heads = values.chunks_exact(weights.len());
            return heads.flat_map(|x| rms_norm::reference(x, weights, epsilon)).collect();
        }
        let heads = values.chunks_exact(head_dim).zip(weights.chunks_exact(head_dim));
        heads.flat_map(|(x, w)| layer_norm::reference(x, w, &vec![0.0; head_dim], epsilon)).collect()
    };
    let mut expected = Vec::new();
    for (row, values) in qkv.chunks_exact(joint * head_dim).enumerate() {
        let (queries, rest) = values.split_at(heads * head_dim);
        let (keys, values) = rest.split_at(kv_heads * head_dim);
        let normed = [norm(queries, &weights[..q]), norm(keys, &weights[q..])].concat();
        // Rows beyond the count keep their bits, and so do values in most forms.
        let is_used = row < shape.rows;
        expected.extend(normed.into_iter().map(|value| is_used.then_some(value)));
        if form == Form::Values {
            let normed = norm(values, &vec![1.0; head_dim]);
            expected.extend(normed.into_iter().map(|value| is_used.then_some(value)));
        } else {
            expected.resize(expected.len() + values.len(), None);
        }
    }
    let label = format!("{}, {heads} heads on {kv_heads}, {form:?}", shape.label(head_dim));
    let constants = [shape.capacity, shape.count_word as usize, heads, kv_heads, head_dim];
    let constants = [&constants[..], &[epsilon.to_bits() as usize, form as usize, 0]].concat();
    let case = Build::new(Kernel::HeadNorm, label, &constants);
    case.words(&shape.header()).floats(&qkv).floats(&weights).expect_f32(1, expected)
}

/// Builds a case in which queries grow.
fn growth(random: &mut Random, shape: RowShape, [heads, kv_heads, head_dim]: [usize; 3]) -> Case {
    let (beta, period, joint) = (0.3_f32, 50, (heads + 2 * kv_heads) * head_dim);
    let qkv = random.floats(shape.capacity * joint, 3.0);
    let positions: Vec<u32> = (0..shape.capacity).map(|_| random.below(1000) as u32).collect();
    let expected = qkv.iter().enumerate().map(|(at, value)| {
        let periods = (positions[at / joint] + 1) / period;
        let factor = 1.0 + f64::from(beta) * (1.0 + f64::from(periods)).ln();
        // Keys, values and the rows beyond the count keep their bits.
        let grows = at / joint < shape.rows && at % joint < heads * head_dim;
        grows.then_some(f64::from(*value) * factor)
    });
    let label = format!("{}, {heads} heads on {kv_heads}, growth", shape.label(head_dim));
    let constants = [shape.capacity, shape.count_word as usize, heads, kv_heads, head_dim];
    let numbers = [beta.to_bits() as usize, Form::Growth as usize, period as usize];
    let case = Build::new(Kernel::HeadNorm, label, &[&constants[..], &numbers].concat());
    let params = [&shape.header()[..], &vec![0; shape.capacity], &positions].concat();
    let expected = expected.collect();
    case.words(&params).floats(&qkv).floats(&[f32::NAN]).expect_f32(1, expected)
}
