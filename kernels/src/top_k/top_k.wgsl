// Finds the k largest values of each row and their positions. A group processes one row.
//
// Every item keeps the best remaining value of columns item, item + ITEMS, …. In each of k rounds, the group
// removes the best of these values. Then all items together search the columns of the item that lost its
// value for the next best one.

struct Constants {
    first_group: vec3<u32>,
    rows: u32,
    word: u32,
    width: u32,
    k: u32,
}
var<immediate> constants: Constants;

@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read_write> values: array<u32>;
@group(0) @binding(3) var<storage, read_write> places: array<u32>;

@compute @workgroup_size(ITEMS)
fn top_k(@builtin(workgroup_id) workgroup: vec3<u32>, item: Item) {
    let row = workgroup.x + constants.first_group.x;
    if row >= count(constants.word, constants.rows) { return; }
    let width = constants.width;
    let begin = row * width;
    var left = vec2(0u, NOWHERE);
    for (var c = item.index; c < width; c += ITEMS) {
        let candidate = vec2(key_of(x[begin + c]), c);
        if before(candidate, left) { left = candidate; }
    }
    for (var i = 0u; i < constants.k; i++) {
        let best = group_best(item, left);
        let owner = best.y % ITEMS;
        if item.index == 0u {
            values[row * constants.k + i] = x[begin + best.y];
            places[row * constants.k + i] = best.y;
        }
        var next = vec2(0u, NOWHERE);
        for (var c = owner + item.index * ITEMS; c < width; c += ITEMS * ITEMS) {
            let candidate = vec2(key_of(x[begin + c]), c);
            if before(best, candidate) && before(candidate, next) { next = candidate; }
        }
        next = group_best(item, next);
        if item.index == owner { left = next; }
    }
}
