// Queries, the key and the value of latent attention: a group takes one query head of a row, or its latent.

KERNEL(ITEMS) latent_rows(
    const GLOBAL uint *RESTRICT params, const GLOBAL float *RESTRICT q, const GLOBAL float *RESTRICT kv,
    const GLOBAL float *RESTRICT weights, GLOBAL float *RESTRICT out, uint rows, uint word, uint heads, uint plain,
    uint rope, uint rank, uint epsilon, uint beta, uint period
) {
    BEGIN();
    SHARED float scratch[REDUCE_SPACE];
    uint row = GROUP(0), head = GROUP(1), dims = used_width(params, word, rows, rope), joint = rope + rank;
    bool is_query = head < heads;
    // A query head has no latent.
    const GLOBAL float *latent = kv + (size_t)row * joint;
    uint normed = is_query || dims == 0 ? 0 : rank;
    GLOBAL float *to = out + ((size_t)row * (heads + 2) + head) * joint;
    const GLOBAL float *from = is_query ? q + ((size_t)row * heads + head) * (plain + rope) + plain : latent + rank;
    float sum = 0.0f;
    for (uint d = ITEM; d < normed; d += ITEMS) sum = fma(latent[d], latent[d], sum);
    float scale = 1.0f / sqrt(group_sum(scratch, sum) / (float)rank + AS_FLOAT(epsilon));
    bool is_scaled = is_query && dims > 0 && AS_FLOAT(beta) != 0.0f;
    float factor = is_scaled ? fma(AS_FLOAT(beta), log((float)(params[4 + rows + row] / period + 1)), 1.0f) : 1.0f;
    for (uint d = ITEM; d < dims; d += ITEMS) {
        to[d] = from[d] * factor;
        if (!is_query) to[joint + d] = from[d];
    }
    for (uint d = ITEM; d < (is_scaled ? rank : 0); d += ITEMS) to[rope + d] *= factor;
    for (uint d = ITEM; d < normed; d += ITEMS) {
        float value = latent[d] * scale * weights[d];
        to[rope + d] = value;
        to[joint + rope + d] = value;
    }
}
