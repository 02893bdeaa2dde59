// Brings the splits of attention together: a group takes ITEMS columns of a row, an item one of them. First its warps turn
// maxima and sums into the weights of their heads' splits.

// Splits whose values are under way together.
#define BATCH 16
// Splits whose weights are in shared memory at once, of all heads of a group.
#define WEIGHTS 1024

// Weights of a head's splits, over their sum: a warp's lanes share the splits. Empty splits get none.
FN void weigh(const float *sums, uint splits, float *weights) {
    float largest = -INFINITE, total = 0.0f;
    for (uint s = ITEM % 32; s < splits; s += 32) {
        float2 sum = *(const float2 *)(sums + s * 2);
        if (sum.y != 0.0f) largest = fmax(largest, sum.x);
    }
    #pragma unroll
    for (uint bit = 16; bit > 0; bit /= 2) largest = fmax(largest, __shfl_xor_sync(~0u, largest, bit));
    for (uint s = ITEM % 32; s < splits; s += 32) {
        float2 sum = *(const float2 *)(sums + s * 2);
        float weight = sum.y != 0.0f ? sum.y * exp(sum.x - largest) : 0.0f;
        weights[s] = weight;
        total += weight;
    }
    #pragma unroll
    for (uint bit = 16; bit > 0; bit /= 2) total += __shfl_xor_sync(~0u, total, bit);
    float inverse = total != 0.0f ? 1.0f / total : 0.0f;
    for (uint s = ITEM % 32; s < splits; s += 32) weights[s] *= inverse;
}

FN float merged(const float *partials, uint rows, uint row, uint heads, uint d, uint splits) {
    SHARED float weights[WEIGHTS];
    uint width = heads * d, begin = GROUP(1) * ITEMS, end = min(begin + ITEMS, width), column = min(begin + ITEM, width - 1);
    uint first = begin / d, last = (end - 1) / d, head = column / d, together = max(WEIGHTS / splits, 1u);
    const float *values = partials + ((size_t)row * heads + head) * splits * d + column % d;
    const float *sums = partials + (size_t)rows * heads * splits * d + (size_t)row * heads * splits * 2;
    float value[BATCH], result = 0.0f;
    #pragma unroll
    for (uint i = 0; i < BATCH; i++) value[i] = i < splits ? values[(size_t)i * d] : 0.0f;
    for (; first <= last; first += together) {
        for (uint h = ITEM / 32; h < together && first + h <= last; h += ITEMS / 32) {
            weigh(sums + (size_t)(first + h) * splits * 2, splits, weights + h * splits);
        }
        BARRIER();
        if (head - first < together) {
            const float *mine = weights + (head - first) * splits;
            for (uint s = 0; s < splits; s += BATCH) {
                #pragma unroll
                for (uint i = 0; i < BATCH; i++) {
                    if (s) value[i] = s + i < splits ? values[(size_t)(s + i) * d] : 0.0f;
                }
                #pragma unroll
                for (uint i = 0; i < BATCH; i++) {
                    float weight = s + i < splits ? mine[s + i] : 0.0f;
                    if (weight != 0.0f) result = fma(weight, value[i], result); // others were not written
                }
            }
        }
        BARRIER();
    }
    return result;
}

KERNEL(ITEMS) attention_merge_f32(
    const GLOBAL uint *RESTRICT params, const GLOBAL float *RESTRICT partials, GLOBAL float *RESTRICT out,
    uint rows, uint word, uint heads, uint head_dim, uint splits
) {
    LAUNCH_NEXT();
    uint used = count(params, word, rows), row = GROUP(0), column = GROUP(1) * ITEMS + ITEM, width = heads * head_dim;
    AWAIT_LAST();
    float value = merged(partials, rows, row, heads, head_dim, splits);
    if (row < used && column < width) out[(size_t)row * width + column] = value;
}

KERNEL(ITEMS) attention_merge_int8(
    const GLOBAL uint *RESTRICT params, const GLOBAL float *RESTRICT partials, GLOBAL uchar *RESTRICT out,
    uint rows, uint word, uint heads, uint head_dim, uint splits
) {
    LAUNCH_NEXT();
    uint used = count(params, word, rows), row = GROUP(0), column = GROUP(1) * ITEMS + ITEM, width = heads * head_dim;
    AWAIT_LAST();
    float value = merged(partials, rows, row, heads, head_dim, splits);
    // A warp holds a block. Bits of absolute values are ordered as the values are, and what is not a number is beyond all.
    uint largest = AS_UINT(value) & 0x7fffffffu;
    #pragma unroll
    for (uint bit = 16; bit > 0; bit /= 2) largest = max(largest, __shfl_xor_sync(~0u, largest, bit));
    float scale = AS_FLOAT(largest);
    float inverse = largest == 0 ? 0.0f : 127.0f / scale;
    int quantum = (int)rint(fmin(fmax(value * inverse, -127.0f), 127.0f)), sum = quantum;
    #pragma unroll
    for (uint bit = 8; bit > 0; bit /= 2) sum += __shfl_xor_sync(~0u, sum, bit);
    if (row >= used || column >= width) return;
    uchar *to = out + (size_t)row * row_bytes(width);
    to[column] = (uchar)quantum;
    if (ITEM % 32 == 0) {
        *(float *)(to + scales_offset(width) + column / 32 * 4) = largest < 0x7f800000u ? scale / 127.0f : NAN;
    }
    if (ITEM % 16 == 0) *(int *)(to + sums_offset(width) + column / 16 * 4) = sum;
}

KERNEL(ITEMS) attention_merge_f16(
    const GLOBAL uint *RESTRICT params, const GLOBAL float *RESTRICT partials, GLOBAL uchar *RESTRICT out,
    uint rows, uint word, uint heads, uint head_dim, uint splits
) {
    LAUNCH_NEXT();
    uint used = count(params, word, rows), row = GROUP(0), column = GROUP(1) * ITEMS + ITEM, width = heads * head_dim;
    AWAIT_LAST();
    float value = merged(partials, rows, row, heads, head_dim, splits);
    if (row >= used || column >= half_pitch(width)) return;
    ushort *to = (ushort *)(out + (size_t)row * half_row_bytes(width));
    to[column] = column < width ? float_to_half(in_half_range(value)) : 0; // padding
}
