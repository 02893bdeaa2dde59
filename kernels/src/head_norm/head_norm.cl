// RMS norm of query and key heads, in place: a group takes one head of a row.

KERNEL(ITEMS) head_norm(
    const GLOBAL uint *RESTRICT params, GLOBAL float *RESTRICT qkv, const GLOBAL float *RESTRICT weights,
    uint rows, uint word, uint heads, uint kv_heads, uint head_dim, uint epsilon
) {
    BEGIN();
    SHARED float scratch[REDUCE_SPACE];
    if (GROUP(0) >= count(params, word, rows)) return;
    GLOBAL float *head = qkv + ((size_t)GROUP(0) * (heads + 2 * kv_heads) + GROUP(1)) * head_dim;
    const GLOBAL float *weight = GROUP(1) < heads ? weights : weights + head_dim;
    float sum = 0.0f;
    for (uint d = ITEM; d < head_dim; d += ITEMS) sum = fma(head[d], head[d], sum);
    float scale = 1.0f / sqrt(group_sum(scratch, sum) / (float)head_dim + AS_FLOAT(epsilon));
    for (uint d = ITEM; d < head_dim; d += ITEMS) head[d] = head[d] * scale * weight[d];
}
