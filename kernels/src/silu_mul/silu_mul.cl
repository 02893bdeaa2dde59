// SiLU(gate) · up, into f32 or int8 activations: one group a row.

FN float silu(float x) { return x / (1.0f + exp(-x)); }

KERNEL(ITEMS) silu_mul_f32(
    const GLOBAL uint *RESTRICT params, const GLOBAL float *RESTRICT gate, const GLOBAL float *RESTRICT up,
    GLOBAL float *RESTRICT out, uint rows, uint word, uint width
) {
    if (GROUP(0) >= count(params, word, rows)) return;
    size_t row = (size_t)GROUP(0) * width;
    for (uint c = ITEM; c < width; c += ITEMS) out[row + c] = silu(gate[row + c]) * up[row + c];
}

KERNEL(ITEMS) silu_mul_int8(
    const GLOBAL uint *RESTRICT params, const GLOBAL float *RESTRICT gate, const GLOBAL float *RESTRICT up,
    GLOBAL uchar *RESTRICT out, uint rows, uint word, uint width
) {
    LOCAL uint quantising[QUANTISE_SPACE];
    if (GROUP(0) >= count(params, word, rows)) return;
    size_t row = (size_t)GROUP(0) * width;
    GLOBAL uchar *to = out + (size_t)GROUP(0) * row_bytes(width);
    for (uint first = 0; first < width; first += 4 * ITEMS) {
        uint column = first + 4 * ITEM;
        float values[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        if (column < width) {
            for (uint i = 0; i < 4; i++) values[i] = silu(gate[row + column + i]) * up[row + column + i];
        }
        quantise(quantising, values, column, width, to);
    }
}
