// Softmax of each row: one group a row.

KERNEL(ITEMS) softmax(
    const GLOBAL uint *RESTRICT params, const GLOBAL float *RESTRICT x, GLOBAL float *RESTRICT out,
    uint rows, uint word, uint width
) {
    BEGIN();
    SHARED float scratch[REDUCE_SPACE];
    if (GROUP(0) >= count(params, word, rows)) return;
    const GLOBAL float *from = x + (size_t)GROUP(0) * width;
    GLOBAL float *to = out + (size_t)GROUP(0) * width;
    float largest = -INFINITE, sum = 0.0f;
    for (uint first = 0; first < width; first += ITEMS) {
        uint c = first + ITEM;
        if (c < width) largest = fmax(largest, from[c]);
    }
    largest = group_max(scratch, largest);
    if (largest == -INFINITE) largest = 0.0f; // nothing is allowed: all become zero, or NaN if there is one
    for (uint first = 0; first < width; first += ITEMS) {
        uint c = first + ITEM;
        if (c < width) sum += exp(from[c] - largest);
    }
    sum = group_sum(scratch, sum);
    for (uint first = 0; first < width; first += ITEMS) {
        uint c = first + ITEM;
        if (c < width) to[c] = sum == 0.0f ? 0.0f : exp(from[c] - largest) / sum;
    }
}
