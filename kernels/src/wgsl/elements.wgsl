// Elements of 32 or 16 bits. The number of their type is 0 for f32, 1 for f16 and 2 for bf16. Conversions
// operate on bits, so that every device rounds in the same way: to nearest, ties to even.

fn in_a_word(kind: u32) -> u32 { return select(2u, 1u, kind == 0u); }

// Index of the word that holds element `i`, and the bits of the element in this word.
fn word_of(kind: u32, i: u32) -> u32 { return select(i / 2u, i, kind == 0u); }
fn element_in(word: u32, kind: u32, i: u32) -> u32 { return select((word >> (i % 2u * 16u)) & 0xffffu, word, kind == 0u); }

fn f32_of_half(bits: u32) -> u32 {
    let sign = (bits & 0x8000u) << 16u;
    let size = bits & 0x7fffu;
    if size > 0x7c00u { return sign | 0x7fc00000u | (size << 13u); }
    if size == 0x7c00u { return sign | 0x7f800000u; }
    if size >= 0x400u { return sign | ((size << 13u) + 0x38000000u); }
    if size == 0u { return sign; }
    return sign | (bitcast<u32>(f32(size)) - 0x0c000000u); // size · 2^-24
}

fn half_of_f32(bits: u32) -> u32 {
    let sign = (bits >> 16u) & 0x8000u;
    let size = bits & 0x7fffffffu;
    if size > 0x7f800000u { return sign | 0x7e00u | ((size >> 13u) & 0x3ffu); }
    if size >= 0x477ff000u { return sign | 0x7c00u; } // 65520 and more.
    if size >= 0x38800000u {
        let rest = size - 0x38000000u;
        return sign | ((rest + 0xfffu + ((rest >> 13u) & 1u)) >> 13u);
    }
    if size < 0x33000000u { return sign; } // Less than half of the smallest.
    let mantissa = (size & 0x7fffffu) | 0x800000u;
    let shift = 126u - (size >> 23u);
    let quanta = mantissa >> shift;
    let rest = mantissa & ((1u << shift) - 1u);
    let tie = 1u << (shift - 1u);
    return sign | (quanta + select(0u, 1u, rest > tie || (rest == tie && (quanta & 1u) == 1u)));
}

fn f32_of_brain(bits: u32) -> u32 {
    return select(bits, bits | 0x40u, (bits & 0x7fffu) > 0x7f80u) << 16u;
}

fn brain_of_f32(bits: u32) -> u32 {
    if (bits & 0x7fffffffu) > 0x7f800000u { return (bits >> 16u) | 0x40u; }
    return (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
}

fn convert_element(kind: u32, to: u32, bits: u32) -> u32 {
    if kind == to { return bits; }
    var value = bits;
    if kind == 1u { value = f32_of_half(bits); }
    if kind == 2u { value = f32_of_brain(bits); }
    if to == 0u { return value; }
    if to == 1u { return half_of_f32(value); }
    return brain_of_f32(value);
}

// Value of element `i`, which is in `word`, and the bits of the element that represents a value.
fn value_in(word: u32, kind: u32, i: u32) -> f32 {
    return bitcast<f32>(convert_element(kind, 0u, element_in(word, kind, i)));
}
fn element_of(kind: u32, value: f32) -> u32 { return convert_element(0u, kind, bitcast<u32>(value)); }
