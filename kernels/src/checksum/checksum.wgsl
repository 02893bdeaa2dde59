// Computes two sums over the words of each part of a buffer. A group processes one part.

struct Constants {
    first_group: vec3<u32>,
    words: u32,
    part: u32,
}
var<immediate> constants: Constants;

@group(0) @binding(0) var<storage, read> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> out: array<u32>;

var<workgroup> scratch: array<u32, 2u * ITEMS>;

fn mixed(word: u32) -> u32 {
    var x = (word ^ (word >> 16u)) * 0x85ebca6bu;
    x = (x ^ (x >> 13u)) * 0xc2b2ae35u;
    return x ^ (x >> 16u);
}

@compute @workgroup_size(ITEMS)
fn checksum(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) item: u32) {
    let group = workgroup.x + constants.first_group.x;
    let first = group * constants.part;
    let length = min(constants.part, constants.words - first);
    var one = 0u;
    var two = 0u;
    for (var i = item; i < length; i += ITEMS) {
        let word = x[first + i];
        let place = first + i + 1u;
        one += mixed(word ^ (place * 0x9e3779b1u));
        two += mixed(~word ^ (place * 0x7feb352du));
    }
    scratch[item] = one;
    scratch[ITEMS + item] = two;
    workgroupBarrier();
    if item < 2u {
        var sum = 0u;
        for (var i = 0u; i < ITEMS; i++) { sum += scratch[item * ITEMS + i]; }
        out[2u * group + item] = sum;
    }
}
