// Second launch of split attention with sinks: combines the means of the splits, weighted by each split's share of a
// softmax to whose sum the sink of the head adds. A group computes as many columns of a row as it has items.

struct Constants {
    first_group: vec3<u32>,
    rows: u32,
    word: u32,
    heads: u32,
    head_dim: u32,
    splits: u32,
}
var<immediate> constants: Constants;

@group(0) @binding(1) var<storage, read> partials: array<f32>;
@group(0) @binding(2) var<storage, read> sinks: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

// A score that is lower than every valid score.
const LOWEST = -3.4e38;

@compute @workgroup_size(ITEMS)
fn attention_merge_sinks(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_index) item: u32,
) {
    let group = workgroup + constants.first_group;
    let width = constants.heads * constants.head_dim;
    let column = group.y * ITEMS + item;
    if group.x >= count(constants.word, constants.rows) || column >= width { return; }
    let splits = constants.splits;
    let head = column / constants.head_dim;
    let first = (group.x * constants.heads + head) * splits;
    let sums = constants.rows * width * splits + first * 2u;
    let means = first * constants.head_dim + column % constants.head_dim;
    let sink = sinks[head];
    var largest = sink;
    for (var s = 0u; s < splits; s++) {
        if partials[sums + s * 2u + 1u] != 0.0 { largest = max(largest, partials[sums + s * 2u]); }
    }
    var total = 0.0;
    var value = 0.0;
    for (var s = 0u; s < splits; s++) {
        // For an empty split, uses only its sum. NaN is preserved, although drivers may find it equal to zero.
        let sum = partials[sums + s * 2u + 1u];
        let top = select(LOWEST, partials[sums + s * 2u], sum != 0.0);
        let mean = partials[means + s * constants.head_dim];
        let weight = exp(top - largest) * sum;
        total += weight;
        value += select(0.0, weight * mean, sum != 0.0);
    }
    var result = 0.0;
    if !(total == 0.0) { result = value / (total + exp(sink - largest)); }
    out[group.x * width + column] = result;
}
