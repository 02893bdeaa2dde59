// Layer norm: subtracts the mean of each row and divides by its standard deviation. A group processes one
// row.

struct Constants {
    first_group: vec3<u32>,
    kind: u32, rows: u32, width: u32, epsilon: u32,
}
var<immediate> constants: Constants;

@group(0) @binding(0) var<storage, read> x: array<u32>;
@group(0) @binding(1) var<storage, read> weight: array<f32>;
@group(0) @binding(2) var<storage, read> bias: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

fn value_at(i: u32) -> f32 { return value_in(x[word_of(constants.kind, i)], constants.kind, i); }

@compute @workgroup_size(ITEMS)
fn layer_norm(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) item: u32) {
    let width = constants.width;
    let row = (workgroup.x + constants.first_group.x) * width;
    var sum = 0.0;
    for (var c = item; c < width; c += ITEMS) { sum += value_at(row + c); }
    let mean = across(item, 0u, 1u, sum) / f32(width);
    var squares = 0.0;
    for (var c = item; c < width; c += ITEMS) {
        let rest = value_at(row + c) - mean;
        squares = fma(rest, rest, squares);
    }
    let variance = across(item, 0u, 1u, squares) / f32(width);
    let scale = 1.0 / sqrt(variance + bitcast<f32>(constants.epsilon));
    for (var c = item; c < width; c += ITEMS) {
        out[row + c] = fma((value_at(row + c) - mean) * scale, weight[c], bias[c]);
    }
}
