// Gated norm: a group takes one group of columns of a row.

#define GATE_FIRST 1
#define NO_NORM 2
#define SIGMOID 1

FN float gate_of(float gate, uint function) {
    float sigmoid = 1.0f / (1.0f + exp(-gate));
    return function == SIGMOID ? sigmoid : gate * sigmoid;
}

KERNEL(ITEMS) gated_norm(
    const GLOBAL uint *RESTRICT params, const GLOBAL float *RESTRICT x, const GLOBAL float *RESTRICT gates,
    const GLOBAL float *RESTRICT weights, GLOBAL float *RESTRICT out,
    uint rows, uint word, uint groups, uint width, uint weight_count, uint pitch, uint first, uint stride, uint epsilon,
    uint order, uint function
) {
    BEGIN();
    SHARED float scratch[REDUCE_SPACE];
    uint columns = used_width(params, word, rows, width);
    size_t start = ((size_t)GROUP(0) * groups + GROUP(1)) * width;
    const GLOBAL float *from = x + start, *gate = gates + (size_t)GROUP(0) * pitch + first + GROUP(1) * stride;
    float sum = 0.0f;
    for (uint c = ITEM; c < columns; c += ITEMS) {
        float value = order == GATE_FIRST ? from[c] * gate_of(gate[c], function) : from[c];
        sum = fma(value, value, sum);
    }
    float scale = 1.0f / sqrt(group_sum(scratch, sum) / (float)width + AS_FLOAT(epsilon));
    const GLOBAL float *weight = weights + (weight_count == width ? 0 : GROUP(1) * width);
    for (uint c = ITEM; c < columns; c += ITEMS) {
        float value = from[c] * gate_of(gate[c], function);
        out[start + c] = order == NO_NORM ? value : value * scale * weight[c];
    }
}

// Gated heads: a group takes one head of the output.
KERNEL(ITEMS) gated_heads(
    const GLOBAL uint *RESTRICT params, const GLOBAL float *RESTRICT x, const GLOBAL float *RESTRICT weights,
    GLOBAL float *RESTRICT out, uint rows, uint word, uint heads, uint kv_heads, uint head_dim, uint epsilon
) {
    BEGIN();
    SHARED float scratch[REDUCE_SPACE];
    uint dims = used_width(params, word, rows, head_dim), head = GROUP(1);
    uint source = head < heads ? 2 * head : head + heads;
    const GLOBAL float *from = x + ((size_t)GROUP(0) * 2 * (heads + kv_heads) + source) * head_dim;
    GLOBAL float *to = out + ((size_t)GROUP(0) * (heads + 2 * kv_heads) + head) * head_dim;
    const GLOBAL float *weight = weights + (head < heads ? 0 : head_dim);
    bool is_value = head >= heads + kv_heads;
    float sum = 0.0f;
    for (uint d = ITEM; d < dims; d += ITEMS) sum = fma(from[d], from[d], sum);
    float scale = 1.0f / sqrt(group_sum(scratch, sum) / (float)head_dim + AS_FLOAT(epsilon));
    for (uint d = ITEM; d < dims; d += ITEMS) to[d] = is_value ? from[d] : from[d] * scale * weight[d];
}
