// Attention for many rows with the matrix units of compute capability 8.0 (`mma`): 256 threads.

// A block has as many 16-byte pieces of D dimensions of keys as of values. Of each STRIDE blocks, a thread copies a piece
// of one.
#define PIECES(D) (2 * (D))
#define STRIDE(D) (ITEMS / PIECES(D))
#define TURNS(D) (4 / STRIDE(D))

// The blocks of which a thread copies a piece in the step at `first`.
template <int D> FN void find_blocks(uint (&blocks)[TURNS(D)], const Run &run, uint first) {
    #pragma unroll
    for (uint i = 0; i < TURNS(D); i++) {
        uint position = first + (i * STRIDE(D) + threadIdx.x / PIECES(D)) * 16;
        blocks[i] = position <= run.last ? run.table[position / 16] : NO_BLOCK;
    }
}

// Starts the copies of D dimensions of a step's keys, from `from`: for each of four blocks `[D][16 positions]`, the two
// pieces of every other four dimensions exchanged. There are zeros for what does not exist.
template <int D> FN void copy_keys(
    uint to, const Launch &launch, const uint (&blocks)[TURNS(D)], uint kv_head, uint from
) {
    uint item = threadIdx.x % PIECES(D), dim = item / 2, piece = item % 2;
    to += threadIdx.x / PIECES(D) * D * 32 + dim * 32 + ((piece ^ (dim >> 2 & 1)) << 4);
    uint at = (from + dim) * 16 + piece * 8;
    #pragma unroll
    for (uint i = 0; i < TURNS(D); i++) {
        bool exists = blocks[i] != NO_BLOCK && from + dim < launch.head_dim;
        const GLOBAL ushort *key = launch.keys + (exists ? head_at(launch, blocks[i], kv_head) + at : 0);
        copy16(to + i * STRIDE(D) * D * 32, key, exists ? 16 : 0);
    }
}

// Starts the copies of D dimensions of a step's values, from `from`: `[64 positions][D]`, the pieces of a position
// exchanged among each eight. There are zeros for what does not exist, and for positions that no query sees.
template <int D, bool SIMPLE> FN void copy_values(
    uint to, const Launch &launch, const Run &run, const uint (&blocks)[TURNS(D)], uint kv_head, uint first, uint from
) {
    uint slot = threadIdx.x % PIECES(D) / (D / 8), piece = threadIdx.x % (D / 8), dim = from + piece * 8;
    uint in_step = threadIdx.x / PIECES(D) * 16 + slot, at = slot * launch.head_dim + dim;
    to += in_step * D * 2 + ((piece ^ (slot & 7)) << 4);
    #pragma unroll
    for (uint i = 0; i < TURNS(D); i++) {
        uint place = to + i * STRIDE(D) * D * 32;
        uint position = first + i * STRIDE(D) * 16 + in_step;
        bool exists = position >= run.start && position <= run.last && dim < launch.head_dim;
        const GLOBAL ushort *value = launch.values + (exists ? head_at(launch, blocks[i], kv_head) + at : 0);
        if (SIMPLE) {
            copy16(place, value, exists ? 16 : 0);
        } else {
            for (uint e = 0; e < 8; e++) {
                ushort one = exists && dim + e < launch.head_dim ? value[e] : 0;
                asm volatile("st.shared.u16 [%0], %1;" :: "r"(place + e * 2), "h"(one) : "memory");
            }
        }
    }
}

// scores += queries · keys, for 64 positions.
template <int D> FN void add_scores(float (&scores)[32], const uint (&queries)[D / 16][4 * PARTS], uint keys) {
    uint lane = threadIdx.x % 32;
    uint from = keys + lane % 16 * 32 + ((lane / 16 ^ (lane >> 2 & 1)) << 4);
    #pragma unroll
    for (uint i = 0; i < D / 16; i++) {
        #pragma unroll
        for (uint block = 0; block < 4; block++) {
            uint b[4];
            load_transposed(b, from + block * D * 32 + i * 16 * 32);
            #pragma unroll
            for (uint part = 0; part < PARTS; part++) {
                multiply_f16(scores + block * 8, queries[i] + part * 4, b[0], b[1]);
                multiply_f16(scores + block * 8 + 4, queries[i] + part * 4, b[2], b[3]);
            }
        }
    }
}

// sums += weights · values, for 64 positions.
template <int D> FN void add_values(float (&sums)[D / 2], const float (&weights)[32], uint values) {
    uint lane = threadIdx.x % 32;
    #pragma unroll
    for (uint block = 0; block < 4; block++) {
        uint a[4 * PARTS];
        #pragma unroll
        for (uint j = 0; j < 4; j++) {
            const float *two = weights + block * 8 + j / 2 * 4 + j % 2 * 2;
            in_parts(a + j, 4, two[0], two[1]);
        }
        uint row = values + (block * 16 + lane % 16) * D * 2;
        #pragma unroll
        for (uint i = 0; i < D / 16; i++) {
            uint b[4];
            load_transposed(b, row + ((i * 2 + lane / 16 ^ (lane & 7)) << 4));
            #pragma unroll
            for (uint part = 0; part < PARTS; part++) {
                multiply_f16(sums + i * 8, a + part * 4, b[0], b[1]);
                multiply_f16(sums + i * 8 + 4, a + part * 4, b[2], b[3]);
            }
        }
    }
}

// Up to QUERIES queries of a run, from `first_query`; queries are row after row, each with its heads. SIMPLE heads are at
// most D long and whole 16-byte pieces: while one step is computed the next one's copies are under way. Others take turns
// of D dimensions, and in each turn all of a query's dimensions are read again.
template <int D, bool SIMPLE> FN void attend(
    const Launch &launch, const Run &run, uint kv_head, uint first_query, uint memory
) {
    Queries mine = queries_at(launch, run, kv_head, first_query);
    uint farthest = __reduce_max_sync(0xffffffff, max(mine.seen[0], mine.seen[1]));
    // Two steps' keys, then two steps' values.
    uint keys = memory, values = memory + 2 * 128 * D;
    for (uint turn = 0; turn < (SIMPLE ? 1 : launch.head_dim); turn += D) {
        float sums[D / 2], largest[2] = {-INFINITE, -INFINITE}, total[2] = {0.0f, 0.0f};
        #pragma unroll
        for (uint i = 0; i < D / 2; i++) sums[i] = 0.0f;
        uint factors[D / 16][4 * PARTS];
        meet<ITEMS>(); // all have done with what was there
        uint blocks[TURNS(D)];
        find_blocks<D>(blocks, run, first_step(run));
        if (SIMPLE) {
            copy_keys<D>(keys, launch, blocks, kv_head, 0);
            copy_values<D, true>(values, launch, run, blocks, kv_head, first_step(run), 0);
            end_copies();
            find_blocks<D>(blocks, run, first_step(run) + POSITIONS);
            load_queries<D>(factors, launch, mine, 0);
        }
        for (uint first = first_step(run), stage = 0; first <= run.last; first += POSITIONS, stage ^= 1) {
            float scores[32];
            #pragma unroll
            for (uint i = 0; i < 32; i++) scores[i] = 0.0f;
            if (SIMPLE) {
                await_copies<0>();
                meet<ITEMS>();
                if (first + POSITIONS <= run.last) {
                    copy_keys<D>(keys + (stage ^ 1) * 128 * D, launch, blocks, kv_head, 0);
                    copy_values<D, true>(
                        values + (stage ^ 1) * 128 * D, launch, run, blocks, kv_head, first + POSITIONS, 0
                    );
                    end_copies();
                    find_blocks<D>(blocks, run, first + 2 * POSITIONS);
                }
                if (first >= farthest) continue;
                add_scores<D>(scores, factors, keys + stage * 128 * D);
            } else {
                find_blocks<D>(blocks, run, first);
                for (uint from = 0; from < launch.head_dim; from += D) {
                    meet<ITEMS>();
                    copy_keys<D>(keys + stage * 128 * D, launch, blocks, kv_head, from);
                    if (from == 0) {
                        copy_values<D, false>(values + stage * 128 * D, launch, run, blocks, kv_head, first, turn);
                    }
                    end_copies();
                    load_queries<D>(factors, launch, mine, from);
                    await_copies<0>();
                    meet<ITEMS>();
                    add_scores<D>(scores, factors, keys + stage * 128 * D);
                }
            }
            soften<D>(scores, sums, largest, total, mine, launch.cap, first);
            add_values<D>(sums, scores, values + stage * 128 * D);
        }
        write_results<D>(launch, mine, sums, largest, total, turn);
    }
}

