// Up to 8 rows of int8 activations times quantised weights, with matrix units: a block of 32 columns is one step of
// mma.m16n8k32, whose 16 rows are a group of weights and whose 8 columns rows of x. What x brings to a warp's columns stays in
// registers while all of the work group's rows pass. The first weights are asked for before the launch before has ended: no
// launch writes weights, nor parameters.
//
// A lane holds rows 2g and 2g + 1 of weights, g = lane / 4, of quads t and t + 4, t = lane % 4: words[0] is row 2g of quad t,
// words[1] row 2g + 1 of quad t, and then the same of quad t + 4.

#define M 8
// Most groups of 16 rows of weights of a work group.
#define MAX_GROUPS 8

// Products of the first, and of the last 16 columns, added to `sum`.
FN void dot_half(uint a0, uint a1, uint b, int sum[4]) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3]) : "r"(a0), "r"(a1), "r"(b));
}
FN void dot_block(const uint words[4], uint b0, uint b1, int sum[4]) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3])
        : "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3]), "r"(b0), "r"(b1));
}

// What rows of x bring to a block: the lane's quads of row g, and of rows 2t and 2t + 1 scales and sums of halves.
typedef struct {
    uint quads[2];
    float scale[2];
    int first[2], last[2];
    uint block; // in the chunk: one that is there stands for one that is not, times zero
} Column;

FN void load_columns(const uchar *x, uint k, uint left, uint column, Column out[CHUNK_BLOCKS]) {
    uint g = ITEM % 32 / 4, t = ITEM % 4, blocks = min((uint)CHUNK_BLOCKS, (k - column) / 32);
    #pragma unroll
    for (uint b = 0; b < CHUNK_BLOCKS; b++) {
        bool inside = b < blocks;
        out[b].block = inside ? b : blocks - 1;
        const uchar *quads = x + (size_t)g * row_bytes(k) + column + b * 32 + t * 4;
        bool there = inside && g < left;
        out[b].quads[0] = there ? LOAD1(quads) : 0;
        out[b].quads[1] = there ? LOAD1(quads + 16) : 0;
        #pragma unroll
        for (uint i = 0; i < 2; i++) {
            const uchar *row = x + (size_t)(2 * t + i) * row_bytes(k);
            uint block = column / 32 + b;
            there = inside && 2 * t + i < left;
            out[b].scale[i] = there ? LOADF1(row + scales_offset(k) + block * 4) : 0.0f;
            uint2 sums = there ? sums_of(row, k, block) : UINT2(0, 0);
            out[b].first[i] = (int)sums.x;
            out[b].last[i] = (int)sums.y;
        }
    }
}

FN void accumulate_block(const uchar *stage, const Column *x, float acc[4]) {
    uint words[4];
    Pair pair;
    pair_words(stage, CHUNK_BLOCKS, x->block, words);
    pair_scales(stage, CHUNK_BLOCKS, x->block, &pair);
    if (UNEQUAL) {
        int first[4], last[4];
        #pragma unroll
        for (uint i = 0; i < 4; i++) {
            first[i] = -OFFSET * x->first[i % 2];
            last[i] = -OFFSET * x->last[i % 2];
        }
        dot_half(words[0], words[1], x->quads[0], first);
        dot_half(words[2], words[3], x->quads[1], last);
        #pragma unroll
        for (uint i = 0; i < 4; i++) {
            acc[i] = fma(pair.first[i / 2] * x->scale[i % 2], (float)first[i], acc[i]);
            acc[i] = fma(pair.last[i / 2] * x->scale[i % 2], (float)last[i], acc[i]);
            if (MINIMA) {
                acc[i] = fma(-pair.minimum[i / 2] * x->scale[i % 2], (float)x->first[i % 2], acc[i]);
                acc[i] = fma(-pair.last_minimum[i / 2] * x->scale[i % 2], (float)x->last[i % 2], acc[i]);
            }
        }
    } else {
        int sum[4];
        #pragma unroll
        for (uint i = 0; i < 4; i++) sum[i] = -OFFSET * (x->first[i % 2] + x->last[i % 2]);
        dot_block(words, x->quads[0], x->quads[1], sum);
        #pragma unroll
        for (uint i = 0; i < 4; i++) {
            acc[i] = fma(pair.first[i / 2] * x->scale[i % 2], (float)sum[i], acc[i]);
            if (MINIMA) {
                float all = (float)(x->first[i % 2] + x->last[i % 2]);
                acc[i] = fma(-pair.minimum[i / 2] * x->scale[i % 2], all, acc[i]);
            }
        }
    }
}

KERNEL(ITEMS) matmul_few_blocks(
    const GLOBAL uint *RESTRICT params, const GLOBAL uchar *RESTRICT weights, const GLOBAL uchar *RESTRICT x,
    GLOBAL float *RESTRICT y, uint rows, uint word, uint n, uint k, uint accumulate, uint stride
) {
    extern SHARED uint4 shared[];
    SHARED float4 partial[WARPS * MAX_GROUPS * 32]; // [warps][groups][lanes]
    SHARED ulong barriers[WARPS * BARRIERS];
    LAUNCH_NEXT();
    const uint warp = ITEM / 32, lane = ITEM % 32, groups = own_groups(n), begin = first_group(n) * 16;
    weights += (size_t)first_group(n) * group_bytes(k);
    Ring ring;
    ring_start(&ring, (uchar *)shared + warp * STAGES * STAGE, barriers + warp * BARRIERS);
    Chunks chunks = chunks_of(weights, k, groups);
    #pragma unroll 1
    for (uint i = 0; i < STAGES; i++) fill(&ring, &chunks);
    uint used = count(params, word, rows);
    AWAIT_LAST();

    // Without rows the weights pass all the same: copies must not outlive the work group.
    for (uint start = 0; start < max(used, 1u); start += M) {
        if (start > 0) {
            chunks = chunks_of(weights, k, groups);
            #pragma unroll 1
            for (uint i = 0; i < STAGES; i++) fill(&ring, &chunks);
        }
        for (uint column = warp * CHUNK; column < k; column += SEGMENT) {
            Column columns[CHUNK_BLOCKS];
            load_columns(x + (size_t)start * row_bytes(k), k, used - start, column, columns);
            for (uint group = 0; group < groups; group++) {
                const uchar *stage = ring_await(&ring);
                float acc[4] = {0.0f, 0.0f, 0.0f, 0.0f};
                #pragma unroll
                for (uint b = 0; b < CHUNK_BLOCKS; b++) accumulate_block(stage, &columns[b], acc);
                ring_drained(&ring);
                fill(&ring, &chunks);
                float4 *at = partial + (warp * MAX_GROUPS + group) * 32 + lane;
                float4 sum = FLOAT4(acc[0], acc[1], acc[2], acc[3]);
                if (column >= SEGMENT) {
                    float4 before = *at;
                    sum = FLOAT4(before.x + sum.x, before.y + sum.y, before.z + sum.z, before.w + sum.w);
                }
                *at = sum;
            }
        }
        BARRIER();
        // An item takes a row of weights and a row of x.
        for (uint i = ITEM; i < groups * 16 * M; i += ITEMS) {
            uint group = i / (16 * M), r = i % 16, m = i / 16 % M;
            const float *from = (const float *)(partial + group * 32 + r / 2 * 4 + m / 2) + r % 2 * 2 + m % 2;
            float sum = 0.0f;
            #pragma unroll
            for (uint w = 0; w < WARPS; w++) {
                if (w * CHUNK < k) sum += from[w * MAX_GROUPS * 32 * 4];
            }
            uint at = begin + group * 16 + r;
            GLOBAL float *to = y + (size_t)(start + m) * stride + at;
            if (start + m < used && at < n) *to = accumulate ? *to + sum : sum;
        }
        BARRIER();
    }
}
