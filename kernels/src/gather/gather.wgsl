// Copies the rows that need logits. A group copies one row.

struct Constants {
    first_group: vec3<u32>,
    rows: u32,
    logit_rows: u32,
    width: u32,
}
var<immediate> constants: Constants;

@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read_write> out: array<u32>;

@compute @workgroup_size(ITEMS)
fn gather(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) item: u32) {
    let i = workgroup.x + constants.first_group.x;
    if i >= count(1u, constants.logit_rows) { return; }
    let row = params[4u + 3u * constants.rows + i];
    for (var c = item; c < constants.width; c += ITEMS) {
        var word = 0u;
        if row < constants.rows { word = x[row * constants.width + c]; }
        out[i * constants.width + c] = word;
    }
}
