// x += y: one group a row.

KERNEL(ITEMS) add(
    const GLOBAL uint *RESTRICT params, GLOBAL float *RESTRICT x, const GLOBAL float *RESTRICT y,
    uint rows, uint word, uint width
) {
    if (GROUP(0) >= count(params, word, rows)) return;
    size_t row = (size_t)GROUP(0) * width;
    for (uint c = ITEM; c < width; c += ITEMS) x[row + c] += y[row + c];
}
