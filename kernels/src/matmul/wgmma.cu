// The product for many rows on compute capability 9.0a: warpgroups multiply tiles in local memory (`wgmma`), one more
// warpgroup fills it. A group takes one tile of y after the other, so that the next tile's copies go on while this one's
// results are written.
//
// CONSUMERS warpgroups of 64 rows of x each, COLUMNS rows of weights, STAGES tiles of 64 columns in flight.

#define ROWS (64 * CONSUMERS)
#define X_BYTES (ROWS * TILE_ROW)
#define STAGE_BYTES ((ROWS + COLUMNS) * TILE_ROW)
// Tiles of rows of x that are taken for the same weights before the next weights.
#define BAND 16

FN void start_barrier(uint barrier, uint count) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" :: "r"(barrier), "r"(count) : "memory");
}

FN void arrive(uint barrier) {
    asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" :: "r"(barrier) : "memory");
}

// Arrives when the copies that this thread has started are there.
FN void arrive_after_copies(uint barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" :: "r"(barrier) : "memory");
}

FN void await(uint barrier, uint phase) {
    asm volatile("{ .reg .pred done;\nAGAIN: mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n@!done bra AGAIN; }"
        :: "r"(barrier), "r"(phase) : "memory");
}

// What was written to local memory before can be read by `wgmma` after.
FN void show_to_matrix_units() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

FN void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
FN void end_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> FN void await_products() { asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(N) : "memory"); }

// Values that products write: whoever reads them does so after this, and whoever has written them did so before.
template <int N> FN void settle(float (&d)[N]) {
    #pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i]) :: "memory");
}

// A tile's descriptor: its address, 1024 bytes from eight rows to the next, pieces exchanged in 128 bytes.
FN ulong descriptor(uint address) {
    return (ulong)((address & 0x3ffff) >> 4) | (ulong)1 << 16 | (ulong)64 << 32 | (ulong)1 << 62;
}

// Which tile of y: bands of rows, in them column after column.
FN void tile_at(uint tile, uint tiles_m, uint tiles_n, uint *m, uint *n) {
    uint band = tile / (BAND * tiles_n), rest = tile % (BAND * tiles_n);
    uint height = min((uint)BAND, tiles_m - band * BAND);
    *m = band * BAND + rest % height;
    *n = rest / height;
}

KERNEL_ALONE(128 * (CONSUMERS + 1)) matmul_wgmma(
    const GLOBAL uint *RESTRICT params, const GLOBAL ushort *RESTRICT weights, const GLOBAL ushort *RESTRICT x,
    GLOBAL float *RESTRICT y, uint rows, uint word, uint n, uint k, uint accumulate, uint stride
) {
    extern __shared__ uchar dynamic[];
    uint base = (local_address(dynamic) + 1023) & ~1023u;
    uint full = base + STAGES * STAGE_BYTES, empty = full + STAGES * 8;
    if (threadIdx.x == 0) {
        for (uint s = 0; s < STAGES; s++) {
            start_barrier(full + s * 8, 128);
            start_barrier(empty + s * 8, CONSUMERS * 4);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    after_earlier_launches();
    uint groups;
    asm("mov.u32 %0, %%nsmid;" : "=r"(groups));
    groups = min(groups, gridDim.x);
    uint used = count(params, word, rows);
    uint tiles_m = (used + ROWS - 1) / ROWS, tiles_n = (n + COLUMNS - 1) / COLUMNS;
    uint tiles = blockIdx.x < groups ? tiles_m * tiles_n : 0;
    uint pitch = pitch_of(k), steps = pitch / TILE_K;
    uint warpgroup = threadIdx.x / 128, thread = threadIdx.x % 128;
    if (warpgroup == CONSUMERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(PRODUCER_REGISTERS));
        uint first = thread / 8, piece = thread % 8, to = base + piece_of(first, piece);
        uint stage = 0, phase = 1;
#if SIGNAL != 0
        uint turn = 0;
#endif
        for (uint tile = blockIdx.x; tile < tiles; tile += groups) {
            uint m, c;
            tile_at(tile, tiles_m, tiles_n, &m, &c);
            uint last_row = used - 1 - m * ROWS, last_column = n - 1 - c * COLUMNS;
            const GLOBAL ushort *from_x = x + (size_t)m * ROWS * pitch + piece * 8;
            const GLOBAL ushort *from_w = weights + (size_t)c * COLUMNS * pitch + piece * 8;
            #pragma unroll 1
            for (uint step = 0; step < steps; step++) {
                uint at = to + stage * STAGE_BYTES;
                await(empty + stage * 8, phase);
                #pragma unroll
                for (uint i = 0; i < ROWS / 16; i++) {
                    copy16(at + i * 16 * TILE_ROW, from_x + min(first + i * 16, last_row) * pitch, 16);
                }
                #pragma unroll
                for (uint i = 0; i < COLUMNS / 16; i++) {
                    copy16(at + X_BYTES + i * 16 * TILE_ROW, from_w + min(first + i * 16, last_column) * pitch, 16);
                }
                from_x += TILE_K;
                from_w += TILE_K;
#if SIGNAL == 0
                arrive_after_copies(full + stage * 8);
#else
                end_copies();
                await_copies<LAG>();
                show_to_matrix_units();
                if (turn++ >= LAG) arrive(full + (stage < LAG ? stage + STAGES - LAG : stage - LAG) * 8);
#endif
                stage = stage + 1 == STAGES ? 0 : stage + 1;
                phase ^= stage == 0;
            }
        }
#if SIGNAL != 0
        await_copies<0>();
        show_to_matrix_units();
        for (uint i = turn < LAG ? 0 : turn - LAG; i < turn; i++) arrive(full + i % STAGES * 8);
#endif
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(CONSUMER_REGISTERS));
        Output out = {y, used, n, stride, accumulate != 0, has_whole_pieces(y, n, stride)};
        uint stage = 0, phase = 0;
        for (uint tile = blockIdx.x; tile < tiles; tile += groups) {
            float d[COLUMNS / 2];
            #pragma unroll
            for (uint i = 0; i < COLUMNS / 2; i++) d[i] = 0.0f;
            uint before = 0;
            #pragma unroll 1
            for (uint step = 0; step < steps; step++) {
                uint at = base + stage * STAGE_BYTES;
                await(full + stage * 8, phase);
#if SIGNAL == 0
                show_to_matrix_units();
#endif
#if WEIGHTS_BF16
                // The products read x from registers: as bf16, as the weights are.
                uint a[4][4];
                uint row = warpgroup * 64 + thread / 32 * 16 + thread % 16;
                #pragma unroll
                for (uint i = 0; i < 4; i++) {
                    load_matrices(a[i], at + piece_of(row, i * 2 + thread % 32 / 16));
                    #pragma unroll
                    for (uint j = 0; j < 4; j++) a[i][j] = as_bf16(a[i][j]);
                }
                ulong right = descriptor(at + X_BYTES);
                begin_products();
                #pragma unroll
                for (uint i = 0; i < 4; i++) warpgroup_product(d, a[i], right + i * 2);
                end_products();
                await_products<0>();
                if (thread % 32 == 0) arrive(empty + stage * 8);
#else
                ulong left = descriptor(at + warpgroup * 64 * TILE_ROW), right = descriptor(at + X_BYTES);
                settle(d);
                begin_products();
                #pragma unroll
                for (uint i = 0; i < 4; i++) warpgroup_product(d, left + i * 2, right + i * 2);
                end_products();
                await_products<1>();
                if (step > 0 && thread % 32 == 0) arrive(empty + before * 8);
                before = stage;
#endif
                stage = stage + 1 == STAGES ? 0 : stage + 1;
                phase ^= stage == 0;
            }
#if !WEIGHTS_BF16
            await_products<0>();
            settle(d);
            if (thread % 32 == 0) arrive(empty + before * 8);
#endif
            uint m, c;
            tile_at(tile, tiles_m, tiles_n, &m, &c);
            write_fragments<COLUMNS / 16>(out, d, m * ROWS + warpgroup * 64 + thread / 32 * 16, c * COLUMNS);
        }
    }
}
