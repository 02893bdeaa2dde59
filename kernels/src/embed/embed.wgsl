// Looks up rows of a weight table. A group copies one row, and each item copies quads of its columns.

struct Constants {
    first_group: vec3<u32>,
    rows: u32,
    vocabulary: u32,
    width: u32,
    first: u32,
}
var<immediate> constants: Constants;

@group(0) @binding(2) var<storage, read_write> out: array<vec4<f32>>;

@compute @workgroup_size(ITEMS)
fn embed(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) item: u32) {
    let row = workgroup.x + constants.first_group.x;
    if row >= count(0u, constants.rows) { return; }
    let token = params[4u + row] - constants.first;
    let is_known = token < constants.vocabulary;
    if !is_known && constants.first != 0u { return; }
    let group = token / 16u * group_vectors(constants.width);
    let quads = constants.width / 4u;
    for (var quad = item; quad < quads; quad += ITEMS) {
        var values = vec4<f32>();
        if is_known {
            var rows = transpose(quad_values(group, constants.width, quad / 8u, quad % 8u, token / 4u % 4u));
            values = rows[token % 4u];
        }
        out[row * quads + quad] = values;
    }
}
