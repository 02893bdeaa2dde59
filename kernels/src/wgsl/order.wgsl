// Orders values with their positions: larger values first, among equal ones the lower position; NaN ranks
// below every number. It compares words, because float arithmetic is unreliable for NaN.

const INFINITE = 0x7f800000u;
const SIGN = 0x80000000u;

// An invalid position.
const NOWHERE = 0xffffffffu;

// A word that is larger for larger values, given their bits; zero for NaN.
fn key_of(bits: u32) -> u32 {
    if (bits & ~SIGN) > INFINITE { return 0u; }
    if bits < SIGN { return bits | SIGN; }
    return select(~bits, SIGN, bits == SIGN); // The two zeros are equal.
}

// Whether a key with its position ranks before another.
fn before(a: vec2<u32>, b: vec2<u32>) -> bool { return a.x > b.x || (a.x == b.x && a.y < b.y); }

// Best of the group's keys with their positions.
fn group_best(item: Item, best: vec2<u32>) -> vec2<u32> {
    let key = group_max(item, best.x);
    // The complement of the lowest position is the largest.
    return vec2(key, ~group_max(item, select(0u, ~best.y, best.x == key)));
}
