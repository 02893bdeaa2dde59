// xIELU with the numbers of a layer: groups take parts of a row.

FN float softplus(float x) { return (x > 0.0f ? x : 0.0f) + log(1.0f + exp(x > 0.0f ? -x : x)); }

// e^x − 1 − x. A series avoids the cancellation at small x.
FN float exp_rest(float x) {
    if (x < -0.125f || x > 0.125f) return exp(x) - 1.0f - x;
    return x * x * fma(x, fma(x, fma(x, 8.3333333e-3f, 4.1666667e-2f), 0.16666667f), 0.5f);
}

KERNEL(ITEMS) xielu(
    const GLOBAL uint *RESTRICT params, const GLOBAL float *RESTRICT x, const GLOBAL float *RESTRICT numbers,
    GLOBAL float *RESTRICT out, uint rows, uint word, uint width
) {
    BEGIN();
    if (GROUP(0) >= count(params, word, rows)) return;
    size_t row = (size_t)GROUP(0) * width;
    float beta = numbers[2], epsilon = numbers[3];
    float positive = softplus(numbers[0]), negative = beta + softplus(numbers[1]);
    #pragma unroll
    for (uint i = 0; i < 4; i++) {
        uint c = PART + i * ITEMS + ITEM;
        if (c < width) {
            float value = x[row + c], least = value < epsilon ? value : epsilon;
            float curve = value > 0.0f ? positive * value * value : negative * (exp_rest(least) + (least - value));
            out[row + c] = fma(beta, value, curve);
        }
    }
}
