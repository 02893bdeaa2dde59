// What kernels share: counts, reductions over a group, the form of int8 activations.

// A count of the parameters' header, at most `capacity`.
FN uint count(const GLOBAL uint *params, uint word, uint capacity) {
    return word < 4 ? min(params[word], capacity) : 0;
}

// The width of a group's row: zero beyond the count. A kernel with barriers does not return there, because compilers that
// run the items of a group one after the other must run the first one ahead to a barrier behind a branch.
FN uint used_width(const GLOBAL uint *params, uint word, uint rows, uint width) {
    return GROUP(0) < count(params, word, rows) ? width : 0;
}

// First column of the part of a row that is a group's: four columns an item.
#define PART (GROUP(1) * 4 * ITEMS)

// The sum of the group's values. `scratch` has a place for each item and 16 more.
#define REDUCE_SPACE (ITEMS + 16)
FN float group_sum(LOCAL float *scratch, float value) {
    scratch[ITEM] = value;
    BARRIER();
    if (ITEM < 16) {
        float sum = 0.0f;
        for (uint i = 0; i < ITEMS / 16; i++) sum += scratch[ITEM + 16 * i];
        scratch[ITEMS + ITEM] = sum;
    }
    BARRIER();
    float sum = 0.0f;
    for (uint i = 0; i < 16; i++) sum += scratch[ITEMS + i];
    return sum;
}

// The largest of the group's values; what is not a number is passed over.
FN float group_max(LOCAL float *scratch, float value) {
    scratch[ITEM] = value;
    BARRIER();
    if (ITEM < 16) {
        float largest = scratch[ITEM];
        for (uint i = 1; i < ITEMS / 16; i++) largest = fmax(largest, scratch[ITEM + 16 * i]);
        scratch[ITEMS + ITEM] = largest;
    }
    BARRIER();
    float largest = scratch[ITEMS];
    for (uint i = 1; i < 16; i++) largest = fmax(largest, scratch[ITEMS + i]);
    return largest;
}

// Int8 activations: bytes from the start of a row to its scales, to its sums, and to the next row.
FN uint scales_offset(uint width) { return (width + 63) & ~63u; }
FN uint sums_offset(uint width) { return scales_offset(width) + width / 32 * 4; }
FN uint row_bytes(uint width) { return (sums_offset(width) + width / 32 * 8 + 63) & ~63u; }
// The two sums of a block. Sums are 4 aligned only: a row may have an odd number of blocks.
FN uint2 sums_of(const GLOBAL uchar *row, uint width, uint block) {
    const GLOBAL uchar *from = row + sums_offset(width) + block * 8;
    return UINT2(LOAD1(from), LOAD1(from + 4));
}
