// A function of the gate · up, of few rows: an item takes four columns.

// SiLU, GELU by tanh, or the square of what is positive; times `up`.
FN float gated(uint function, float x, float up) {
    if (function == 2) return (x > 0.0f ? x * x : 0.0f) * up;
    float y = function == 0 ? x : 1.5957691216f * fma(0.044715f * x * x, x, x);
    return x / (1.0f + exp(-y)) * up;
}

// Columns `column` … of the group's row, and zeros beyond it. Rows whose width is whole fours are 16 aligned.
FN void four_products(const float *gate_up, uint column, uint width, uint function, float values[4]) {
    const float *gate = gate_up + (size_t)GROUP(0) * 2 * width + column, *up = gate + width;
    #pragma unroll
    for (uint i = 0; i < 4; i++) values[i] = 0.0f;
    if (width % 4 == 0) {
        if (column >= width) return;
        float4 g = LOADF4(gate), u = LOADF4(up);
        values[0] = gated(function, g.x, u.x);
        values[1] = gated(function, g.y, u.y);
        values[2] = gated(function, g.z, u.z);
        values[3] = gated(function, g.w, u.w);
    } else {
        for (uint i = 0; i < 4; i++) {
            if (column + i < width) values[i] = gated(function, gate[i], up[i]);
        }
    }
}

KERNEL(ITEMS) silu_mul_f32(
    const GLOBAL uint *RESTRICT params, const GLOBAL float *RESTRICT gate_up, GLOBAL float *RESTRICT out,
    uint rows, uint word, uint width, uint function
) {
    LAUNCH_NEXT();
    uint used = count(params, word, rows), column = PART + 4 * ITEM; // no launch writes parameters
    float values[4];
    AWAIT_LAST();
    four_products(gate_up, column, width, function, values);
    if (GROUP(0) < used) put_f32(values, column, width, out + (size_t)GROUP(0) * width);
}

KERNEL(ITEMS) silu_mul_int8(
    const GLOBAL uint *RESTRICT params, const GLOBAL float *RESTRICT gate_up, GLOBAL uchar *RESTRICT out,
    uint rows, uint word, uint width, uint function
) {
    LAUNCH_NEXT();
    uint used = count(params, word, rows), column = PART + 4 * ITEM; // no launch writes parameters
    float values[4];
    AWAIT_LAST();
    four_products(gate_up, column, width, function, values);
    if (GROUP(0) < used) quantise_lanes(values, column, width, out + (size_t)GROUP(0) * row_bytes(width));
}

KERNEL(ITEMS) silu_mul_f16(
    const GLOBAL uint *RESTRICT params, const GLOBAL float *RESTRICT gate_up, GLOBAL uchar *RESTRICT out,
    uint rows, uint word, uint width, uint function
) {
    LAUNCH_NEXT();
    uint used = count(params, word, rows), column = PART + 4 * ITEM; // no launch writes parameters
    float values[4];
    AWAIT_LAST();
    four_products(gate_up, column, width, function, values);
    if (GROUP(0) < used) put_halves(values, column, width, out + (size_t)GROUP(0) * half_row_bytes(width));
}
