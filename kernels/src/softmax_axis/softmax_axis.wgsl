// Softmax of each line along an axis.

struct Constants {
    first_group: vec3<u32>,
    kind: u32, outer: u32, axis: u32, inner: u32,
}
var<immediate> constants: Constants;

@group(0) @binding(0) var<storage, read> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;

fn value_at(i: u32) -> f32 { return value_in(x[word_of(constants.kind, i)], constants.kind, i); }

// Returns e^(x − largest), or zero for −∞. `x` must not be NaN or +∞.
fn weight(x: f32, largest: f32) -> f32 {
    return select(exp(max(x - largest, -104.0)), 0.0, size_bits(x) == INFINITE || x - largest < -103.9);
}

@compute @workgroup_size(ITEMS)
fn softmax_axis(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) item: u32) {
    let c = constants;
    let group = workgroup + c.first_group;
    let columns = columns_of(c.inner);
    let lanes = ITEMS / columns;
    let lane = item / columns;
    let column = group.x / c.outer * columns + item % columns;
    let start = group.x % c.outer * c.axis * c.inner + min(column, c.inner - 1u);
    var largest = value_at(start);
    for (var i = lane; i < c.axis; i += lanes) { largest = combined(1u, largest, value_at(start + i * c.inner)); }
    largest = across(item, 1u, columns, largest);
    // If a line contains NaN or +∞, its results are NaN. If all its values are −∞, its results are zero.
    let bits = bitcast<u32>(largest);
    let fails = is_nan(largest) || bits == INFINITE;
    if size_bits(largest) >= INFINITE { largest = 0.0; }
    var sum = 0.0;
    if !fails {
        for (var i = lane; i < c.axis; i += lanes) { sum += weight(value_at(start + i * c.inner), largest); }
    }
    sum = across(item, 0u, columns, sum);
    if column >= c.inner { return; }
    for (var i = lane; i < c.axis; i += lanes) {
        let at = start + i * c.inner;
        var probability = 0.0;
        if fails { probability = bitcast<f32>(NOT_A_NUMBER | (bits & 1u)); }
        else if sum > 0.0 { probability = weight(value_at(at), largest) / sum; }
        out[at] = probability;
    }
}
