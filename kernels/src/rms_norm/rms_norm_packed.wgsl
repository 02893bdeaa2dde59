// RMS norm to int8 or f16 activations. A group processes one row, and an item processes four adjacent columns
// at a time.

struct Constants {
    first_group: vec3<u32>,
    rows: u32,
    word: u32,
    width: u32,
    epsilon: f32,
}
var<immediate> constants: Constants;

@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> weight: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> out: array<u32>;

fn values_at(begin: u32, column: u32) -> vec4<f32> {
    if column < constants.width { return x[(begin + column) / 4u]; }
    return vec4(0.0);
}

fn weights_at(column: u32) -> vec4<f32> {
    if column < constants.width { return weight[column / 4u]; }
    return vec4(0.0);
}

@compute @workgroup_size(ITEMS)
fn rms_norm(@builtin(workgroup_id) workgroup: vec3<u32>, item: Item) {
    let row = workgroup.x + constants.first_group.x;
    if row >= count(constants.word, constants.rows) { return; }
    let width = constants.width;
    let begin = row * width;
    // An item keeps its first columns in registers.
    let values = values_at(begin, 4u * item.index);
    let weights = weights_at(4u * item.index);
    var sum = dot(values, values);
    for (var c = 4u * (ITEMS + item.index); c < width; c += 4u * ITEMS) {
        let more = values_at(begin, c);
        sum += dot(more, more);
    }
    let scale = inverseSqrt(group_sum(item, sum) / f32(width) + constants.epsilon);
    put(item.index, values * scale * weights, row, 4u * item.index, width);
    for (var first = 4u * ITEMS; first < padded(width); first += 4u * ITEMS) {
        let c = first + 4u * item.index;
        put(item.index, values_at(begin, c) * scale * weights_at(c), row, c, width);
    }
}
