// The hyperbolic tangent: by a series where 1 − e^−2x would cancel.

FN float tanh_of(float x) {
    float square = x * x, rest = exp(x < 0.0f ? 2.0f * x : -2.0f * x), tangent = (1.0f - rest) / (1.0f + rest);
    if (square < 0.06f) {
        float series = fma(square, 0.021869488f, -0.053968254f);
        series = fma(square, fma(square, series, 0.13333333f), -0.33333333f);
        return fma(x * square, series, x);
    }
    return x < 0.0f ? -tangent : tangent;
}
