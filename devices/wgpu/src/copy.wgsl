// Copies words within a buffer, between ranges that do not overlap. Each group copies 1024 words.

struct Constants {
    first_group: vec3<u32>,
    // First word of source and destination, and the number of words.
    first_from: u32,
    first_to: u32,
    count: u32,
}
var<immediate> constants: Constants;

@group(0) @binding(0) var<storage, read_write> source: array<u32>;
@group(0) @binding(1) var<storage, read_write> to: array<u32>;

@compute @workgroup_size(256)
fn copy(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) item: u32) {
    let group = workgroup.x + constants.first_group.x;
    for (var i = 0u; i < 4u; i++) {
        let at = (group * 4u + i) * 256u + item;
        if at < constants.count { to[constants.first_to + at] = source[constants.first_from + at]; }
    }
}
