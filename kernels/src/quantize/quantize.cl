// f32 into int8 or f16 activations: groups take parts of a row, eight items a block of 32.

// Local memory of `quantise`: for each item its largest value, and its sum.
#define QUANTISE_SPACE (2 * ITEMS)

// Quantises four values of columns `column` …, which are the item's, into the row at `out`. All items of the group come
// here together; those with no columns left bring `column >= width`.
FN void quantise(LOCAL uint *scratch, const float values[4], uint column, uint width, GLOBAL uchar *out) {
    // Bits of absolute values are ordered as the values are, and what is not a number is beyond all.
    uint largest = 0;
    for (uint i = 0; i < 4; i++) largest = max(largest, AS_UINT(values[i]) & 0x7fffffffu);
    BARRIER(); // the sums of the call before have been read
    scratch[ITEM] = largest;
    BARRIER();
    for (uint i = 0; i < 8; i++) largest = max(largest, scratch[(ITEM & ~7u) + i]);
    float scale = AS_FLOAT(largest);
    float inverse = largest == 0 ? 0.0f : 127.0f / scale;
    uint word = 0;
    int sum = 0;
    for (uint i = 0; i < 4; i++) {
        int quantum = (int)rint(fmin(fmax(values[i] * inverse, -127.0f), 127.0f));
        word |= ((uint)quantum & 255) << (8 * i);
        sum += quantum;
    }
    scratch[ITEMS + ITEM] = (uint)sum;
    BARRIER();
    if (column >= width) return;
    *(GLOBAL uint *)(out + column) = word;
    if (ITEM % 8 == 0) {
        *(GLOBAL float *)(out + scales_offset(width) + column / 32 * 4) = largest < 0x7f800000u ? scale / 127.0f : NAN;
    }
    if (ITEM % 4 == 0) {
        for (uint i = 1; i < 4; i++) sum += (int)scratch[ITEMS + ITEM + i];
        *(GLOBAL int *)(out + sums_offset(width) + column / 16 * 4) = sum;
    }
}

KERNEL(ITEMS) quantize(
    const GLOBAL uint *RESTRICT params, const GLOBAL float *RESTRICT x, GLOBAL uchar *RESTRICT out,
    uint rows, uint word, uint width
) {
    BEGIN();
    SHARED uint scratch[QUANTISE_SPACE];
    width = used_width(params, word, rows, width);
    const GLOBAL float *from = x + (size_t)GROUP(0) * width;
    GLOBAL uchar *to = out + (size_t)GROUP(0) * row_bytes(width);
    uint column = PART + 4 * ITEM;
    float4 x4 = column < width ? LOADF4(from + column) : FLOAT4(0.0f, 0.0f, 0.0f, 0.0f);
    float values[4] = {x4.x, x4.y, x4.z, x4.w};
    quantise(scratch, values, column, width, to);
}

KERNEL(ITEMS) quantize_f16(
    const GLOBAL uint *RESTRICT params, const GLOBAL float *RESTRICT x, GLOBAL uchar *RESTRICT out,
    uint rows, uint word, uint width
) {
    BEGIN();
    if (GROUP(0) >= count(params, word, rows)) return;
    const GLOBAL float *from = x + (size_t)GROUP(0) * width;
    uint column = PART + 4 * ITEM;
    float4 x4 = column < width ? LOADF4(from + column) : FLOAT4(0.0f, 0.0f, 0.0f, 0.0f);
    float values[4] = {x4.x, x4.y, x4.z, x4.w};
    put_halves(values, column, width, out + (size_t)GROUP(0) * half_row_bytes(width));
}
