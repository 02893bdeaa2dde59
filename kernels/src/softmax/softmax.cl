// Softmax of each row: one group a row.

KERNEL(ITEMS) softmax(
    const GLOBAL uint *RESTRICT params, const GLOBAL float *RESTRICT x, GLOBAL float *RESTRICT out,
    uint rows, uint word, uint width
) {
    LOCAL float scratch[REDUCE_SPACE];
    if (GROUP(0) >= count(params, word, rows)) return;
    const GLOBAL float *from = x + (size_t)GROUP(0) * width;
    GLOBAL float *to = out + (size_t)GROUP(0) * width;
    float largest = -INFINITE, sum = 0.0f;
    for (uint c = ITEM; c < width; c += ITEMS) largest = fmax(largest, from[c]);
    largest = group_max(scratch, largest);
    if (largest == -INFINITE) largest = 0.0f; // nothing is allowed: all become zero, or NaN if there is one
    for (uint c = ITEM; c < width; c += ITEMS) sum += exp(from[c] - largest);
    sum = group_sum(scratch, sum);
    for (uint c = ITEM; c < width; c += ITEMS) to[c] = sum == 0.0f ? 0.0f : exp(from[c] - largest) / sum;
}
