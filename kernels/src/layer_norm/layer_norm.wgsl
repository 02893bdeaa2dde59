// Each row less its mean, over its standard deviation: one group a row.

struct Constants {
    first_group: vec3<u32>,
    rows: u32, width: u32, epsilon: u32,
}
var<immediate> constants: Constants;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> weight: array<f32>;
@group(0) @binding(2) var<storage, read> bias: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(ITEMS)
fn layer_norm(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) item: u32) {
    let width = constants.width;
    let row = (workgroup.x + constants.first_group.x) * width;
    var sum = 0.0;
    for (var c = item; c < width; c += ITEMS) { sum += x[row + c]; }
    let mean = across(item, 0u, 1u, sum) / f32(width);
    var squares = 0.0;
    for (var c = item; c < width; c += ITEMS) {
        let rest = x[row + c] - mean;
        squares = fma(rest, rest, squares);
    }
    let variance = across(item, 0u, 1u, squares) / f32(width);
    let scale = 1.0 / sqrt(variance + bitcast<f32>(constants.epsilon));
    for (var c = item; c < width; c += ITEMS) {
        out[row + c] = fma((x[row + c] - mean) * scale, weight[c], bias[c]);
    }
}
