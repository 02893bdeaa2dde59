// A function of the gate · up, into f32, int8 or f16 activations: groups take parts of a row.

// SiLU, GELU by tanh, or the square of what is positive.
FN float gated(uint function, float x) {
    if (function == 2) return x > 0.0f ? x * x : 0.0f;
    float y = function == 0 ? x : 1.5957691216f * fma(0.044715f * x * x, x, x);
    return x / (1.0f + exp(-y));
}

KERNEL(ITEMS) silu_mul_f32(
    const GLOBAL uint *RESTRICT params, const GLOBAL float *RESTRICT gate_up, GLOBAL float *RESTRICT out,
    uint rows, uint word, uint width, uint function
) {
    BEGIN();
    if (GROUP(0) >= count(params, word, rows)) return;
    const GLOBAL float *gate = gate_up + (size_t)GROUP(0) * 2 * width, *up = gate + width;
    GLOBAL float *to = out + (size_t)GROUP(0) * width;
    #pragma unroll
    for (uint i = 0; i < 4; i++) {
        uint c = PART + i * ITEMS + ITEM;
        if (c < width) to[c] = gated(function, gate[c]) * up[c];
    }
}

KERNEL(ITEMS) silu_mul_int8(
    const GLOBAL uint *RESTRICT params, const GLOBAL float *RESTRICT gate_up, GLOBAL uchar *RESTRICT out,
    uint rows, uint word, uint width, uint function
) {
    BEGIN();
    SHARED uint quantising[QUANTISE_SPACE];
    width = used_width(params, word, rows, width);
    const GLOBAL float *gate = gate_up + (size_t)GROUP(0) * 2 * width, *up = gate + width;
    GLOBAL uchar *to = out + (size_t)GROUP(0) * row_bytes(width);
    uint column = PART + 4 * ITEM;
    float values[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    if (column < width) {
        float4 g = LOADF4(gate + column), u = LOADF4(up + column);
        values[0] = gated(function, g.x) * u.x;
        values[1] = gated(function, g.y) * u.y;
        values[2] = gated(function, g.z) * u.z;
        values[3] = gated(function, g.w) * u.w;
    }
    quantise(quantising, values, column, width, to);
}

KERNEL(ITEMS) silu_mul_f16(
    const GLOBAL uint *RESTRICT params, const GLOBAL float *RESTRICT gate_up, GLOBAL uchar *RESTRICT out,
    uint rows, uint word, uint width, uint function
) {
    BEGIN();
    if (GROUP(0) >= count(params, word, rows)) return;
    const GLOBAL float *gate = gate_up + (size_t)GROUP(0) * 2 * width, *up = gate + width;
    uint column = PART + 4 * ITEM;
    float values[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    if (column < width) {
        float4 g = LOADF4(gate + column), u = LOADF4(up + column);
        values[0] = gated(function, g.x) * u.x;
        values[1] = gated(function, g.y) * u.y;
        values[2] = gated(function, g.z) * u.z;
        values[3] = gated(function, g.w) * u.w;
    }
    put_halves(values, column, width, out + (size_t)GROUP(0) * half_row_bytes(width));
}
