// Attention with sinks over a long cache, the second of two launches: the splits' means, weighted by each split's share of a
// softmax to whose sum the sink of the head adds. A group computes as many columns of a row as it has items.

KERNEL(ITEMS) attention_merge_sinks(
    const GLOBAL uint *RESTRICT params, const GLOBAL float *RESTRICT partials, const GLOBAL float *RESTRICT sinks,
    GLOBAL float *RESTRICT out, uint rows, uint word, uint heads, uint head_dim, uint splits
) {
    BEGIN();
    uint column = GROUP(1) * ITEMS + ITEM, width = heads * head_dim;
    if (GROUP(0) >= count(params, word, rows) || column >= width) return;
    size_t first = ((size_t)GROUP(0) * heads + column / head_dim) * splits;
    const GLOBAL float *sums = partials + (size_t)rows * width * splits + first * 2;
    const GLOBAL float *means = partials + first * head_dim + column % head_dim;
    float sink = sinks[column / head_dim], largest = sink, total = 0.0f, value = 0.0f;
    for (uint s = 0; s < splits; s++) {
        if (sums[s * 2 + 1] != 0.0f) largest = fmax(largest, sums[s * 2]);
    }
    for (uint s = 0; s < splits; s++) {
        if (sums[s * 2 + 1] == 0.0f) continue; // an empty split
        float weight = exp(sums[s * 2] - largest) * sums[s * 2 + 1];
        total += weight;
        value = fma(weight, means[(size_t)s * head_dim], value);
    }
    out[(size_t)GROUP(0) * width + column] = total == 0.0f ? 0.0f : value / (total + exp(sink - largest));
}
