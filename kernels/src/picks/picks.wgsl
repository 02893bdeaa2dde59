// Finds the candidates of a row among those of its parts. A group processes one row.

struct Constants {
    first_group: vec3<u32>,
    rows: u32,
    word: u32,
    parts: u32,
}
var<immediate> constants: Constants;

@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read_write> out: array<u32>;

// Returns candidate `at` of the records of a row.
fn recorded(records: u32, at: u32) -> vec2<u32> {
    let record = records + at / BEST * RECORD;
    let position = x[record + BEST + at % BEST];
    if position == NOWHERE { return NONE; }
    return candidate(x[record + at % BEST], position);
}

@compute @workgroup_size(ITEMS)
fn picks(@builtin(workgroup_id) workgroup: vec3<u32>, item: Item) {
    let row = workgroup.x + constants.first_group.x;
    if row >= count(constants.word, constants.rows) { return; }
    let records = row * constants.parts * RECORD;
    let end = constants.parts * BEST;
    if item.index < BEST { kept[item.index] = NONE; }
    workgroupBarrier();
    for (var first = 0u; first < end; first += EACH * ITEMS) {
        var earlier = NONE;
        if item.index < BEST { earlier = kept[item.index]; }
        var best = NONE;
        for (var i = 0u; i < EACH; i++) {
            let at = first + item.index + i * ITEMS;
            if at < end { best = best_of(best, recorded(records, at)); }
        }
        let order = order_of(item.index, best);
        if order < BEST {
            for (var i = 0u; i < EACH; i++) {
                let at = first + item.index + i * ITEMS;
                var one = NONE;
                if at < end { one = recorded(records, at); }
                kept[order * EACH + i] = one;
            }
        }
        if item.index < BEST { kept[BEST * EACH + item.index] = earlier; }
        workgroupBarrier();
        sort_best(item.index, KEPT);
    }
    let largest = kept[0].x;
    var sum = 0.0;
    let scale = bitcast<f32>(params[draw_of(row, constants.word, constants.rows) + 2u]);
    var drawn = NONE;
    for (var part = item.index; part < constants.parts; part += ITEMS) {
        let record = records + part * RECORD;
        if x[record + BEST] != NOWHERE {
            let key = key_of(x[record + 2u * BEST]);
            sum += bitcast<f32>(x[record + 2u * BEST + 1u]) * weight_of(key, largest);
        }
        let place = x[record + 2u * BEST + 3u];
        if place != NOWHERE {
            let key = bitcast<f32>(x[record + 2u * BEST + 2u]);
            let lower = scaled(x[record + 2u * BEST], bits_of(largest), scale);
            drawn = best_of(drawn, candidate(bitcast<u32>(key + lower), place));
        }
    }
    sum = group_sum(item, sum);
    drawn = group_best(item, drawn);
    write_record(item.index, row * RECORD, sum, drawn);
}
