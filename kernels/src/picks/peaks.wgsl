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

// Returns a word that depends on all bits of another one.
fn mixed(word: u32) -> u32 {
    let first = (word ^ (word >> 16u)) * 0x85ebca6bu;
    let second = (first ^ (first >> 13u)) * 0xc2b2ae35u;
    return second ^ (second >> 16u);
}

// Returns Gumbel noise from a uniform word. Near 1, −log is as exact as near 0.
fn noise_of(word: u32) -> f32 {
    let low = (f32(word) + 0.5) * 2.3283064e-10;
    let high = (f32(~word) + 0.5) * 2.3283064e-10;
    let series = low * (1.0 + low * (0.5 + low * (0.33333334 + low * 0.25)));
    return -log(select(-log(high), series, low < 0.015625));
}

// Returns a candidate with noise. Its key is (value − largest) · scale + noise.
fn with_noise(one: vec2<u32>, largest: u32, seed: vec2<u32>, scale: f32) -> vec2<u32> {
    let noise = noise_of(mixed(mixed(one.y * 0x9e3779b9u + seed.x) ^ seed.y));
    return candidate(bitcast<u32>(scaled(bits_of(one.x), bits_of(largest), scale) + noise), one.y);
}

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
    let draw = draw_of(row, constants.word, constants.rows);
    let seed = vec2(params[draw], params[draw + 1u]);
    let scale = bitcast<f32>(params[draw + 2u]);
    var drawn = NONE;
    for (var c = begin + item.index; c < end && scale > 0.0; c += ITEMS) {
        let one = candidate(x[row * width + c], c);
        if one.x != 0u { drawn = best_of(drawn, with_noise(one, largest, seed, scale)); }
    }
    drawn = group_best(item, drawn);
    write_record(item.index, (row * parts + number) * RECORD, sum, drawn);
}
