// Attention for few rows over a long cache, the second of two launches: the runs' means, weighted by what each run has of
// the softmax. A group takes 256 columns of a row, an item four of them and every fourth run.

// Sets of four columns, and items that share one.
#define QUADS 64
#define SHARING (ITEMS / QUADS)
// Local memory of `merge`: for each item four sums, and that of the weights.
#define MERGE_SPACE (5 * ITEMS)

// Columns `column` … of the group's row, which has `width`. All items of the group come here together; what the first QUADS items get is right.
FN void merge(
    LOCAL float *scratch, const GLOBAL float *partials, uint rows, uint heads, uint head_dim, uint splits, uint width,
    uint column, PRIVATE float values[4]
) {
    const GLOBAL float *sums = partials + (size_t)rows * heads * splits * head_dim;
    uint share = ITEM / QUADS, quad = ITEM % QUADS;
    // Four columns are of one head, or are taken one at a time.
    uint together = head_dim % 4 == 0 ? 4 : 1;
    for (uint i = 0; i < 4; i += together) {
        bool used = column + i < width;
        size_t first = used ? ((size_t)GROUP(0) * heads + (column + i) / head_dim) * splits : 0;
        uint runs = used ? splits : 0, dim = (column + i) % head_dim;
        float largest = -INFINITE;
        for (uint s = share; s < runs; s += SHARING) {
            if (sums[(first + s) * 2 + 1] != 0.0f) largest = fmax(largest, sums[(first + s) * 2]);
        }
        BARRIER(); // what was there has been read
        scratch[ITEM] = largest;
        BARRIER();
        for (uint s = 0; s < SHARING; s++) largest = fmax(largest, scratch[s * QUADS + quad]);
        float acc[4] = {0.0f, 0.0f, 0.0f, 0.0f}, total = 0.0f;
        for (uint s = share; s < runs; s += SHARING) {
            float sum = sums[(first + s) * 2 + 1];
            if (sum == 0.0f) continue; // an empty run
            float weight = exp(sums[(first + s) * 2] - largest) * sum;
            const GLOBAL float *mean = partials + (first + s) * head_dim + dim;
            total += weight;
            if (together == 4) {
                float4 m = LOADF4(mean);
                acc[0] = fma(weight, m.x, acc[0]);
                acc[1] = fma(weight, m.y, acc[1]);
                acc[2] = fma(weight, m.z, acc[2]);
                acc[3] = fma(weight, m.w, acc[3]);
            } else {
                acc[0] = fma(weight, mean[0], acc[0]);
            }
        }
        BARRIER();
        #pragma unroll
        for (uint j = 0; j < 4; j++) scratch[j * ITEMS + ITEM] = acc[j];
        scratch[4 * ITEMS + ITEM] = total;
        BARRIER();
        total = 0.0f;
        for (uint s = 0; s < SHARING; s++) total += scratch[4 * ITEMS + s * QUADS + quad];
        for (uint j = 0; j < together; j++) {
            float value = 0.0f;
            for (uint s = 0; s < SHARING; s++) value += scratch[j * ITEMS + s * QUADS + quad];
            values[i + j] = total == 0.0f ? 0.0f : value / total;
        }
    }
}

KERNEL(ITEMS) attention_merge_f32(
    const GLOBAL uint *RESTRICT params, const GLOBAL float *RESTRICT partials, GLOBAL float *RESTRICT out,
    uint rows, uint word, uint heads, uint head_dim, uint splits
) {
    BEGIN();
    SHARED float scratch[MERGE_SPACE];
    uint width = used_width(params, word, rows, heads * head_dim), column = GROUP(1) * 4 * QUADS + ITEM % QUADS * 4;
    float values[4];
    merge(scratch, partials, rows, heads, head_dim, splits, width, column, values);
    GLOBAL float *to = out + (size_t)GROUP(0) * width;
    #pragma unroll
    for (uint i = 0; i < 4; i++) {
        if (ITEM < QUADS && column + i < width) to[column + i] = values[i];
    }
}

KERNEL(ITEMS) attention_merge_int8(
    const GLOBAL uint *RESTRICT params, const GLOBAL float *RESTRICT partials, GLOBAL uchar *RESTRICT out,
    uint rows, uint word, uint heads, uint head_dim, uint splits
) {
    BEGIN();
    SHARED float scratch[MERGE_SPACE];
    SHARED uint quantising[QUANTISE_SPACE];
    uint width = used_width(params, word, rows, heads * head_dim), column = GROUP(1) * 4 * QUADS + ITEM % QUADS * 4;
    float values[4];
    merge(scratch, partials, rows, heads, head_dim, splits, width, column, values);
    // Those whose columns are another's bring none, and what columns beyond the row hold is nobody's.
    uint own = ITEM < QUADS ? column : width;
    quantise(quantising, values, own, width, out + (size_t)GROUP(0) * row_bytes(width));
}

KERNEL(ITEMS) attention_merge_f16(
    const GLOBAL uint *RESTRICT params, const GLOBAL float *RESTRICT partials, GLOBAL uchar *RESTRICT out,
    uint rows, uint word, uint heads, uint head_dim, uint splits
) {
    BEGIN();
    SHARED float scratch[MERGE_SPACE];
    uint width = used_width(params, word, rows, heads * head_dim), column = GROUP(1) * 4 * QUADS + ITEM % QUADS * 4;
    float values[4];
    merge(scratch, partials, rows, heads, head_dim, splits, width, column, values);
    if (ITEM < QUADS) put_halves(values, column, width, out + (size_t)GROUP(0) * half_row_bytes(width));
}
