// IQ4_NL, as files store it.

// Returns the value of a quant.
fn value_of_index(index: u32) -> f32 {
    let low = select(0xbfad9881u, 0xf6eaddcfu, (index & 4u) != 0u);
    let high = select(0x26190d01u, 0x71594535u, (index & 4u) != 0u);
    let four = select(low, high, (index & 8u) != 0u);
    return f32(unpack4xI8(four)[index % 4u]);
}

fn is_above(value: f32, index: u32) -> bool {
    return 2.0 * value > value_of_index(index) + value_of_index(index + 1u);
}

// Returns the quant of the nearest value. Searches without a loop, because llvmpipe ends all loops of an
// invocation after 65535 iterations in total.
fn nearest_index(value: f32) -> u32 {
    var index = select(0u, 8u, is_above(value, 7u));
    index += select(0u, 4u, is_above(value, index + 3u));
    index += select(0u, 2u, is_above(value, index + 1u));
    return index + select(0u, 1u, is_above(value, index));
}

// Returns the best scale for 32 values, starting at `first`.
fn scale_of_indices(first: u32) -> f32 {
    let inverse = inverse_of(largest_of(first, 32u));
    var scale = 0.0;
    var best = 0.0;
    for (var step = -134.0; step <= -120.0; step += 1.0) {
        var products = 0.0;
        var squares = 0.0;
        for (var i = first; i < first + 32u; i++) {
            let q = value_of_index(nearest_index(x[i] * (step * inverse)));
            products += q * x[i];
            squares += q * q;
        }
        // With the scale that fits best, the squared error is smallest where this is largest.
        let gain = products * products / squares;
        if gain > best {
            best = gain;
            scale = products / squares;
        }
    }
    return scale;
}

fn scale_iq4_nl() {
    d = half_bits(scale_of_indices(start));
    inverses[0] = inverse_of(half_value(d));
    lowest[0] = 0.0;
}
fn quant_of_iq4_nl(i: u32) -> u32 { return nearest_index(steps_of(i, 0u)); }
fn byte_of_iq4_nl(at: u32) -> u32 {
    if at < 2u { return half_byte(d, at); }
    return nibbles_of(at - 2u);
}
