// x += y. A group computes a part of a row.

struct Constants {
    first_group: vec3<u32>,
    rows: u32,
    word: u32,
    width: u32,
}
var<immediate> constants: Constants;

@group(0) @binding(1) var<storage, read_write> x: array<f32>;
@group(0) @binding(2) var<storage, read> y: array<f32>;

@compute @workgroup_size(ITEMS)
fn add(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) item: u32) {
    let group = workgroup + constants.first_group;
    if group.x >= count(constants.word, constants.rows) { return; }
    let row = group.x * constants.width;
    for (var i = 0u; i < 4u; i++) {
        let column = (group.y * 4u + i) * ITEMS + item;
        if column < constants.width { x[row + column] += y[row + column]; }
    }
}
