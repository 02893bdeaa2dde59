// Rotary position embedding. Angles are integers in units of 2^-32 turns. An item writes a word of one or two
// values.

struct Constants {
    first_group: vec3<u32>,
    kind: u32, rows: u32, heads: u32, head_dim: u32, rope_dims: u32, pairing: u32,
}
var<immediate> constants: Constants;

@group(0) @binding(0) var<storage, read> positions: array<u32>;
@group(0) @binding(1) var<storage, read> turns: array<u32>;
@group(0) @binding(2) var<storage, read> x: array<u32>;
@group(0) @binding(3) var<storage, read_write> out: array<u32>;

fn angle_of(position: u32, low: u32, high: u32) -> u32 {
    let a = position & 0xffffu;
    let b = position >> 16u;
    let c = low & 0xffffu;
    let d = low >> 16u;
    let middle = a * d + ((a * c) >> 16u); // Neither can overflow.
    let other = b * c + (middle & 0xffffu);
    return position * high + b * d + (middle >> 16u) + (other >> 16u);
}

// Sine and cosine.
fn sin_cos_of(angle: u32) -> vec2<f32> {
    let quarter = (angle + (1u << 29u)) >> 30u;
    let x = f32(bitcast<i32>(angle - (quarter << 30u))) * 1.4629180793e-9;
    let z = x * x;
    let sine = fma(x * z, fma(z, fma(z, fma(z, 2.75573192e-6, -1.98412698e-4), 8.33333333e-3), -0.166666667), x);
    let cosine = fma(z, fma(z, fma(z, fma(z, 2.48015873e-5, -1.38888889e-3), 4.16666667e-2), -0.5), 1.0);
    switch quarter {
        case 0u: { return vec2(sine, cosine); }
        case 1u: { return vec2(cosine, -sine); }
        case 2u: { return vec2(-sine, -cosine); }
        default: { return vec2(-cosine, sine); }
    }
}

fn value_at(i: u32) -> f32 { return value_in(x[word_of(constants.kind, i)], constants.kind, i); }

// Returns rotated value `i`, as the bits of an element.
fn turned(i: u32) -> u32 {
    let c = constants;
    let head = i / c.head_dim;
    let at = i % c.head_dim;
    if at >= c.rope_dims { return element_in(x[word_of(c.kind, i)], c.kind, i); }
    let pairs = c.rope_dims / 2u;
    let interleaved = c.pairing == 0u;
    let pair = select(at % pairs, at / 2u, interleaved);
    let a = head * c.head_dim + select(pair, 2u * pair, interleaved);
    let b = a + select(pairs, 1u, interleaved);
    let turn = sin_cos_of(angle_of(positions[head / c.heads], turns[2u * pair], turns[2u * pair + 1u]));
    let first = fma(value_at(a), turn.y, -(value_at(b) * turn.x));
    let second = fma(value_at(a), turn.x, value_at(b) * turn.y);
    return element_of(c.kind, select(second, first, i == a));
}

@compute @workgroup_size(ITEMS)
fn rope(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) item: u32) {
    let count = constants.rows * constants.heads * constants.head_dim;
    let word = (workgroup.x + constants.first_group.x) * ITEMS + item;
    let start = word * in_a_word(constants.kind);
    if start >= count { return; }
    var both = 0u;
    for (var i = 0u; i < in_a_word(constants.kind) && start + i < count; i++) {
        both |= turned(start + i) << (16u * i);
    }
    out[word] = both;
}
