// The best candidates of a group's values. A candidate has a key and a position: see `key_of`. NaN and −∞ are no
// candidates.

const BEST = 64u;
const RECORD = 2u * BEST + 4u;
// Number of values that an item reads at once, and of candidates in `kept`.
const EACH = 16u;
const KEPT = BEST * (EACH + 1u);
const NONE = vec2<u32>(0u, NOWHERE);

var<workgroup> best_of_items: array<vec2<u32>, ITEMS>;
var<workgroup> kept: array<vec2<u32>, KEPT>;

fn candidate(bits: u32, position: u32) -> vec2<u32> {
    let key = key_of(bits);
    if key < 0x00800000u { return NONE; }
    // Infinity counts as the largest finite number.
    return vec2(min(key, 0xff7fffffu), position);
}

fn best_of(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    if before(a, b) { return a; }
    return b;
}

// Returns the bits of a candidate's value.
fn bits_of(key: u32) -> u32 { return select(~key, key ^ SIGN, key >= SIGN); }

// Computes exp(value − largest) for the values of two keys. Halves keep the difference finite.
fn weight_of(key: u32, largest: u32) -> f32 {
    let half_way = 0.5 * bitcast<f32>(bits_of(key)) - 0.5 * bitcast<f32>(bits_of(largest));
    return select(exp(2.0 * max(half_way, -45.0)), 0.0, half_way < -45.0);
}

// Computes (value − largest) · scale from the bits of two values. Halves keep the difference finite.
fn scaled(value: u32, largest: u32, scale: f32) -> f32 {
    return (0.5 * bitcast<f32>(value) - 0.5 * bitcast<f32>(largest)) * (2.0 * scale);
}

// Returns the index of the parameter words of a row's draw: the words of a seed, and a scale. The draws are the last words
// in use.
fn draw_of(row: u32, word: u32, rows: u32) -> u32 { return params[3] - 3u * count(word, rows) + 3u * row; }

// Returns the number of the items' candidates that come before that of this item.
fn order_of(item: u32, own: vec2<u32>) -> u32 {
    best_of_items[item] = own;
    workgroupBarrier();
    var order = 0u;
    for (var i = 0u; i < ITEMS; i++) {
        let other = best_of_items[i];
        order += select(0u, 1u, before(other, own) || (all(other == own) && i < item));
    }
    workgroupBarrier();
    return order;
}

// Moves the best of the first `all_kept` candidates of `kept` to its front, in order. Each item takes the best of
// several. All of the best are among the candidates of the BEST items with the best ones, so a round leaves these.
fn sort_best(item: u32, all_kept: u32) {
    var left = all_kept;
    var each = 2u;
    while each > 1u {
        each = (left + ITEMS - 1u) / ITEMS;
        var own: array<vec2<u32>, (KEPT + ITEMS - 1u) / ITEMS>;
        var best = NONE;
        for (var i = 0u; i < each; i++) {
            let at = item + i * ITEMS;
            var one = NONE;
            if at < left { one = kept[at]; }
            own[i] = one;
            best = best_of(best, one);
        }
        let order = order_of(item, best);
        if order < BEST {
            for (var i = 0u; i < each; i++) { kept[order * each + i] = own[i]; }
        }
        workgroupBarrier();
        left = BEST * each;
    }
}

// Writes a record of the sorted `kept`. Places without a candidate have the id NOWHERE.
fn write_record(item: u32, start: u32, sum: f32, drawn: vec2<u32>) {
    if item < BEST {
        let one = kept[item];
        out[start + item] = select(bits_of(one.x), SIGN | INFINITE, one.x == 0u);
        out[start + BEST + item] = select(one.y, NOWHERE, one.x == 0u);
    }
    if item == 0u {
        out[start + 2u * BEST] = select(bits_of(kept[0].x), SIGN | INFINITE, kept[0].x == 0u);
        out[start + 2u * BEST + 1u] = bitcast<u32>(sum);
        out[start + 2u * BEST + 2u] = select(bits_of(drawn.x), SIGN | INFINITE, drawn.x == 0u);
        out[start + 2u * BEST + 3u] = select(drawn.y, NOWHERE, drawn.x == 0u);
    }
}
