//! Pass over the SPIR-V that naga generates. It removes conversions of f16 values to f32 and back.
//!
//! WGSL kernels read f16 values 16 bytes at a time, as words, because WGSL has no f16 vector of that size.
//! naga cannot express a bitcast of words to f16. It therefore unpacks each value to f32 and converts it
//! back, which drivers do not optimise away. This pass replaces the conversion of an unpacked value with a
//! bitcast. The opcodes are those of SPIR-V 1.6 and GLSL.std.450.
//!
//! This module does not depend on WGSL.

use crate::memory_model::{BOUND, HEADER, instructions};
use std::collections::HashMap;

const OP_EXT_INST: u32 = 12;
const OP_TYPE_INT: u32 = 21;
const OP_TYPE_FLOAT: u32 = 22;
const OP_TYPE_VECTOR: u32 = 23;
const OP_COMPOSITE_CONSTRUCT: u32 = 80;
const OP_F_CONVERT: u32 = 115;
const OP_BITCAST: u32 = 124;
const UNPACK_HALF_2X16: u32 = 62;

/// Replaces conversions of unpacked f16 values in a module with bitcasts.
pub(crate) fn keep(words: Vec<u32>) -> Vec<u32> {
    let facts = IdsOfHalves::of(&words);
    let Some(two_words) = facts.two_words else { return words };
    let mut out: Vec<u32> = words.get(..HEADER).unwrap_or_default().to_vec();
    for (op, instruction) in instructions(&words) {
        match (op, instruction) {
            (OP_F_CONVERT, &[_, of_type, id, from]) if facts.halves.contains(&of_type) => {
                if let Some(word) = facts.unpacked.get(&from) {
                    out.extend([(4 << 16) | OP_BITCAST, of_type, id, *word]);
                    continue;
                }
                if let Some([first, second]) = facts.pairs.get(&from) {
                    let both = out[BOUND];
                    out[BOUND] += 1;
                    out.extend([(5 << 16) | OP_COMPOSITE_CONSTRUCT, two_words, both, *first, *second]);
                    out.extend([(4 << 16) | OP_BITCAST, of_type, id, both]);
                    continue;
                }
            }
            _ => {}
        }
        out.extend(instruction);
    }
    out
}

/// Types and values that the pass needs, by ID.
#[derive(Default)]
struct IdsOfHalves {
    /// Type ID of a vector of two words.
    two_words: Option<u32>,
    /// Type IDs of the vectors of two and of four f16 values.
    halves: Vec<u32>,
    /// For each vector of two f32 values, by ID: the word from which it was unpacked.
    unpacked: HashMap<u32, u32>,
    /// For each vector of four f32 values, by ID: the two words from which it was unpacked.
    pairs: HashMap<u32, [u32; 2]>,
}

impl IdsOfHalves {
    fn of(words: &[u32]) -> Self {
        let mut facts = Self::default();
        let (mut word, mut half) = (None, None);
        for (op, instruction) in instructions(words) {
            match (op, instruction) {
                (OP_TYPE_INT, &[_, id, 32, 0]) => word = Some(id),
                (OP_TYPE_FLOAT, &[_, id, 16]) => half = Some(id),
                (OP_TYPE_VECTOR, &[_, id, of, 2]) if Some(of) == word => facts.two_words = Some(id),
                (OP_TYPE_VECTOR, &[_, id, of, 2 | 4]) if Some(of) == half => facts.halves.push(id),
                (OP_EXT_INST, &[_, _, id, _, UNPACK_HALF_2X16, from]) => {
                    facts.unpacked.insert(id, from);
                }
                (OP_COMPOSITE_CONSTRUCT, &[_, _, id, first, second]) => {
                    let both = facts.unpacked.get(&first).zip(facts.unpacked.get(&second));
                    facts.pairs.extend(both.map(|(first, second)| (id, [*first, *second])));
                }
                _ => {}
            }
        }
        facts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::translate::{SpirVTarget, translate};
    use ragtag_hal::{Feature, Features};

    fn count(words: &[u32], wanted: u32) -> usize {
        instructions(words).filter(|(op, _)| *op == wanted).count()
    }

    #[test]
    fn unpacked_halves_are_not_converted_and_other_floats_are() {
        let text = "enable f16;
            @group(0) @binding(0) var<storage, read_write> out: array<vec4<f16>>;
            @group(0) @binding(1) var<storage, read> words: array<vec2<u32>>;
            fn halves(words: vec2<u32>) -> vec4<f16> {
                return vec4<f16>(vec4<f32>(unpack2x16float(words.x), unpack2x16float(words.y)));
            }
            @compute @workgroup_size(1) fn main() {
                out[0] = halves(words[0]);
                out[1] = vec4<f16>(vec2<f16>(unpack2x16float(words[1].x)), vec2<f16>());
                out[2] = vec4<f16>(vec4<f32>(unpack2x16float(words[2].x), unpack2x16float(words[2].y)) * 2.0);
            }";
        let features: Features = [Feature::Fp16].into_iter().collect();
        let words = translate(text, "main", &SpirVTarget { vulkan: (1, 3), features }).unwrap().words;
        assert_eq!((count(&words, OP_BITCAST), count(&words, OP_F_CONVERT)), (2, 1));
    }
}
