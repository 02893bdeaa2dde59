// Four columns of an item into a row of activations.

// Puts four columns into a row of f32.
FN void put_f32(const float values[4], uint column, uint width, float *out) {
    if (width % 4 == 0) {
        if (column < width) *(float4 *)(out + column) = FLOAT4(values[0], values[1], values[2], values[3]);
    } else {
        for (uint i = 0; i < 4; i++) {
            if (column + i < width) out[column + i] = values[i];
        }
    }
}

// Quantises four values of columns `column` …, which are the lane's, into the row at `out`: eight neighbouring lanes hold a
// block. All lanes of the warp come here together; those with no columns left bring `column >= width`.
FN void quantise_lanes(const float values[4], uint column, uint width, uchar *out) {
    // Bits of absolute values are ordered as the values are, and what is not a number is beyond all.
    uint largest = 0;
    #pragma unroll
    for (uint i = 0; i < 4; i++) largest = max(largest, AS_UINT(values[i]) & 0x7fffffffu);
    #pragma unroll
    for (uint bit = 1; bit < 8; bit *= 2) largest = max(largest, __shfl_xor_sync(~0u, largest, bit));
    float scale = AS_FLOAT(largest);
    float inverse = largest == 0 ? 0.0f : 127.0f / scale;
    uint word = 0;
    int sum = 0;
    #pragma unroll
    for (uint i = 0; i < 4; i++) {
        int quantum = (int)rint(fmin(fmax(values[i] * inverse, -127.0f), 127.0f));
        word |= ((uint)quantum & 255) << (8 * i);
        sum += quantum;
    }
    #pragma unroll
    for (uint bit = 1; bit < 4; bit *= 2) sum += __shfl_xor_sync(~0u, sum, bit);
    if (column >= width) return;
    *(uint *)(out + column) = word;
    if (ITEM % 8 == 0) {
        *(float *)(out + scales_offset(width) + column / 32 * 4) = largest < 0x7f800000u ? scale / 127.0f : NAN;
    }
    if (ITEM % 4 == 0) *(int *)(out + sums_offset(width) + column / 16 * 4) = sum;
}
