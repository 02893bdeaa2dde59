// Second launch of split attention: combines the means of the splits, weighted by each split's share of the
// softmax. A group computes as many columns of a row as it has items.

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
@group(0) @binding(2) var<storage, read_write> out: array<u32>;

// A score that is lower than every valid score.
const LOWEST = -3.4e38;

// Number of splits that are combined at once.
const BATCH = 16u;

var<workgroup> merged: array<f32, ITEMS>;

// Computes a column of a row.
fn merge(row: u32, column: u32) -> f32 {
    let runs = (row * constants.heads + column / constants.head_dim) * constants.splits;
    let means = runs * constants.head_dim + column % constants.head_dim;
    let sums = constants.rows * constants.heads * constants.splits * constants.head_dim + runs * 2u;
    var largest = LOWEST;
    var total = 0.0;
    var value = 0.0;
    for (var first = 0u; first < constants.splits; first += BATCH) {
        // Issues the loads of several splits together. For an empty split, uses only its sum.
        let run$s = min(first + $su, constants.splits - 1u);
        let sum$s = select(0.0, partials[sums + run$s * 2u + 1u], first + $su < constants.splits);
        let top$s = select(LOWEST, partials[sums + run$s * 2u], sum$s != 0.0);
        let mean$s = partials[means + run$s * constants.head_dim];
        let before = largest;
        largest = max(largest, top$s);
        let correction = exp(before - largest);
        total *= correction;
        value *= correction;
        let weight$s = exp(top$s - largest) * sum$s;
        total += weight$s;
        value += select(0.0, weight$s * mean$s, sum$s != 0.0);
    }
    if total == 0.0 { return 0.0; }
    return value / total;
}

@compute @workgroup_size(ITEMS)
fn attention_merge(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) item: u32) {
    let group = workgroup + constants.first_group;
    if group.x >= count(constants.word, constants.rows) { return; }
    let width = constants.heads * constants.head_dim;
    let column = group.y * ITEMS + item;
    var value = 0.0;
    if column < width { value = merge(group.x, column); }
    merged[item] = value;
    workgroupBarrier();
    // The first quarter of the items writes four columns each. The other items write none.
    var values = vec4(0.0);
    var first = padded(width);
    if item < ITEMS / 4u {
        values = vec4(merged[4u * item], merged[4u * item + 1u], merged[4u * item + 2u], merged[4u * item + 3u]);
        first = group.y * ITEMS + 4u * item;
    }
    put(item, values, group.x, first, width);
}
