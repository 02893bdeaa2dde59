// Computes the weighted sum of the results of a row's experts. A group computes a part of a row.

struct Constants {
    first_group: vec3<u32>,
    rows: u32,
    word: u32,
    width: u32,
    used: u32,
    experts: u32,
}
var<immediate> constants: Constants;

@group(0) @binding(1) var<storage, read> values: array<f32>;
@group(0) @binding(2) var<storage, read> route: array<u32>;
@group(0) @binding(3) var<storage, read> biases: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(ITEMS)
fn expert_combine(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) item: u32) {
    let group = workgroup + constants.first_group;
    if group.x >= count(constants.word, constants.rows) { return; }
    let used = constants.used;
    let width = constants.width;
    for (var i = 0u; i < 4u; i++) {
        let column = (group.y * 4u + i) * ITEMS + item;
        if column < width {
            var sum = 0.0;
            for (var slot = 0u; slot < used; slot++) {
                let weight = bitcast<f32>(route[(group.x * 2u + 1u) * used + slot]);
                var value = values[(group.x * used + slot) * width + column];
                if constants.experts != 0u { value += biases[route[group.x * 2u * used + slot] * width + column]; }
                sum = fma(weight, value, sum);
            }
            out[group.x * width + column] = sum;
        }
    }
}
