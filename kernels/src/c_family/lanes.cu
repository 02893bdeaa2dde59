// Sums over lanes of a warp.

// Adds values up over the lanes that differ in bits BIT, BIT / 2, … LAST of their number. While more than LEFT of the N values
// are left, each exchange leaves a lane one half of them: the upper one if the bit is set.
template <uint N, uint LEFT, uint BIT, uint LAST> FN void sum_lanes(float *values) {
    if constexpr (BIT >= LAST && N > LEFT) {
        bool upper = ITEM & BIT;
        #pragma unroll
        for (uint i = 0; i < N / 2; i++) {
            float keep = upper ? values[i + N / 2] : values[i], give = upper ? values[i] : values[i + N / 2];
            values[i] = keep + __shfl_xor_sync(~0u, give, BIT);
        }
        sum_lanes<N / 2, LEFT, BIT / 2, LAST>(values);
    } else if constexpr (BIT >= LAST) {
        #pragma unroll
        for (uint i = 0; i < N; i++) values[i] += __shfl_xor_sync(~0u, values[i], BIT);
        sum_lanes<N, LEFT, BIT / 2, LAST>(values);
    }
}
