// Products for few rows of x with weights that lie row by row, in sub-groups: a sub-group takes a row of
// weights, 16 bytes an item at a time, and M rows of x. Where fewer rows of x are left, the last one stands
// for the others.

// Loads of weights that are under way together: what hides the memory's latency.
#define BATCH (M == 1 ? 4 : 2)
// Columns that a sub-group loads at once.
#define ABREAST (WIDTH * LANES)

KERNEL(ITEMS) matmul_rows(
    const GLOBAL uint *RESTRICT params, const GLOBAL uchar *RESTRICT weights, const GLOBAL float *RESTRICT x,
    GLOBAL float *RESTRICT y, uint rows, uint word, uint n, uint k, uint accumulate, uint stride
) {
    BEGIN();
    uint used = count(params, word, rows), to_column = GROUP(0) * (ITEMS / WIDTH) + SUB_GROUP;
    // Beyond the last row of weights a sub-group computes that row, and does not write.
    const GLOBAL uchar *row = weights + (size_t)min(to_column, n - 1) * pitch_bytes(k);
    for (uint start = 0; start < used; start += M) {
        float acc[M];
        #pragma unroll
        for (uint m = 0; m < M; m++) acc[m] = 0.0f;
        for (uint first = LANE * LANES; first < k; first += BATCH * ABREAST) {
            uint4 bytes[BATCH];
            #pragma unroll
            for (uint i = 0; i < BATCH; i++) {
                uint column = first + i * ABREAST;
                bytes[i] = column < k ? LOAD4(row + column * VALUE_BYTES) : UINT4(0, 0, 0, 0);
            }
            #pragma unroll
            for (uint i = 0; i < BATCH; i++) {
                uint column = first + i * ABREAST;
                if (column >= k) continue;
                float values[LANES];
                lanes(bytes[i], values);
                #pragma unroll
                for (uint m = 0; m < M; m++) {
                    const GLOBAL float *at = x + (size_t)(start + min(m, used - start - 1)) * k + column;
                    #pragma unroll
                    for (uint v = 0; v < LANES; v += 4) {
                        float4 factors = LOADF4(at + v);
                        acc[m] = fma(values[v], factors.x, acc[m]);
                        acc[m] = fma(values[v + 1], factors.y, acc[m]);
                        acc[m] = fma(values[v + 2], factors.z, acc[m]);
                        acc[m] = fma(values[v + 3], factors.w, acc[m]);
                    }
                }
            }
        }
        float value = 0.0f;
        #pragma unroll
        for (uint m = 0; m < M; m++) {
            float sum = sub_group_reduce_add(acc[m]);
            if (LANE == m) value = sum;
        }
        if (LANE < M && start + LANE < used && to_column < n) {
            GLOBAL float *to = y + (size_t)(start + LANE) * stride + to_column;
            *to = accumulate ? *to + value : value;
        }
    }
}
