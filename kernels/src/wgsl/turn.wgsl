// Sine and cosine of position · frequency, accurate to the last bits of f32 for any position. In f32, the
// product would be inexact, and drivers guarantee little accuracy for sines, especially of large angles. The
// angle is therefore computed in integers, as a fraction of a turn.

// First 64 bits of 1 / 2π after the binary point.
const PER_TURN = vec2(0x9391054au, 0x28be60dbu);

// Returns the product of two words, with the low word first.
fn wide_product(a: u32, b: u32) -> vec2<u32> {
    let low = (a & 0xffffu) * (b & 0xffffu);
    let across = vec2((a & 0xffffu) * (b >> 16u), (a >> 16u) * (b & 0xffffu));
    let middle = (low >> 16u) + (across.x & 0xffffu) + (across.y & 0xffffu);
    let high = (a >> 16u) * (b >> 16u) + (across.x >> 16u) + (across.y >> 16u) + (middle >> 16u);
    return vec2((middle << 16u) | (low & 0xffffu), high);
}

// Returns the fraction of a turn per position, in units of 2⁻⁶⁴. The frequency must be positive and below
// 2²⁴.
fn part_of_turn(frequency: f32) -> vec2<u32> {
    let bits = bitcast<u32>(frequency);
    // frequency = mantissa / 2^shift
    let exponent = clamp(bits >> 23u, 1u, 150u);
    let mantissa = (bits & 0x7fffffu) | select(0u, 0x800000u, bits >= 0x800000u);
    var shift = 150u - exponent;
    let low = wide_product(mantissa, PER_TURN.x);
    let high = wide_product(mantissa, PER_TURN.y);
    let middle = high.x + low.y;
    var product = vec3(low.x, middle, high.y + select(0u, 1u, middle < low.y));
    while shift >= 32u {
        product = vec3(product.yz, 0u);
        shift -= 32u;
    }
    // A shift by the whole word width has no effect, so it is handled separately.
    let carried = select(product.yz << vec2(32u - max(shift, 1u)), vec2(0u), shift == 0u);
    return (product.xy >> vec2(shift)) | carried;
}

// Returns the sine and the cosine.
fn turned(position: u32, frequency: f32) -> vec2<f32> {
    let part = part_of_turn(frequency);
    // Whole turns overflow and are discarded.
    let angle = wide_product(position, part.x).y + position * part.y;
    let quarter = (angle + 0x20000000u) >> 30u;
    let x = f32(bitcast<i32>(angle - (quarter << 30u))) * 1.4629180792671596e-9; // 2π / 2³²
    let square = x * x;
    let sine = x + x * square * (-1.0 / 6.0 + square * (1.0 / 120.0 + square * (-1.0 / 5040.0 + square / 362880.0)));
    let cosine = 1.0 + square * (-0.5 + square * (1.0 / 24.0 + square * (-1.0 / 720.0 + square / 40320.0)));
    let swapped = select(vec2(sine, cosine), vec2(cosine, sine), (quarter & 1u) != 0u);
    let is_negative = vec2((quarter & 2u) != 0u, ((quarter + 1u) & 2u) != 0u);
    return select(swapped, -swapped, is_negative);
}
