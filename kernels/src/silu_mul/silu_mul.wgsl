// A function of the gate · up to f32, for rows of any width. A group processes a part of a row.

struct Constants {
    first_group: vec3<u32>,
    rows: u32,
    word: u32,
    width: u32,
    function: u32,
}
var<immediate> constants: Constants;

@group(0) @binding(1) var<storage, read> gate_up: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;

// SiLU, GELU by tanh, or the square of what is positive.
fn gated(x: vec4<f32>) -> vec4<f32> {
    if constants.function == 0u { return silu(x); }
    if constants.function == 2u { return max(x, vec4(0.0)) * max(x, vec4(0.0)); }
    return x / (1.0 + exp(min(-1.5957691216 * fma(0.044715 * x * x, x, x), vec4(80.0))));
}

@compute @workgroup_size(ITEMS)
fn silu_mul(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) item: u32) {
    let group = workgroup + constants.first_group;
    if group.x >= count(constants.word, constants.rows) { return; }
    let width = constants.width;
    let begin = group.x * 2u * width;
    let column = group.y * 4u * ITEMS + item;
    var gate = vec4(0.0);
    var up = vec4(0.0);
    for (var i = 0u; i < 4u; i++) {
        let c = column + i * ITEMS;
        if c < width {
            gate[i] = gate_up[begin + c];
            up[i] = gate_up[begin + width + c];
        }
    }
    let values = gated(gate) * up;
    for (var i = 0u; i < 4u; i++) {
        let c = column + i * ITEMS;
        if c < width { out[group.x * width + c] = values[i]; }
    }
}
