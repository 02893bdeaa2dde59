// Attention for many rows with the matrix units of compute capability 9.0a (`wgmma`): two warpgroups have 64 queries each,
// one more copies steps of keys and values to local memory. Of heads that are longer than 128, only one warpgroup has queries.
// Heads that are longer than 256, or not whole 16-byte pieces, are left to the form with `mma`.

#define CONSUMERS 2
#define THREADS (128 * (CONSUMERS + 1))
#define MAX_STAGES 4
// Of heads of D dimensions: whether they are long, and their chunks of 64 dimensions in local memory.
#define IS_LONG(D) ((D) > 128)
#define CHUNKS(D) (IS_LONG(D) ? 4 : 2)
// 64 values of each of 64 queries or positions.
#define CHUNK_BYTES (64 * 128)
// Of a step: keys `[dimensions][64 positions]`, values `[64 positions][64 dimensions]` for each chunk.
#define STEP_BYTES(D) (CHUNKS(D) * CHUNK_BYTES)
// All stages: four, or two of long heads.
#define STAGES_BYTES (MAX_STAGES * 2 * STEP_BYTES(128))
// Of the queries of a warpgroup: `[64 queries][64 dimensions]` for each chunk, and for each part.
#define QUERY_BYTES(D) (PARTS * CHUNKS(D) * CHUNK_BYTES)
// Queries of a group at a time.
#define TURN(D) (IS_LONG(D) ? QUERIES / 2 : QUERIES)

// Steps in local memory: where they are, how many, the barriers of each stage, and which one is next.
typedef struct {
    uint memory, count, full, empty, stage, phase;
} Stages;

// The threads of this warpgroup, of the first ones, meet.
FN void meet_warpgroup() { asm volatile("bar.sync %0, 128;" :: "r"(2 + threadIdx.x / 128) : "memory"); }

FN void next_stage(Stages &stages) {
    stages.stage = stages.stage + 1 == stages.count ? 0 : stages.stage + 1;
    stages.phase ^= stages.stage == 0;
}

// Copies the steps that a run sees, D dimensions at most. There are zeros for what does not exist, and for values at
// positions that no query sees.
template <int D> FN void copy_steps(const Launch &launch, const Run &run, uint kv_head, Stages &stages) {
    // Of each block a thread copies a 16-byte piece of these dimensions' keys, and one of these positions' values.
    const uint TIMES = 2 * D / 128;
    uint thread = threadIdx.x % 128, half = thread % 2, piece = thread % (D / 8);
    for (uint first = first_step(run); first <= run.last; first += POSITIONS) {
        uint blocks[4];
        #pragma unroll
        for (uint b = 0; b < 4; b++) {
            uint position = first + b * 16;
            blocks[b] = position <= run.last ? run.table[position / 16] : NO_BLOCK;
        }
        uint keys = stages.memory + stages.stage * 2 * STEP_BYTES(D), values = keys + STEP_BYTES(D);
        await(stages.empty + stages.stage * 8, stages.phase ^ 1);
        #pragma unroll
        for (uint b = 0; b < 4; b++) {
            bool exists = blocks[b] != NO_BLOCK;
            size_t head = exists ? head_at(launch, blocks[b], kv_head) : 0;
            #pragma unroll
            for (uint i = 0; i < TIMES; i++) {
                uint dim = thread / 2 + i * 64;
                bool has_key = exists && dim < launch.head_dim;
                uint place = dim * 128 + ((b * 2 + half ^ (dim & 7)) << 4);
                copy16(keys + place, launch.keys + (has_key ? head + dim * 16 + half * 8 : 0), has_key ? 16 : 0);
                uint slot = thread / (D / 8) + i * (128 / (D / 8)), at = b * 16 + slot;
                bool is_seen = first + at >= run.start && first + at <= run.last, has_value = is_seen && piece * 8 < launch.head_dim;
                place = piece / 8 * CHUNK_BYTES + at * 128 + ((piece % 8 ^ (at & 7)) << 4);
                const GLOBAL ushort *value = launch.values + (has_value ? head + slot * launch.head_dim + piece * 8 : 0);
                copy16(values + place, value, has_value ? 16 : 0);
            }
        }
        arrive_after_copies(stages.full + stages.stage * 8);
        next_stage(stages);
    }
}

// Writes this thread's part of the queries to local memory, as `wgmma` reads it.
template <int D> FN void share_queries(uint to, const Launch &launch, const Queries &mine) {
    uint factors[D / 16][4 * PARTS];
    load_queries<D>(factors, launch, mine, 0);
    uint row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    meet_warpgroup(); // all have read the queries before these
    #pragma unroll
    for (uint i = 0; i < D / 16; i++) {
        #pragma unroll
        for (uint j = 0; j < 4 * PARTS; j++) {
            // Of 16 dimensions the first or last eight, of 16 queries the first or last eight.
            uint piece = i % 4 * 2 + j / 2 % 2, at = row + j % 2 * 8;
            uint place = to + (j / 4 * CHUNKS(D) + i / 4) * CHUNK_BYTES + at * 128 + ((piece ^ (at & 7)) << 4) + threadIdx.x % 4 * 4;
            asm volatile("st.shared.u32 [%0], %1;" :: "r"(place), "r"(factors[i][j]) : "memory");
        }
    }
    show_to_matrix_units();
    meet_warpgroup();
}

// This warpgroup's queries of those of a run from `first_query`.
template <int D> FN void attend_steps(
    const Launch &launch, const Run &run, uint kv_head, uint first_query, Stages &stages
) {
    Queries mine = queries_at(launch, run, kv_head, first_query);
    uint queries = stages.memory + STAGES_BYTES + threadIdx.x / 128 * QUERY_BYTES(D);
    share_queries<D>(queries, launch, mine);
    float sums[D / 2], largest[2] = {-INFINITE, -INFINITE}, total[2] = {0.0f, 0.0f};
    #pragma unroll
    for (uint i = 0; i < D / 2; i++) sums[i] = 0.0f;
    #pragma unroll 1
    for (uint first = first_step(run); first <= run.last; first += POSITIONS) {
        uint keys = stages.memory + stages.stage * 2 * STEP_BYTES(D), values = keys + STEP_BYTES(D);
        await(stages.full + stages.stage * 8, stages.phase);
        show_to_matrix_units();
        float scores[32];
        begin_products();
        #pragma unroll
        for (uint i = 0; i < D / 16; i++) {
            #pragma unroll
            for (uint part = 0; part < PARTS; part++) {
                ulong left = matrix_at(queries + (part * CHUNKS(D) + i / 4) * CHUNK_BYTES + i % 4 * 32, 16, 8 * 128);
                ulong right = matrix_at(keys + i * 16 * 128, 16, 8 * 128);
                if (i == 0 && part == 0) first_product_of_keys(scores, left, right);
                else product_of_keys(scores, left, right);
            }
        }
        end_products();
        await_products<0>();
        settle(scores);
        soften<D>(scores, sums, largest, total, mine, launch.cap, first);
        uint weights[4][4 * PARTS];
        #pragma unroll
        for (uint i = 0; i < 16; i++) in_parts(weights[i / 4] + i % 4, 4, scores[i * 2], scores[i * 2 + 1]);
        settle(sums);
        begin_products();
        #pragma unroll
        for (uint i = 0; i < 4; i++) {
            #pragma unroll
            for (uint part = 0; part < PARTS; part++) {
                ulong right = matrix_at(values + i * 16 * 128, CHUNK_BYTES, 8 * 128);
                product_of_values(sums, weights[i] + part * 4, right);
            }
        }
        end_products();
        await_products<0>();
        settle(sums);
        if (threadIdx.x % 32 == 0) arrive(stages.empty + stages.stage * 8);
        next_stage(stages);
    }
    write_results<D>(launch, mine, sums, largest, total, 0);
}

// The steps go by a warpgroup that has no queries.
FN void pass_steps(const Run &run, Stages &stages) {
    for (uint first = first_step(run); first <= run.last; first += POSITIONS) {
        await(stages.full + stages.stage * 8, stages.phase);
        if (threadIdx.x % 32 == 0) arrive(stages.empty + stages.stage * 8);
        next_stage(stages);
    }
}

// The queries of a warpgroup with heads of D dimensions: those of its own, or none, if it only lets the steps go by.
template <int D, bool HAS_QUERIES> FN void attend_tile(
    const Launch &launch, const Tile &tile, uint kv_head, Stages &stages, uint *found
) {
    for (uint row = tile.row; row < tile.end;) {
        Run run = run_at<THREADS>(launch, row, tile.end, found);
        if (run.next == row) write_nothing<ITEMS>(launch, row, kv_head);
        uint queries = (run.next - row) * (launch.heads / launch.kv_heads);
        for (uint first = 0; first < queries; first += TURN(D)) {
            uint own = first + (IS_LONG(D) ? 0 : threadIdx.x / 128 * 64);
            if (HAS_QUERIES && own < queries) attend_steps<D>(launch, run, kv_head, first, stages);
            else pass_steps(run, stages);
        }
        row = max(run.next, row + 1);
    }
}

// The steps of all queries of a tile with heads of D dimensions.
template <int D> FN void copy_tile(const Launch &launch, const Tile &tile, uint kv_head, Stages &stages, uint *found) {
    for (uint row = tile.row; row < tile.end;) {
        Run run = run_at<THREADS>(launch, row, tile.end, found);
        uint queries = (run.next - row) * (launch.heads / launch.kv_heads);
        for (uint first = 0; first < queries; first += TURN(D)) copy_steps<D>(launch, run, kv_head, stages);
        row = max(run.next, row + 1);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) attention_wgmma(
    const GLOBAL uint *RESTRICT params, const GLOBAL float *RESTRICT q, const GLOBAL ushort *RESTRICT keys,
    const GLOBAL ushort *RESTRICT values, GLOBAL float *RESTRICT out, uint rows, uint sequences, uint table_blocks,
    uint logit_rows, uint heads, uint kv_heads, uint head_dim, uint cache_blocks, uint scale, uint stride, uint window,
    uint cap PARTIAL_PARAMETERS
) {
    extern __shared__ uchar dynamic[];
    SHARED uint found[4];
    Stages stages;
    stages.memory = (local_address(dynamic) + 1023) & ~1023u;
    stages.count = IS_LONG(head_dim) ? MAX_STAGES / 2 : MAX_STAGES;
    stages.full = stages.memory + STAGES_BYTES + CONSUMERS * QUERY_BYTES(128);
    stages.empty = stages.full + MAX_STAGES * 8;
    stages.stage = stages.phase = 0;
    if (threadIdx.x == 0) {
        for (uint s = 0; s < MAX_STAGES; s++) {
            start_barrier(stages.full + s * 8, 128);
            start_barrier(stages.empty + s * 8, CONSUMERS * 4);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    BEGIN();
    uint kv_head = blockIdx.x;
    Launch launch = LAUNCH;
    Tile tile = tile_of(params, rows, ROW_WORD);
    bool is_simple = head_dim % 8 == 0 && head_dim <= 256, is_long = is_simple && IS_LONG(head_dim);
    if (threadIdx.x >= 128 * CONSUMERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 88;");
        if (is_long) copy_tile<256>(launch, tile, kv_head, stages, found);
        else if (is_simple && head_dim > 64) copy_tile<128>(launch, tile, kv_head, stages, found);
        else if (is_simple) copy_tile<64>(launch, tile, kv_head, stages, found);
    } else if (is_long && threadIdx.x >= 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 88;");
        attend_tile<256, false>(launch, tile, kv_head, stages, found);
    } else if (is_long) {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        attend_tile<256, true>(launch, tile, kv_head, stages, found);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 208;");
        if (is_simple && head_dim > 64) attend_tile<128, true>(launch, tile, kv_head, stages, found);
        else if (is_simple) attend_tile<64, true>(launch, tile, kv_head, stages, found);
        for (uint row = tile.row; !is_simple && row < tile.end;) {
            Run run = run_at<ITEMS>(launch, row, tile.end, found);
            if (run.next == row) write_nothing<ITEMS>(launch, row, kv_head);
            for (uint first = 0; first < (run.next - row) * (heads / kv_heads); first += QUERIES) {
                attend<64, false>(launch, run, kv_head, first, stages.memory);
            }
            row = max(run.next, row + 1);
        }
    }
}
