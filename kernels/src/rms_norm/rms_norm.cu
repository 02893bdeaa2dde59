// RMS norm of few rows: a group takes a row, an item four columns at a time, the first of which it keeps.

// Four columns of a row, whose start is 16 aligned if its width is whole fours.
FN float4 four(const float *row, uint column, uint width) {
    if (width % 4 == 0) return column < width ? LOADF4(row + column) : FLOAT4(0.0f, 0.0f, 0.0f, 0.0f);
    return FLOAT4(
        column < width ? row[column] : 0.0f, column + 1 < width ? row[column + 1] : 0.0f,
        column + 2 < width ? row[column + 2] : 0.0f, column + 3 < width ? row[column + 3] : 0.0f
    );
}

FN float squares(float4 v, float sum) {
    return fma(v.w, v.w, fma(v.z, v.z, fma(v.y, v.y, fma(v.x, v.x, sum))));
}

FN float sum_of_group(float *scratch, float value) {
    #pragma unroll
    for (uint bit = 16; bit > 0; bit /= 2) value += __shfl_xor_sync(~0u, value, bit);
    if (ITEM % 32 == 0) scratch[ITEM / 32] = value;
    BARRIER();
    value = ITEM % 32 < ITEMS / 32 ? scratch[ITEM % 32] : 0.0f;
    #pragma unroll
    for (uint bit = 16; bit > 0; bit /= 2) value += __shfl_xor_sync(~0u, value, bit);
    return value;
}

// Forms of the output.
#define FORM_F32 0
#define FORM_INT8 1
#define FORM_F16 2

template <uint FORM> FN void norm(
    const uint *params, const float *x, const float *weight, uchar *out, uint rows, uint word, uint width, float epsilon
) {
    SHARED float scratch[ITEMS / 32];
    LAUNCH_NEXT();
    // No launch writes parameters and weights: they are read before the launch before has ended.
    uint used = count(params, word, rows);
    float4 w = four(weight, ITEM * 4, width);
    AWAIT_LAST();
    const float *from = x + (size_t)GROUP(0) * width;
    float4 v = four(from, ITEM * 4, width);
    float sum = squares(v, 0.0f);
    for (uint c = (ITEMS + ITEM) * 4; c < width; c += ITEMS * 4) sum = squares(four(from, c, width), sum);
    sum = sum_of_group(scratch, sum);
    if (GROUP(0) >= used) return;
    float scale = 1.0f / sqrt(sum / (float)width + epsilon);
    uint padded = FORM == FORM_F16 ? half_pitch(width) : width;
    #pragma unroll 1
    for (uint first = 0; first < padded; first += ITEMS * 4) {
        uint column = first + ITEM * 4;
        if (first) {
            v = four(from, column, width);
            w = four(weight, column, width);
        }
        const float values[4] = {v.x * scale * w.x, v.y * scale * w.y, v.z * scale * w.z, v.w * scale * w.w};
        if (FORM == FORM_F32) put_f32(values, column, width, (float *)out + (size_t)GROUP(0) * width);
        if (FORM == FORM_INT8) quantise_lanes(values, column, width, out + (size_t)GROUP(0) * row_bytes(width));
        if (FORM == FORM_F16) put_halves(values, column, width, out + (size_t)GROUP(0) * half_row_bytes(width));
    }
}

KERNEL(ITEMS) rms_norm_f32(
    const GLOBAL uint *RESTRICT params, const GLOBAL float *RESTRICT x, const GLOBAL float *RESTRICT weight,
    GLOBAL float *RESTRICT out, uint rows, uint word, uint width, uint epsilon
) {
    norm<FORM_F32>(params, x, weight, (uchar *)out, rows, word, width, AS_FLOAT(epsilon));
}

KERNEL(ITEMS) rms_norm_int8(
    const GLOBAL uint *RESTRICT params, const GLOBAL float *RESTRICT x, const GLOBAL float *RESTRICT weight,
    GLOBAL uchar *RESTRICT out, uint rows, uint word, uint width, uint epsilon
) {
    norm<FORM_INT8>(params, x, weight, out, rows, word, width, AS_FLOAT(epsilon));
}

KERNEL(ITEMS) rms_norm_f16(
    const GLOBAL uint *RESTRICT params, const GLOBAL float *RESTRICT x, const GLOBAL float *RESTRICT weight,
    GLOBAL uchar *RESTRICT out, uint rows, uint word, uint width, uint epsilon
) {
    norm<FORM_F16>(params, x, weight, out, rows, word, width, AS_FLOAT(epsilon));
}
