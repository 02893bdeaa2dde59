// Queries are turned in place; keys, turned, and values go into the cache. A group takes one kv head of a row, with the
// query heads that share it.

// sin and cos of position · frequency, times the magnitude. The product is taken in two parts, for its rounding error is not
// small beside one turn when positions are large.
FN void turn(uint position, float frequency, float magnitude, PRIVATE float *sine, PRIVATE float *cosine) {
    float angle = (float)position * frequency;
    float rest = fma((float)position, frequency, -angle);
    float s = sin(angle) * magnitude, c = cos(angle) * magnitude;
    float half_square = 0.5f * rest * rest;
    *sine = fma(c, rest, fma(-s, half_square, s));
    *cosine = fma(-s, rest, fma(-c, half_square, c));
}
