// RMS norm to f32, for rows of any width. A group processes one row.

struct Constants {
    first_group: vec3<u32>,
    rows: u32,
    word: u32,
    width: u32,
    epsilon: f32,
}
var<immediate> constants: Constants;

@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> weight: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

// Number of columns that a group loads at once. Several loads together hide memory latency.
const TURN = 4u * ITEMS;

fn x_at(begin: u32, column: u32) -> f32 {
    if column < constants.width { return x[begin + column]; }
    return 0.0;
}

fn weight_at(column: u32) -> f32 {
    if column < constants.width { return weight[column]; }
    return 0.0;
}

// Loads columns `column`, `column` + ITEMS, … of the row that starts at `begin`.
fn values_at(begin: u32, column: u32) -> vec4<f32> {
    return vec4(
        x_at(begin, column), x_at(begin, column + ITEMS), x_at(begin, column + 2u * ITEMS), x_at(begin, column + 3u * ITEMS),
    );
}

fn weights_at(column: u32) -> vec4<f32> {
    return vec4(
        weight_at(column), weight_at(column + ITEMS), weight_at(column + 2u * ITEMS), weight_at(column + 3u * ITEMS),
    );
}

fn put_four(begin: u32, column: u32, values: vec4<f32>) {
    for (var i = 0u; i < 4u; i++) {
        let c = column + i * ITEMS;
        if c < constants.width { out[begin + c] = values[i]; }
    }
}

@compute @workgroup_size(ITEMS)
fn rms_norm(@builtin(workgroup_id) workgroup: vec3<u32>, item: Item) {
    let row = workgroup.x + constants.first_group.x;
    if row >= count(constants.word, constants.rows) { return; }
    let width = constants.width;
    let begin = row * width;
    // An item keeps its first columns in registers.
    let values = values_at(begin, item.index);
    let weights = weights_at(item.index);
    var sum = dot(values, values);
    for (var c = TURN + item.index; c < width; c += TURN) {
        let more = values_at(begin, c);
        sum += dot(more, more);
    }
    let scale = inverseSqrt(group_sum(item, sum) / f32(width) + constants.epsilon);
    put_four(begin, item.index, values * scale * weights);
    for (var c = TURN + item.index; c < width; c += TURN) {
        put_four(begin, c, values_at(begin, c) * scale * weights_at(c));
    }
}
