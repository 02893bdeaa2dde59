// The weighted sum of what the experts of a row give: groups take parts of a row.

KERNEL(ITEMS) expert_combine(
    const GLOBAL uint *RESTRICT params, const GLOBAL float *RESTRICT values, const GLOBAL uint *RESTRICT route,
    const GLOBAL float *RESTRICT biases, GLOBAL float *RESTRICT out, uint rows, uint word, uint width, uint used, uint experts
) {
    BEGIN();
    if (GROUP(0) >= count(params, word, rows)) return;
    const GLOBAL uint *ids = route + (size_t)GROUP(0) * 2 * used, *weights = ids + used;
    const GLOBAL float *from = values + (size_t)GROUP(0) * used * width;
    #pragma unroll
    for (uint i = 0; i < 4; i++) {
        uint c = PART + i * ITEMS + ITEM;
        if (c < width) {
            float sum = 0.0f;
            for (uint slot = 0; slot < used; slot++) {
                float value = from[(size_t)slot * width + c];
                if (experts) value += biases[(size_t)ids[slot] * width + c];
                sum = fma(AS_FLOAT(weights[slot]), value, sum);
            }
            out[(size_t)GROUP(0) * width + c] = sum;
        }
    }
}
