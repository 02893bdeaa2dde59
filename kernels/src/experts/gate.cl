// A gated function, with limits, of what the experts of a row give plus their biases: groups take parts of a row.

KERNEL(ITEMS) expert_gate(
    const GLOBAL uint *RESTRICT params, const GLOBAL float *RESTRICT gate_up, const GLOBAL uint *RESTRICT route,
    const GLOBAL float *RESTRICT biases, GLOBAL float *RESTRICT out,
    uint rows, uint word, uint width, uint used, uint experts, uint alpha, uint limit, uint offset
) {
    BEGIN();
    if (GROUP(0) >= count(params, word, rows)) return;
    uint columns = used * width;
    float most = AS_FLOAT(limit);
    const GLOBAL float *gates = gate_up + (size_t)GROUP(0) * 2 * columns, *ups = gates + columns;
    #pragma unroll
    for (uint i = 0; i < 4; i++) {
        uint c = PART + i * ITEMS + ITEM;
        if (c < columns) {
            float gate = gates[c], up = ups[c];
            if (experts) {
                size_t at = (size_t)route[(size_t)GROUP(0) * 2 * used + c / width] * width + c % width;
                gate += biases[at];
                up += biases[(size_t)experts * width + at];
            }
            // A comparison with NaN is false, so NaN stays.
            gate = gate > most ? most : gate;
            up = up > most ? most : up < -most ? -most : up;
            out[(size_t)GROUP(0) * columns + c] = gate / (1.0f + exp(-AS_FLOAT(alpha) * gate)) * (up + AS_FLOAT(offset));
        }
    }
}
