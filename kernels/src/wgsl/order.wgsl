// The order of values with their places: larger values first, among equal ones the lower place; what is not a number is
// below every number. It is that of words: no arithmetic touches what may be no number.

const INFINITE = 0x7f800000u;
const SIGN = 0x80000000u;

// A place that is nowhere.
const NOWHERE = 0xffffffffu;

// A word that is larger where the value with these bits is; of what is not a number it is zero.
fn key_of(bits: u32) -> u32 {
    if (bits & ~SIGN) > INFINITE { return 0u; }
    if bits < SIGN { return bits | SIGN; }
    return select(~bits, SIGN, bits == SIGN); // the two zeros are equal
}

// Whether a key with its place comes before another.
fn before(a: vec2<u32>, b: vec2<u32>) -> bool { return a.x > b.x || (a.x == b.x && a.y < b.y); }

// The best of the group's keys with their places.
fn group_best(item: Item, best: vec2<u32>) -> vec2<u32> {
    let key = group_max(item, best.x);
    // The complement of the lowest place is the largest.
    return vec2(key, ~group_max(item, select(0u, ~best.y, best.x == key)));
}
