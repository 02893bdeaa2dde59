// The order of values with their places: larger values first, among equal ones the lower place; what is not a number
// is below every number. Both are one word of 64 bits, so that the best is the largest.

FN ulong ranked(float value, uint place) {
    uint bits = value == 0.0f ? 0 : AS_UINT(value); // the two zeros are equal
    uint key = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    if (isnan(value)) key = 0;
    return ((ulong)key << 32) | (uint)~place;
}

FN uint place_of(ulong rank) { return ~(uint)rank; }

// The best of the group's. `scratch` has REDUCE_SPACE places.
FN ulong group_best(LOCAL ulong *scratch, ulong rank) {
    scratch[ITEM] = rank;
    BARRIER();
    if (ITEM < 16) {
        for (uint i = 1; i < ITEMS / 16; i++) rank = max(rank, scratch[ITEM + 16 * i]);
        scratch[ITEMS + ITEM] = rank;
    }
    BARRIER();
    rank = scratch[ITEMS];
    for (uint i = 1; i < 16; i++) rank = max(rank, scratch[ITEMS + i]);
    return rank;
}
