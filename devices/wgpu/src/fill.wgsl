// Fills words of a buffer. Each group fills 1024 words.

struct Constants {
    first_group: vec3<u32>,
    // First word, and the number of words.
    first: u32,
    count: u32,
    word: u32,
}
var<immediate> constants: Constants;

@group(0) @binding(0) var<storage, read_write> to: array<u32>;

@compute @workgroup_size(256)
fn fill(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) item: u32) {
    let group = workgroup.x + constants.first_group.x;
    for (var i = 0u; i < 4u; i++) {
        let at = (group * 4u + i) * 256u + item;
        if at < constants.count { to[constants.first + at] = constants.word; }
    }
}
