// SiLU(gate) · up, into f32 or int8 activations: groups take parts of a row.

FN float silu(float x) { return x / (1.0f + exp(-x)); }

KERNEL(ITEMS) silu_mul_f32(
    const GLOBAL uint *RESTRICT params, const GLOBAL float *RESTRICT gate, const GLOBAL float *RESTRICT up,
    GLOBAL float *RESTRICT out, uint rows, uint word, uint width
) {
    BEGIN();
    if (GROUP(0) >= count(params, word, rows)) return;
    size_t row = (size_t)GROUP(0) * width;
    #pragma unroll
    for (uint i = 0; i < 4; i++) {
        uint c = PART + i * ITEMS + ITEM;
        if (c < width) out[row + c] = silu(gate[row + c]) * up[row + c];
    }
}

KERNEL(ITEMS) silu_mul_int8(
    const GLOBAL uint *RESTRICT params, const GLOBAL float *RESTRICT gate, const GLOBAL float *RESTRICT up,
    GLOBAL uchar *RESTRICT out, uint rows, uint word, uint width
) {
    BEGIN();
    SHARED uint quantising[QUANTISE_SPACE];
    if (GROUP(0) >= count(params, word, rows)) return;
    size_t row = (size_t)GROUP(0) * width;
    GLOBAL uchar *to = out + (size_t)GROUP(0) * row_bytes(width);
    uint column = PART + 4 * ITEM;
    float values[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    if (column < width) {
        float4 g = LOADF4(gate + row + column), u = LOADF4(up + row + column);
        values[0] = silu(g.x) * u.x;
        values[1] = silu(g.y) * u.y;
        values[2] = silu(g.z) * u.z;
        values[3] = silu(g.w) * u.w;
    }
    quantise(quantising, values, column, width, to);
}
