// Finds the candidates of a part of a row. A group processes one part of one row.

struct Constants {
    first_group: vec3<u32>,
    rows: u32,
    word: u32,
    width: u32,
    part: u32,
}
var<immediate> constants: Constants;

@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read_write> out: array<u32>;

@compute @workgroup_size(ITEMS)
fn peaks(@builtin(workgroup_id) workgroup: vec3<u32>, item: Item) {
    let row = workgroup.x + constants.first_group.x;
    if row >= count(constants.word, constants.rows) { return; }
    let number = workgroup.y + constants.first_group.y;
    let width = constants.width;
    let part = constants.part;
    let parts = width / part + select(0u, 1u, width % part > 0u);
    let begin = number * part;
    let end = begin + min(part, width - begin);
    var best = NONE;
    for (var c = begin + item.index; c < end; c += ITEMS) {
        best = best_of(best, candidate(x[row * width + c], c));
    }
    let order = order_of(item.index, best);
    if order < BEST {
        for (var i = 0u; i < EACH; i++) {
            let c = begin + item.index + i * ITEMS;
            var one = NONE;
            if c < end { one = candidate(x[row * width + c], c); }
            kept[order * EACH + i] = one;
        }
    }
    workgroupBarrier();
    sort_best(item.index, BEST * EACH);
    let largest = kept[0].x;
    var sum = 0.0;
    for (var c = begin + item.index; c < end; c += ITEMS) {
        let key = candidate(x[row * width + c], c).x;
        if key != 0u { sum += weight_of(key, largest); }
    }
    sum = group_sum(item, sum);
    write_record(item.index, (row * parts + number) * RECORD, sum);
}
