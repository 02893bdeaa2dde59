// Norm of query and key heads, in place: a group takes one head of a row, or all of its queries or keys as one.

#define WHOLE 1
#define CENTRED 2

KERNEL(ITEMS) head_norm(
    const GLOBAL uint *RESTRICT params, GLOBAL float *RESTRICT qkv, const GLOBAL float *RESTRICT weights,
    uint rows, uint word, uint heads, uint kv_heads, uint head_dim, uint epsilon,
    uint form
) {
    BEGIN();
    SHARED float scratch[REDUCE_SPACE];
    if (GROUP(0) >= count(params, word, rows)) return;
    uint first = form == WHOLE ? GROUP(1) * heads : GROUP(1);
    uint dims = form == WHOLE ? head_dim * (GROUP(1) ? kv_heads : heads) : head_dim;
    GLOBAL float *head = qkv + ((size_t)GROUP(0) * (heads + 2 * kv_heads) + first) * head_dim;
    const GLOBAL float *weight = weights + (form ? first : first >= heads) * head_dim;
    float sum = 0.0f, mean = 0.0f;
    if (form == CENTRED) {
        for (uint d = ITEM; d < dims; d += ITEMS) sum += head[d];
        mean = group_sum(scratch, sum) / (float)dims;
        BARRIER();
        sum = 0.0f;
    }
    for (uint d = ITEM; d < dims; d += ITEMS) sum = fma(head[d] - mean, head[d] - mean, sum);
    float scale = 1.0f / sqrt(group_sum(scratch, sum) / (float)dims + AS_FLOAT(epsilon));
    for (uint d = ITEM; d < dims; d += ITEMS) head[d] = (head[d] - mean) * scale * weight[d];
}
