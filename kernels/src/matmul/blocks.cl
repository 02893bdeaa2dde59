// What a block of 32 columns adds to a sum: dot products of quanta over the first and the last 16 columns, sums of x
// over the same, the scale of x, and the scales and minima of the weights.

FN float add_block(
    int first_dot, int last_dot, int first_sum, int last_sum, float x, float first, float last, float minimum,
    float last_minimum, float sum
) {
    if (UNEQUAL) {
        sum = fma(first * x, (float)(first_dot - OFFSET * first_sum), sum);
        sum = fma(last * x, (float)(last_dot - OFFSET * last_sum), sum);
        return MINIMA ? fma(-last_minimum * x, (float)last_sum, fma(-minimum * x, (float)first_sum, sum)) : sum;
    }
    sum = fma(first * x, (float)(first_dot + last_dot - OFFSET * (first_sum + last_sum)), sum);
    return MINIMA ? fma(-minimum * x, (float)(first_sum + last_sum), sum) : sum;
}
