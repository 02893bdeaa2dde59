// Computes a gated function, with limits, of the results of a row's experts plus their biases. A group computes a part of
// a row.

struct Constants {
    first_group: vec3<u32>,
    rows: u32,
    word: u32,
    width: u32,
    used: u32,
    experts: u32,
    alpha: f32,
    limit: f32,
    offset: f32,
}
var<immediate> constants: Constants;

@group(0) @binding(1) var<storage, read> gate_up: array<f32>;
@group(0) @binding(2) var<storage, read> route: array<u32>;
@group(0) @binding(3) var<storage, read> biases: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(ITEMS)
fn expert_gate(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) item: u32) {
    let group = workgroup + constants.first_group;
    if group.x >= count(constants.word, constants.rows) { return; }
    let width = constants.width;
    let columns = constants.used * width;
    let limit = constants.limit;
    for (var i = 0u; i < 4u; i++) {
        let column = (group.y * 4u + i) * ITEMS + item;
        if column < columns {
            var gate = gate_up[group.x * 2u * columns + column];
            var up = gate_up[(group.x * 2u + 1u) * columns + column];
            if constants.experts != 0u {
                let expert = route[group.x * 2u * constants.used + column / width];
                gate += biases[expert * width + column % width];
                up += biases[(constants.experts + expert) * width + column % width];
            }
            // A comparison with NaN is false, so NaN stays.
            gate = select(gate, limit, gate > limit);
            up = select(up, limit, up > limit);
            up = select(up, -limit, up < -limit);
            // The power stays in the range of f32. Beyond it, the quotient is −0 with either.
            let power = exp(min(-constants.alpha * gate, 80.0));
            out[group.x * columns + column] = gate / (1.0 + power) * (up + constants.offset);
        }
    }
}
