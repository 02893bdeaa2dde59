// Orders values along with their positions. Larger values come first. Among equal values, the lower position
// comes first. NaN ranks below every number. The comparisons use words, because float arithmetic is
// unreliable for NaN.

const INFINITE = 0x7f800000u;
const SIGN = 0x80000000u;

// An invalid position.
const NOWHERE = 0xffffffffu;

// Converts the bits of a value to a word that is larger for larger values. NaN becomes zero.
fn key_of(bits: u32) -> u32 {
    if (bits & ~SIGN) > INFINITE { return 0u; }
    if bits < SIGN { return bits | SIGN; }
    return select(~bits, SIGN, bits == SIGN); // The two zeros are equal.
}

// Returns whether `a` ranks before `b`. Both consist of a key and a position.
fn before(a: vec2<u32>, b: vec2<u32>) -> bool { return a.x > b.x || (a.x == b.x && a.y < b.y); }

// Returns the best of the group's keys, along with its position.
fn group_best(item: Item, best: vec2<u32>) -> vec2<u32> {
    let key = group_max(item, best.x);
    // The complement of the lowest position is the largest.
    return vec2(key, ~group_max(item, select(0u, ~best.y, best.x == key)));
}
