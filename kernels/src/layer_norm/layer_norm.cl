// Each row less its mean, over its standard deviation: one group a row.

KERNEL(ITEMS) layer_norm(
    const GLOBAL uint *RESTRICT x, const GLOBAL float *RESTRICT weight, const GLOBAL float *RESTRICT bias,
    GLOBAL float *RESTRICT out, uint type, uint rows, uint width, uint epsilon
) {
    BEGIN();
    SHARED float scratch[ITEMS];
    size_t row = (size_t)GROUP(0) * width;
    float sum = 0.0f, squares = 0.0f;
    for (uint c = ITEM; c < width; c += ITEMS) sum += element_value(x, type, row + c);
    float mean = across(scratch, 0, 1, sum) / (float)width;
    for (uint c = ITEM; c < width; c += ITEMS) {
        float rest = element_value(x, type, row + c) - mean;
        squares = fma(rest, rest, squares);
    }
    float variance = across(scratch, 0, 1, squares) / (float)width;
    float scale = 1.0f / sqrt(variance + AS_FLOAT(epsilon));
    for (uint c = ITEM; c < width; c += ITEMS) {
        out[row + c] = fma((element_value(x, type, row + c) - mean) * scale, weight[c], bias[c]);
    }
}
