// The product for many rows on compute capability 9.0a: warpgroups multiply tiles in local memory (`wgmma`), one more
// warpgroup fills it. A group takes one tile of y after the other, so that the next tile's copies go on while this one's
// results are written.
//
// CONSUMERS warpgroups of 64 rows of x each, COLUMNS rows of weights, STAGES tiles of 64 columns in flight. Where SPLIT is
// not 1, so many groups (a cluster) share the columns of one tile, and each adds up a part of it.

#define THREADS (128 * (CONSUMERS + 1))
// What a single consumer needs is there twice.
#if CONSUMERS == 1
#define GROUPS_AT_ONCE 2
#else
#define GROUPS_AT_ONCE 1
#endif
#if SPLIT > 1
#define IN_CLUSTER __attribute__((cluster_dims(SPLIT, 1, 1)))
#else
#define IN_CLUSTER
#endif

// Threads of a warpgroup that say when a tile has been read: all where each reads for itself, one of a warp where the matrix
// units do.
#if WEIGHTS_BF16
#define READERS 128
#else
#define READERS 4
#endif

#define ROWS (64 * CONSUMERS)
#define X_BYTES (ROWS * TILE_ROW)
#define STAGE_BYTES ((ROWS + COLUMNS) * TILE_ROW)
// Tiles of rows of x that are taken for the same weights before the next weights.
#define BAND 16

// All threads of the cluster have come here, and see what the others wrote before.
FN void cluster_barrier() {
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

// Four values of the local memory of group `group` of the cluster.
FN float4 read_of_group(uint address, uint group) {
    float4 out;
    asm volatile("{ .reg .b32 at; mapa.shared::cluster.u32 at, %4, %5; "
        "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [at]; }"
        : "=f"(out.x), "=f"(out.y), "=f"(out.z), "=f"(out.w) : "r"(address), "r"(group) : "memory");
    return out;
}

// Which tile of y: bands of rows, in them column after column.
FN void tile_at(uint tile, uint tiles_m, uint tiles_n, uint *m, uint *n) {
    uint band = tile / (BAND * tiles_n), rest = tile % (BAND * tiles_n);
    uint height = min((uint)BAND, tiles_m - band * BAND);
    *m = band * BAND + rest % height;
    *n = rest / height;
}

#if SPLIT > 1
// Bytes from one row of a tile of partial sums to the next.
#define SUM_ROW (COLUMNS * 4 + 32)

// Adds up the parts of a tile at `parts` of every group, the rows of group `rank`, and writes them.
FN void write_sums(Output to, uint parts, uint rank, uint m0, uint n0) {
    for (uint i = threadIdx.x % (128 * CONSUMERS); i < ROWS / SPLIT * COLUMNS / 4; i += 128 * CONSUMERS) {
        uint row = i / (COLUMNS / 4) + rank * (ROWS / SPLIT), column = i % (COLUMNS / 4) * 4;
        float4 sum = read_of_group(parts + row * SUM_ROW + column * 4, 0);
        #pragma unroll
        for (uint group = 1; group < SPLIT; group++) {
            float4 more = read_of_group(parts + row * SUM_ROW + column * 4, group);
            sum.x += more.x; sum.y += more.y; sum.z += more.z; sum.w += more.w;
        }
        if (m0 + row >= to.rows) continue;
        write_four(to, m0 + row, n0 + column, sum);
    }
}
#endif

extern "C" __global__ void IN_CLUSTER __launch_bounds__(THREADS, GROUPS_AT_ONCE) matmul_wgmma(
    const GLOBAL uint *RESTRICT params, const GLOBAL ushort *RESTRICT weights, const GLOBAL ushort *RESTRICT x,
    GLOBAL float *RESTRICT y, uint rows, uint word, uint n, uint k, uint accumulate, uint stride
) {
    extern __shared__ uchar dynamic[];
    uint base = (local_address(dynamic) + 1023) & ~1023u;
    uint full = base + STAGES * STAGE_BYTES, empty = full + STAGES * 8;
    if (threadIdx.x == 0) {
        for (uint s = 0; s < STAGES; s++) {
            start_barrier(full + s * 8, 128);
            start_barrier(empty + s * 8, CONSUMERS * READERS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    BEGIN();
#if SPLIT > 1
    uint rank = blockIdx.x % SPLIT, group = blockIdx.x / SPLIT, groups = gridDim.x / SPLIT;
#else
    uint group = blockIdx.x, groups;
    asm("mov.u32 %0, %%nsmid;" : "=r"(groups));
    groups = min(groups, gridDim.x);
#endif
    uint used = count(params, word, rows);
    uint tiles_m = (used + ROWS - 1) / ROWS, tiles_n = (n + COLUMNS - 1) / COLUMNS;
    uint tiles = group < groups ? tiles_m * tiles_n : 0;
    uint pitch = pitch_of(k), first_step = 0, end_step = pitch / TILE_K;
#if SPLIT > 1
    if (group >= tiles) return;
    first_step = end_step * rank / SPLIT;
    end_step = end_step * (rank + 1) / SPLIT;
#endif
    uint warpgroup = threadIdx.x / 128, thread = threadIdx.x % 128;
    if (warpgroup == CONSUMERS) {
#if CONSUMERS > 1
        asm volatile("setmaxnreg.dec.sync.aligned.u32 88;");
#endif
        uint first = thread / 8, piece = thread % 8, to = base + piece_of(first, piece);
        uint stage = 0, phase = 1;
        for (uint tile = group; tile < tiles; tile += groups) {
            uint m, c;
            tile_at(tile, tiles_m, tiles_n, &m, &c);
            uint last_row = used - 1 - m * ROWS, last_column = n - 1 - c * COLUMNS;
            const GLOBAL ushort *from_x = x + (size_t)m * ROWS * pitch + first_step * TILE_K + piece * 8;
            const GLOBAL ushort *from_w = weights + (size_t)c * COLUMNS * pitch + first_step * TILE_K + piece * 8;
            #pragma unroll 1
            for (uint step = first_step; step < end_step; step++) {
                uint at = to + stage * STAGE_BYTES;
                await(empty + stage * 8, phase);
                #pragma unroll
                for (uint i = 0; i < ROWS / 16; i++) {
                    uint row = first + i * 16;
                    copy16(at + i * 16 * TILE_ROW, from_x + min(row, last_row) * pitch, row <= last_row ? 16 : 0);
                }
                #pragma unroll
                for (uint i = 0; i < COLUMNS / 16; i++) {
                    copy16(at + X_BYTES + i * 16 * TILE_ROW, from_w + min(first + i * 16, last_column) * pitch, 16);
                }
                from_x += TILE_K;
                from_w += TILE_K;
                arrive_after_copies(full + stage * 8);
                stage = stage + 1 == STAGES ? 0 : stage + 1;
                phase ^= stage == 0;
            }
        }
#if SPLIT > 1
        cluster_barrier();
        cluster_barrier();
#endif
    } else {
#if CONSUMERS > 1
        asm volatile("setmaxnreg.inc.sync.aligned.u32 208;");
#endif
        Output out = {y, used, n, stride, accumulate != 0, has_whole_pieces(y, n, stride)};
        uint stage = 0, phase = 0;
        for (uint tile = group; tile < tiles; tile += groups) {
            float d[COLUMNS / 2];
            #pragma unroll
            for (uint i = 0; i < COLUMNS / 2; i++) d[i] = 0.0f;
            uint before = 0;
            #pragma unroll 1
            for (uint step = first_step; step < end_step; step++) {
                uint at = base + stage * STAGE_BYTES;
                await(full + stage * 8, phase);
                show_to_matrix_units();
#if WEIGHTS_BF16
                // This product reads x from registers: as bf16, as the weights are.
                uint a[4][4];
                uint row = warpgroup * 64 + thread / 32 * 16 + thread % 16;
                #pragma unroll
                for (uint i = 0; i < 4; i++) {
                    load_matrices(a[i], at + piece_of(row, i * 2 + thread % 32 / 16));
                    #pragma unroll
                    for (uint j = 0; j < 4; j++) a[i][j] = as_bf16(a[i][j]);
                }
                ulong right = matrix_at(at + X_BYTES, 16, 8 * TILE_ROW);
                begin_products();
                #pragma unroll
                for (uint i = 0; i < 4; i++) tile_product(d, a[i], right + i * 2);
                end_products();
                await_products<0>();
                arrive(empty + stage * 8);
#else
                ulong left = matrix_at(at + warpgroup * 64 * TILE_ROW, 16, 8 * TILE_ROW), right = matrix_at(at + X_BYTES, 16, 8 * TILE_ROW);
                settle(d);
                begin_products();
                #pragma unroll
                for (uint i = 0; i < 4; i++) tile_product(d, left + i * 2, right + i * 2);
                end_products();
                await_products<1>();
                if (step > first_step && thread % 32 == 0) arrive(empty + before * 8);
                before = stage;
#endif
                stage = stage + 1 == STAGES ? 0 : stage + 1;
                phase ^= stage == 0;
            }
#if !WEIGHTS_BF16
            await_products<0>();
            settle(d);
            if (end_step > first_step && thread % 32 == 0) arrive(empty + before * 8);
#endif
            uint m, c;
            tile_at(tile, tiles_m, tiles_n, &m, &c);
            uint row = warpgroup * 64 + thread / 32 * 16;
#if SPLIT > 1
            asm volatile("bar.sync 1, %0;" :: "n"(128 * CONSUMERS) : "memory");
            uint to = base + (row + thread % 32 / 4) * SUM_ROW + thread % 4 * 8;
            #pragma unroll
            for (uint i = 0; i < COLUMNS / 4; i++) {
                asm volatile("st.shared.v2.f32 [%0], {%1, %2};"
                    :: "r"(to + i % 2 * 8 * SUM_ROW + i / 2 * 32), "f"(d[i * 2]), "f"(d[i * 2 + 1]) : "memory");
            }
            cluster_barrier();
            write_sums(out, base, rank, m * ROWS, c * COLUMNS);
            cluster_barrier();
#else
            write_fragments<COLUMNS / 16>(out, d, m * ROWS + row, c * COLUMNS);
#endif
        }
    }
}
