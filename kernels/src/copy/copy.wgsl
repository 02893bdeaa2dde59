// Copies elements at strided positions and converts their type. An item writes a word of one or two elements.

struct Constants {
    first_group: vec3<u32>,
    from_type: u32, to_type: u32, first: u32,
    size_0: u32, size_1: u32, size_2: u32, size_3: u32, size_4: u32, size_5: u32,
    stride_0: u32, stride_1: u32, stride_2: u32, stride_3: u32, stride_4: u32, stride_5: u32,
}
var<immediate> constants: Constants;

@group(0) @binding(0) var<storage, read> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> out: array<u32>;

// Returns the index in x at step `i`.
fn place(i: u32) -> u32 {
    var at = i % constants.size_5 * constants.stride_5;
    if i < constants.size_5 { return at; }
    var rest = i / constants.size_5;
    at += rest % constants.size_4 * constants.stride_4;
    rest /= constants.size_4;
    at += rest % constants.size_3 * constants.stride_3;
    rest /= constants.size_3;
    at += rest % constants.size_2 * constants.stride_2;
    rest /= constants.size_2;
    at += rest % constants.size_1 * constants.stride_1;
    rest /= constants.size_1;
    return at + rest * constants.stride_0;
}

@compute @workgroup_size(ITEMS)
fn copy_elements(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) item: u32) {
    let count = constants.size_0 * constants.size_1 * constants.size_2
        * constants.size_3 * constants.size_4 * constants.size_5;
    let word = (workgroup.x + constants.first_group.x) * ITEMS + item;
    let in_word = in_a_word(constants.to_type);
    let start = word * in_word;
    if start >= count { return; }
    var both = 0u;
    for (var i = 0u; i < in_word && start + i < count; i++) {
        let at = constants.first + place(start + i);
        let bits = element_in(x[word_of(constants.from_type, at)], constants.from_type, at);
        both |= convert_element(constants.from_type, constants.to_type, bits) << (16u * i);
    }
    out[word] = both;
}
