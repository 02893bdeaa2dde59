// One row of int8 activations times quantised weights. A lane takes four rows of every eighth block of a chunk; what x brings to
// its blocks stays in registers while all of the work group's rows pass. The first weights are asked for before the launch
// before has ended: no launch writes weights, nor parameters.

#define PASSES (CHUNK_BLOCKS / 8)

// What x brings to a lane's blocks of a chunk. Odd blocks have neighbouring quads exchanged: lanes then read apart.
typedef struct {
    uint block[PASSES]; // in the chunk
    uint quads[PASSES][8];
    float scale[PASSES];
    uint2 sums[PASSES];
} Columns;

FN void load_columns(const uchar *x, uint k, uint column, Columns *out) {
    uint blocks = min((uint)CHUNK_BLOCKS, (k - column) / 32);
    #pragma unroll
    for (uint p = 0; p < PASSES; p++) {
        uint wanted = p * 8 + ITEM % 32 / 4;
        bool inside = wanted < blocks, odd = ITEM & 4;
        uint block = inside ? wanted : blocks - 1; // a block that is there stands for one that is not, times zero
        const uchar *from = x + column + block * 32;
        uint4 low = LOAD4(from), high = LOAD4(from + 16);
        uint quads[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
        #pragma unroll
        for (uint q = 0; q < 8; q++) out->quads[p][q] = odd ? quads[q ^ 1] : quads[q];
        float scale = LOADF1(x + scales_offset(k) + column / 8 + block * 4);
        out->scale[p] = inside ? scale : 0.0f;
        out->sums[p] = sums_of(x, k, column / 32 + block);
        out->block[p] = block;
    }
}

FN void accumulate_chunk(const uchar *stage, const Columns *x, float acc[4]) {
    const uint part = ITEM % 4, odd = ITEM / 4 % 2;
    #pragma unroll
    for (uint p = 0; p < PASSES; p++) {
        int first[4] = {0, 0, 0, 0}, last[4] = {0, 0, 0, 0};
        #pragma unroll
        for (uint q = 0; q < 8; q++) {
            uint words[4];
            quad_words(stage, CHUNK_BLOCKS, x->block[p], q ^ odd, part, words);
            #pragma unroll
            for (uint r = 0; r < 4; r++) {
                if (UNEQUAL && q >= 4) last[r] = dot4(words[r], x->quads[p][q], last[r]);
                else first[r] = dot4(words[r], x->quads[p][q], first[r]);
            }
        }
        Scales scales;
        block_scales(stage, CHUNK_BLOCKS, x->block[p], part, &scales);
        #pragma unroll
        for (uint r = 0; r < 4; r++) {
            acc[r] = add_block(
                first[r], last[r], (int)x->sums[p].x, (int)x->sums[p].y, x->scale[p], scales.first[r], scales.last[r],
                scales.minimum[r], UNEQUAL && MINIMA ? scales.last_minimum[r] : 0.0f, acc[r]
            );
        }
    }
}

KERNEL(ITEMS) matmul_gemv_blocks(
    const GLOBAL uint *RESTRICT params, const GLOBAL uchar *RESTRICT weights, const GLOBAL uchar *RESTRICT x,
    GLOBAL float *RESTRICT y, uint rows, uint word, uint n, uint k, uint accumulate, uint stride
) {
    extern SHARED uint4 shared[];
    SHARED float partial[WARPS * ITEMS]; // [warps][rows of weights], of which there are as many as items at most
    SHARED ulong barriers[WARPS * BARRIERS];
    LAUNCH_NEXT();
    const uint warp = ITEM / 32, groups = own_groups(n), begin = first_group(n) * 16;
    weights += (size_t)first_group(n) * group_bytes(k);
    Ring ring;
    ring_start(&ring, (uchar *)shared + warp * STAGES * STAGE, barriers + warp * BARRIERS);
    Chunks chunks = chunks_of(weights, k, groups);
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
            chunks = chunks_of(weights, k, groups);
            #pragma unroll 1
            for (uint i = 0; i < STAGES; i++) fill(&ring, &chunks);
        }
        for (uint column = warp * CHUNK; column < k; column += SEGMENT) {
            Columns columns;
            load_columns(x + (size_t)row * row_bytes(k), k, column, &columns);
            for (uint group = 0; group < groups; group++) {
                float acc[4] = {0.0f, 0.0f, 0.0f, 0.0f};
                accumulate_chunk(ring_await(&ring), &columns, acc);
                ring_drained(&ring);
                fill(&ring, &chunks);
                sum_lanes<4, 1, 16, 4>(acc); // lanes that hold the same rows
                float *at = partial + warp * ITEMS + group * 16 + ITEM % 4 * 4 + ITEM % 32 / 16 * 2 + ITEM / 8 % 2;
                if (!(ITEM & 4)) *at = column < SEGMENT ? acc[0] : *at + acc[0];
            }
        }
        BARRIER();
        if (writes) {
            float sum = 0.0f;
            #pragma unroll
            for (uint w = 0; w < WARPS; w++) {
                if (w * CHUNK < k) sum += partial[w * ITEMS + ITEM];
            }
            *to = before + sum;
        }
        BARRIER();
    }
}
