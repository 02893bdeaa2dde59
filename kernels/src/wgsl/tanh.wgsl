// Hyperbolic tangent of a finite number, by a series where 1 − e^−2x would cancel.

fn tanh_of(x: f32) -> f32 {
    let square = x * x;
    if square < 0.06 {
        let series = fma(square, fma(square, fma(square, 0.021869488, -0.053968254), 0.13333333), -0.33333333);
        return fma(x * square, series, x);
    }
    let rest = exp(-2.0 * min(abs(x), 40.0));
    return sign(x) * (1.0 - rest) / (1.0 + rest);
}
