// Each row less its mean, over its standard deviation: one group a row.

KERNEL(ITEMS) layer_norm(
    const GLOBAL float *RESTRICT x, const GLOBAL float *RESTRICT weight, const GLOBAL float *RESTRICT bias,
    GLOBAL float *RESTRICT out, uint rows, uint width, uint epsilon
) {
    BEGIN();
    SHARED float scratch[ITEMS];
    const GLOBAL float *from = x + (size_t)GROUP(0) * width;
    GLOBAL float *to = out + (size_t)GROUP(0) * width;
    float sum = 0.0f, squares = 0.0f;
    for (uint c = ITEM; c < width; c += ITEMS) sum += from[c];
    float mean = across(scratch, 0, 1, sum) / (float)width;
    for (uint c = ITEM; c < width; c += ITEMS) squares = fma(from[c] - mean, from[c] - mean, squares);
    float variance = across(scratch, 0, 1, squares) / (float)width;
    float scale = 1.0f / sqrt(variance + AS_FLOAT(epsilon));
    for (uint c = ITEM; c < width; c += ITEMS) to[c] = fma((from[c] - mean) * scale, weight[c], bias[c]);
}
