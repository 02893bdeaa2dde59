// Gated norm. A group processes one group of columns of a row.

struct Constants {
    first_group: vec3<u32>,
    rows: u32,
    word: u32,
    groups: u32,
    width: u32,
    weight_count: u32,
    pitch: u32,
    first: u32,
    stride: u32,
    epsilon: f32,
    order: u32,
    function: u32,
}
var<immediate> constants: Constants;

@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> gates: array<f32>;
@group(0) @binding(3) var<storage, read> weights: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;

const GATE_FIRST = 1u;
const NO_NORM = 2u;

fn gate_of(at: u32) -> f32 {
    let gate = gates[at];
    return select(gate, 1.0, constants.function == 1u) / (1.0 + exp(-gate));
}

@compute @workgroup_size(ITEMS)
fn gated_norm(@builtin(workgroup_id) workgroup: vec3<u32>, item: Item) {
    let c = constants;
    let group = workgroup + c.first_group;
    if group.x >= count(c.word, c.rows) { return; }
    let start = (group.x * c.groups + group.y) * c.width;
    let gate = group.x * c.pitch + c.first + group.y * c.stride;
    var sum = 0.0;
    for (var i = item.index; i < c.width; i += ITEMS) {
        var value = x[start + i];
        if c.order == GATE_FIRST { value *= gate_of(gate + i); }
        sum = fma(value, value, sum);
    }
    let scale = inverseSqrt(group_sum(item, sum) / f32(c.width) + c.epsilon);
    let weight = select(group.y * c.width, 0u, c.weight_count == c.width);
    for (var i = item.index; i < c.width; i += ITEMS) {
        var value = x[start + i] * gate_of(gate + i);
        if c.order != NO_NORM { value *= scale * weights[weight + i]; }
        out[start + i] = value;
    }
}
