// Rotary position embedding. Angles are integers, in 2^32ths of a turn.

struct Constants {
    first_group: vec3<u32>,
    rows: u32, heads: u32, head_dim: u32, rope_dims: u32, pairing: u32,
}
var<immediate> constants: Constants;

@group(0) @binding(0) var<storage, read> positions: array<u32>;
@group(0) @binding(1) var<storage, read> turns: array<u32>;
@group(0) @binding(2) var<storage, read> x: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

fn angle_of(position: u32, low: u32, high: u32) -> u32 {
    let a = position & 0xffffu;
    let b = position >> 16u;
    let c = low & 0xffffu;
    let d = low >> 16u;
    let middle = a * d + ((a * c) >> 16u); // neither can overflow
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

@compute @workgroup_size(ITEMS)
fn rope(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) item: u32) {
    let pairs = constants.rope_dims / 2u;
    let width = constants.head_dim - pairs;
    let place = (workgroup.x + constants.first_group.x) * ITEMS + item;
    let head = place / width;
    let i = place % width;
    if head >= constants.rows * constants.heads { return; }
    let start = head * constants.head_dim;
    if i >= pairs {
        out[start + pairs + i] = x[start + pairs + i];
        return;
    }
    let interleaved = constants.pairing == 0u;
    let a = start + select(i, 2u * i, interleaved);
    let b = start + select(i + pairs, 2u * i + 1u, interleaved);
    let turned = sin_cos_of(angle_of(positions[head / constants.heads], turns[2u * i], turns[2u * i + 1u]));
    out[a] = fma(x[a], turned.y, -(x[b] * turned.x));
    out[b] = fma(x[a], turned.x, x[b] * turned.y);
}
