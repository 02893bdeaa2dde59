// Looks up rows of a table and converts their type. An item writes a word of one or two elements.

struct Constants {
    first_group: vec3<u32>,
    from_type: u32, to_type: u32,
    rows: u32, table_rows: u32, width: u32,
}
var<immediate> constants: Constants;

@group(0) @binding(0) var<storage, read> indices: array<u32>;
@group(0) @binding(1) var<storage, read> table: array<u32>;
@group(0) @binding(2) var<storage, read_write> out: array<u32>;

@compute @workgroup_size(ITEMS)
fn gather_rows(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) item: u32) {
    let count = constants.rows * constants.width;
    let word = (workgroup.x + constants.first_group.x) * ITEMS + item;
    let in_word = in_a_word(constants.to_type);
    let start = word * in_word;
    if start >= count { return; }
    var both = 0u;
    for (var i = 0u; i < in_word && start + i < count; i++) {
        let index = indices[(start + i) / constants.width];
        if index >= constants.table_rows { continue; }
        let at = index * constants.width + (start + i) % constants.width;
        let bits = element_in(table[word_of(constants.from_type, at)], constants.from_type, at);
        both |= convert_element(constants.from_type, constants.to_type, bits) << (16u * i);
    }
    out[word] = both;
}
