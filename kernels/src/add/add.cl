// x += y: groups take parts of a row.

KERNEL(ITEMS) add(
    const GLOBAL uint *RESTRICT params, GLOBAL float *RESTRICT x, const GLOBAL float *RESTRICT y,
    uint rows, uint word, uint width
) {
    BEGIN();
    if (GROUP(0) >= count(params, word, rows)) return;
    size_t row = (size_t)GROUP(0) * width;
    #pragma unroll
    for (uint i = 0; i < 4; i++) {
        uint c = PART + i * ITEMS + ITEM;
        if (c < width) x[row + c] += y[row + c];
    }
}
