// One row of x times weights that stand row by row: the values of x in a lane's columns stay in registers while all of the work
// group's rows pass. The first weights are asked for before the launch before has ended: no launch writes weights, nor
// parameters.

KERNEL(ITEMS) matmul_gemv_rows(
    const GLOBAL uint *RESTRICT params, const GLOBAL uchar *RESTRICT weights, const GLOBAL float *RESTRICT x,
    GLOBAL float *RESTRICT y, uint rows, uint word, uint n, uint k, uint accumulate, uint stride
) {
    extern SHARED uint4 shared[];
    SHARED float partial[WARPS * ITEMS]; // [warps][rows of weights]
    SHARED ulong barriers[WARPS * BARRIERS];
    LAUNCH_NEXT();
    const uint warp = ITEM / 32, lane = ITEM % 32, pitch = (k + 63) & ~63u;
    const uint groups = own_groups(n), begin = first_group(n) * 16, sets = groups * (16 / SET);
    weights += (size_t)begin * pitch * VALUE_BYTES;
    Ring ring;
    ring_start(&ring, (uchar *)shared + warp * STAGES * STAGE, barriers + warp * BARRIERS);
    Chunks chunks = chunks_of(weights, pitch, sets);
    #pragma unroll 1
    for (uint i = 0; i < STAGES; i++) fill(&ring, &chunks);
    uint used = count(params, word, rows);
    AWAIT_LAST();

    // Without rows the first is computed all the same, and not written: copies must not outlive the work group.
    for (uint row = 0; row < max(used, 1u); row++) {
        GLOBAL float *to = y + (size_t)row * stride + begin + ITEM;
        bool writes = row < used && ITEM < groups * 16 && begin + ITEM < n;
        float before = writes && accumulate ? *to : 0.0f;
        if (row > 0) {
            chunks = chunks_of(weights, pitch, sets);
            #pragma unroll 1
            for (uint i = 0; i < STAGES; i++) fill(&ring, &chunks);
        }
        const GLOBAL float *from = x + (size_t)row * k;
        for (uint column = warp * CHUNK; column < pitch; column += SEGMENT) {
            // The lane's columns of the chunk; where there are none, vectors of weights that are there, times zero.
            float xs[PASSES][VECTOR];
            uint place[PASSES];
            #pragma unroll
            for (uint p = 0; p < PASSES; p++) {
                uint at = column + p * PASS + lane * VECTOR;
                #pragma unroll
                for (uint i = 0; i < VECTOR; i += 4) {
                    float4 v = at + i < k ? LOADF4(from + at + i) : FLOAT4(0.0f, 0.0f, 0.0f, 0.0f);
                    xs[p][i] = v.x;
                    xs[p][i + 1] = v.y;
                    xs[p][i + 2] = v.z;
                    xs[p][i + 3] = v.w;
                }
                place[p] = at < pitch ? (p * PASS + lane * VECTOR) * VALUE_BYTES : 0;
            }
            for (uint set = 0; set < sets; set++) {
                const uchar *stage = ring_await(&ring);
                float acc[SET];
                #pragma unroll
                for (uint r = 0; r < SET; r++) acc[r] = 0.0f;
                #pragma unroll
                for (uint p = 0; p < PASSES; p++) {
                    #pragma unroll
                    for (uint r = 0; r < SET; r++) {
                        float values[VECTOR];
                        lanes(LOAD_LOCAL4(stage + r * CHUNK * VALUE_BYTES + place[p]), values);
                        #pragma unroll
                        for (uint i = 0; i < VECTOR; i++) acc[r] = fma(values[i], xs[p][i], acc[r]);
                    }
                }
                ring_drained(&ring);
                fill(&ring, &chunks);
                sum_lanes<SET, 1, 16, 1>(acc);
                float *at = partial + warp * ITEMS + set * SET + lane / 8;
                // Lanes 0, 8, 16, 24 hold rows 0, 1, 2, 3.
                if (lane % 8 == 0) *at = column < SEGMENT ? acc[0] : *at + acc[0];
            }
        }
        BARRIER();
        if (writes) {
            float sum = 0.0f;
            #pragma unroll
            for (uint w = 0; w < WARPS; w++) {
                if (w * CHUNK < pitch) sum += partial[w * ITEMS + ITEM];
            }
            *to = before + sum;
        }
        BARRIER();
    }
}
