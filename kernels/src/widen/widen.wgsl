// Dequantizes weights to rows of f16. A group processes 16 rows of 512 columns. An item processes four rows
// of eight columns.

struct Constants {
    first_group: vec3<u32>,
    n: u32,
    k: u32,
}
var<immediate> constants: Constants;

@group(0) @binding(0) var<storage, read> weights: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> out: array<vec4<u32>>;

// Packs four values into two words of f16. Values beyond the range of f16 saturate, and NaN is preserved.
fn halves(values: vec4<f32>) -> vec2<u32> {
    let below = select(values, vec4<f32>(65504.0), values > vec4<f32>(65504.0));
    let inside = select(below, vec4<f32>(-65504.0), values < vec4<f32>(-65504.0));
    return vec2<u32>(pack2x16float(inside.xy), pack2x16float(inside.zw));
}

@compute @workgroup_size(ITEMS)
fn widen(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) item: u32) {
    let place = workgroup + constants.first_group;
    let part = item % 4u;
    let octet = item / 4u % 4u;
    let block = place.y * (ITEMS / 16u) + item / 16u;
    let blocks = constants.k / 32u;
    let pitch = ((constants.k + 63u) & ~63u) / 8u;
    let column = block * 4u + octet;
    if column >= pitch { return; }
    let at = (place.x * 16u + part * 4u) * pitch + column;
    if block >= blocks {
        out[at + $ru * pitch] = vec4<u32>();
        return;
    }
    let group = place.x * group_vectors(constants.k);
    let scales = block_scales(group, blocks, block, part);
    let first = scaled_values(quad_words(group, blocks, block, octet * 2u, part), scales, octet * 2u);
    let last = scaled_values(quad_words(group, blocks, block, octet * 2u + 1u, part), scales, octet * 2u + 1u);
    let low = transpose(first);
    let high = transpose(last);
    out[at + $ru * pitch] = vec4<u32>(halves(low[$r]), halves(high[$r]));
}
