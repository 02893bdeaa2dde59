// Norm of query and key heads, or of all heads, in place: a group takes one head of a row, or all of its queries or keys as one.

#define WHOLE 1
#define CENTRED 2
#define VALUES 3
#define GROWTH 4

KERNEL(ITEMS) head_norm(
    const GLOBAL uint *RESTRICT params, GLOBAL float *RESTRICT qkv, const GLOBAL float *RESTRICT weights,
    uint rows, uint word, uint heads, uint kv_heads, uint head_dim, uint epsilon, uint form, uint period
) {
    BEGIN();
    SHARED float scratch[2 * REDUCE_SPACE];
    uint first = form == WHOLE ? GROUP(1) * heads : GROUP(1);
    uint dims = used_width(params, word, rows, form == WHOLE ? head_dim * (GROUP(1) ? kv_heads : heads) : head_dim);
    GLOBAL float *head = qkv + ((size_t)GROUP(0) * (heads + 2 * kv_heads) + first) * head_dim;
    bool is_value = first >= heads + kv_heads;
    const GLOBAL float *weight = weights + (form && form != VALUES ? first : first >= heads && !is_value) * head_dim;
    float mean = 0.0f, squares = 0.0f;
    bool grows = form == GROWTH;
    // The first turn computes the mean, the second one the squares. A branch around a reduction would be shorter, but
    // PoCL 5 and 6 then compute other reductions of the kernel wrong.
    for (uint turn = form == CENTRED ? 0 : grows ? 2 : 1; turn < 2; turn++) {
        float sum = 0.0f;
        for (uint d = ITEM; d < dims; d += ITEMS) {
            float rest = head[d] - mean;
            sum = turn == 0 ? sum + rest : fma(rest, rest, sum);
        }
        sum = group_sum(scratch + turn * REDUCE_SPACE, sum) / (float)dims;
        mean = turn == 0 ? sum : mean;
        squares = sum;
    }
    float scale = grows ? 1.0f : 1.0f / sqrt(squares + AS_FLOAT(epsilon));
    if (grows && dims > 0) {
        float periods = (float)((params[4 + rows + GROUP(0)] + 1) / period);
        scale = fma(AS_FLOAT(epsilon), log(1.0f + periods), 1.0f);
    }
    for (uint d = ITEM; d < dims; d += ITEMS) head[d] = (head[d] - mean) * scale * (is_value || grows ? 1.0f : weight[d]);
}
