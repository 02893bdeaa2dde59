// RMS norm, into f32, int8 or f16 activations: one group a row.

// One over the root mean square of a row.
FN float norm_scale(LOCAL float *scratch, const GLOBAL float *row, uint width, float epsilon) {
    float sum = 0.0f;
    // Several loads at once are what hides the memory's latency.
    for (uint first = 0; first < width; first += 8 * ITEMS) {
        float values[8];
        #pragma unroll
        for (uint i = 0; i < 8; i++) {
            uint c = first + i * ITEMS + ITEM;
            values[i] = c < width ? row[c] : 0.0f;
        }
        #pragma unroll
        for (uint i = 0; i < 8; i++) sum = fma(values[i], values[i], sum);
    }
    return 1.0f / sqrt(group_sum(scratch, sum) / (float)width + epsilon);
}

KERNEL(ITEMS) rms_norm_f32(
    const GLOBAL uint *RESTRICT params, const GLOBAL float *RESTRICT x, const GLOBAL float *RESTRICT weight,
    GLOBAL float *RESTRICT out, uint rows, uint word, uint width, uint epsilon
) {
    BEGIN();
    SHARED float scratch[REDUCE_SPACE];
    width = used_width(params, word, rows, width);
    const GLOBAL float *from = x + (size_t)GROUP(0) * width;
    GLOBAL float *to = out + (size_t)GROUP(0) * width;
    float scale = norm_scale(scratch, from, width, AS_FLOAT(epsilon));
    #pragma unroll 8
    for (uint first = 0; first < width; first += ITEMS) {
        uint c = first + ITEM;
        if (c < width) to[c] = from[c] * scale * weight[c];
    }
}

KERNEL(ITEMS) rms_norm_int8(
    const GLOBAL uint *RESTRICT params, const GLOBAL float *RESTRICT x, const GLOBAL float *RESTRICT weight,
    GLOBAL uchar *RESTRICT out, uint rows, uint word, uint width, uint epsilon
) {
    BEGIN();
    SHARED float scratch[REDUCE_SPACE];
    SHARED uint quantising[QUANTISE_SPACE];
    width = used_width(params, word, rows, width);
    const GLOBAL float *from = x + (size_t)GROUP(0) * width;
    GLOBAL uchar *to = out + (size_t)GROUP(0) * row_bytes(width);
    float scale = norm_scale(scratch, from, width, AS_FLOAT(epsilon));
    for (uint first = 0; first < width; first += 4 * ITEMS) {
        uint column = first + 4 * ITEM;
        float values[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        if (column < width) {
            float4 v = LOADF4(from + column), w = LOADF4(weight + column);
            values[0] = v.x * scale * w.x;
            values[1] = v.y * scale * w.y;
            values[2] = v.z * scale * w.z;
            values[3] = v.w * scale * w.w;
        }
        quantise(quantising, values, column, width, to);
    }
}

KERNEL(ITEMS) rms_norm_f16(
    const GLOBAL uint *RESTRICT params, const GLOBAL float *RESTRICT x, const GLOBAL float *RESTRICT weight,
    GLOBAL uchar *RESTRICT out, uint rows, uint word, uint width, uint epsilon
) {
    BEGIN();
    SHARED float scratch[REDUCE_SPACE];
    width = used_width(params, word, rows, width);
    const GLOBAL float *from = x + (size_t)GROUP(0) * width;
    GLOBAL uchar *to = out + (size_t)GROUP(0) * half_row_bytes(width);
    float scale = norm_scale(scratch, from, width, AS_FLOAT(epsilon));
    for (uint first = 0; first < half_pitch(width); first += 4 * ITEMS) {
        uint column = first + 4 * ITEM;
        float values[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        if (column < width) {
            float4 v = LOADF4(from + column), w = LOADF4(weight + column);
            values[0] = v.x * scale * w.x;
            values[1] = v.y * scale * w.y;
            values[2] = v.z * scale * w.z;
            values[3] = v.w * scale * w.w;
        }
        put_halves(values, column, width, to);
    }
}
