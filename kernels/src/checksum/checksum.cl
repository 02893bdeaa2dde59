// Two sums over the words of a part of a buffer: one group a part.

FN uint mixed(uint x) {
    x = (x ^ x >> 16) * 0x85ebca6bu;
    x = (x ^ x >> 13) * 0xc2b2ae35u;
    return x ^ x >> 16;
}

KERNEL(ITEMS) checksum(const GLOBAL uint *RESTRICT x, GLOBAL uint *RESTRICT out, uint words, uint part) {
    BEGIN();
    SHARED uint scratch[2 * ITEMS];
    uint first = GROUP(0) * part, length = min(part, words - first), one = 0, two = 0;
    for (uint i = ITEM; i < length; i += ITEMS) {
        uint word = x[first + i], place = first + i + 1;
        one += mixed(word ^ place * 0x9e3779b1u);
        two += mixed(~word ^ place * 0x7feb352du);
    }
    scratch[ITEM] = one;
    scratch[ITEMS + ITEM] = two;
    BARRIER();
    if (ITEM < 2) {
        uint sum = 0;
        for (uint i = 0; i < ITEMS; i++) sum += scratch[ITEM * ITEMS + i];
        out[2 * GROUP(0) + ITEM] = sum;
    }
}
