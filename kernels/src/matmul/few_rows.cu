// Up to M rows of x times weights that stand row by row: the values of x in a lane's columns stay in registers while all of the
// work group's rows pass. The first weights are asked for before the launch before has ended: no launch writes weights, nor
// parameters.

// Most groups of 16 rows of weights of a work group.
#define MAX_GROUPS 8

KERNEL(ITEMS) matmul_few_rows(
    const GLOBAL uint *RESTRICT params, const GLOBAL uchar *RESTRICT weights, const GLOBAL float *RESTRICT x,
    GLOBAL float *RESTRICT y, uint rows, uint word, uint n, uint k, uint accumulate, uint stride
) {
    extern SHARED uint4 shared[];
    SHARED float partial[WARPS * MAX_GROUPS * 16 * M]; // [warps][rows of weights][rows of x]
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

    // Without rows the weights pass all the same: copies must not outlive the work group.
    for (uint start = 0; start < max(used, 1u); start += M) {
        if (start > 0) {
            chunks = chunks_of(weights, pitch, sets);
            #pragma unroll 1
            for (uint i = 0; i < STAGES; i++) fill(&ring, &chunks);
        }
        for (uint column = warp * CHUNK; column < pitch; column += SEGMENT) {
            // The lane's columns of the chunk; where there are none, vectors of weights that are there, times zero.
            float xs[M][PASSES][VECTOR];
            uint place[PASSES];
            #pragma unroll
            for (uint p = 0; p < PASSES; p++) {
                uint at = column + p * PASS + lane * VECTOR;
                #pragma unroll
                for (uint m = 0; m < M; m++) {
                    #pragma unroll
                    for (uint i = 0; i < VECTOR; i += 4) {
                        float4 v = FLOAT4(0.0f, 0.0f, 0.0f, 0.0f);
                        if (at + i < k && start + m < used) v = LOADF4(x + (size_t)(start + m) * k + at + i);
                        xs[m][p][i] = v.x;
                        xs[m][p][i + 1] = v.y;
                        xs[m][p][i + 2] = v.z;
                        xs[m][p][i + 3] = v.w;
                    }
                }
                place[p] = at < pitch ? (p * PASS + lane * VECTOR) * VALUE_BYTES : 0;
            }
            for (uint set = 0; set < sets; set++) {
                const uchar *stage = ring_await(&ring);
                float acc[SET * M];
                #pragma unroll
                for (uint i = 0; i < SET * M; i++) acc[i] = 0.0f;
                #pragma unroll
                for (uint p = 0; p < PASSES; p++) {
                    #pragma unroll
                    for (uint r = 0; r < SET; r++) {
                        float values[VECTOR];
                        lanes(LOAD_LOCAL4(stage + r * CHUNK * VALUE_BYTES + place[p]), values);
                        #pragma unroll
                        for (uint m = 0; m < M; m++) {
                            #pragma unroll
                            for (uint i = 0; i < VECTOR; i++) acc[r * M + m] = fma(values[i], xs[m][p][i], acc[r * M + m]);
                        }
                    }
                }
                ring_drained(&ring);
                fill(&ring, &chunks);
                sum_lanes<SET * M, 1, 16, 1>(acc);
                const uint same = 32 / (SET * M);
                float *at = partial + (warp * MAX_GROUPS * 16 + set * SET) * M + lane / same;
                if (lane % same == 0) *at = column < SEGMENT ? acc[0] : *at + acc[0];
            }
        }
        BARRIER();
        // An item takes a row of weights and a row of x.
        for (uint i = ITEM; i < groups * 16 * M; i += ITEMS) {
            uint r = i % (groups * 16), m = i / (groups * 16);
            float sum = 0.0f;
            #pragma unroll
            for (uint w = 0; w < WARPS; w++) {
                if (w * CHUNK < pitch) sum += partial[(w * MAX_GROUPS * 16 + r) * M + m];
            }
            GLOBAL float *to = y + (size_t)(start + m) * stride + begin + r;
            if (start + m < used && begin + r < n) *to = accumulate ? *to + sum : sum;
        }
        BARRIER();
    }
}
