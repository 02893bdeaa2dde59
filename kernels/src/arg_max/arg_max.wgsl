// Finds the position of the largest value of each row. A group processes one row.

struct Constants {
    first_group: vec3<u32>,
    rows: u32,
    word: u32,
    width: u32,
}
var<immediate> constants: Constants;

@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read_write> out: array<u32>;

@compute @workgroup_size(ITEMS)
fn arg_max(@builtin(workgroup_id) workgroup: vec3<u32>, item: Item) {
    let row = workgroup.x + constants.first_group.x;
    if row >= count(constants.word, constants.rows) { return; }
    var best = vec2(0u, NOWHERE);
    for (var c = item.index; c < constants.width; c += ITEMS) {
        let candidate = vec2(key_of(x[row * constants.width + c]), c);
        if before(candidate, best) { best = candidate; }
    }
    best = group_best(item, best);
    if item.index == 0u { out[row] = best.y; }
}
