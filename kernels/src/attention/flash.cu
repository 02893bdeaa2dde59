// Attention for many rows with matrix units, on compute capability 8.0, over an f16 cache: a group takes one kv head of
// some rows, up to QUERIES queries of one sequence at a time over 64 positions at a time; each warp has 16 queries. What is
// computed for a query is the same whatever queries are beside it.
//
// Products are of f16 values, sums are f32. Keys and values are f16 as they are; where PARTS is 2, queries and weights
// are the sum of two f16 values each, which keeps 22 bits of them: class exact. Where it is 1, they are rounded.

#define WARPS 8
#define ITEMS (32 * WARPS)
#define QUERIES (16 * WARPS)
#define POSITIONS 64

// A launch, as its constants and the lists of its parameters say.
typedef struct {
    const GLOBAL float *q;
    const GLOBAL ushort *keys, *values;
    GLOBAL float *out;
    const GLOBAL uint *positions, *row_sequences, *tables;
    uint sequences, table_blocks, heads, kv_heads, head_dim, cache_blocks, stride;
    float scale;
} Launch;

// Rows of one sequence, all that they see exists: from `row` to before `next`; positions up to `last`.
typedef struct {
    uint row, next, last;
    const GLOBAL uint *table;
} Run;

// The sum of which a value is kept: two f16 values of each of two neighbours.
FN void in_parts(uint *out, uint distance, float low, float high) {
    out[0] = pack_f16(low, high);
#if PARTS == 2
    float low_rest, high_rest;
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h; }"
        : "=f"(low_rest), "=f"(high_rest) : "r"(out[0]));
    out[distance] = pack_f16(low - low_rest, high - high_rest);
#endif
}

FN float power_of_two(float x) {
    float out;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
    return out;
}

// The run that begins at `row`, of rows before `end`; without rows if what the first one needs does not exist. `found` is
// four words of local memory.
FN Run run_at(const Launch &launch, uint row, uint end, uint *found) {
    Run run;
    run.row = row;
    uint sequence = launch.row_sequences[row], mine = row + threadIdx.x;
    bool exists = sequence < launch.sequences;
    run.table = launch.tables + (exists ? (size_t)sequence * launch.table_blocks : 0);
    bool is_other = mine < end && launch.row_sequences[mine] != sequence;
    uint position = mine < end ? launch.positions[mine] : 0;
    __syncthreads(); // whoever read `found` before has done so
    if (threadIdx.x < 4) found[threadIdx.x] = threadIdx.x == 0 ? end : 0;
    __syncthreads();
    if (is_other) atomicMin(found, mine);
    __syncthreads();
    run.next = exists ? *found : row;
    if (mine < run.next) atomicMax(found + 1, min(position / 16 + 1, launch.table_blocks));
    __syncthreads();
    uint wanted = found[1];
    if (threadIdx.x == 0) found[2] = wanted;
    __syncthreads();
    for (uint i = threadIdx.x; i < wanted; i += ITEMS) {
        if (run.table[i] >= launch.cache_blocks) {
            atomicMin(found + 2, i);
            break;
        }
    }
    __syncthreads();
    if (mine < run.next && position / 16 >= found[2]) atomicMin(found, mine);
    __syncthreads();
    run.next = min(run.next, *found);
    if (mine < run.next) atomicMax(found + 3, position);
    __syncthreads();
    run.last = found[3];
    return run;
}

// A block has as many 16-byte pieces of D dimensions of keys as of values. Of each STRIDE blocks, a thread copies a piece
// of one.
#define PIECES(D) (2 * (D))
#define STRIDE(D) (ITEMS / PIECES(D))
#define TURNS(D) (4 / STRIDE(D))
#define NO_BLOCK 0xffffffffu

// The blocks of which a thread copies a piece in the step at `first`.
template <int D> FN void find_blocks(uint (&blocks)[TURNS(D)], const Run &run, uint first) {
    #pragma unroll
    for (uint i = 0; i < TURNS(D); i++) {
        uint position = first + (i * STRIDE(D) + threadIdx.x / PIECES(D)) * 16;
        blocks[i] = position <= run.last ? run.table[position / 16] : NO_BLOCK;
    }
}

// Where the values of a kv head begin in its block.
FN size_t head_at(const Launch &launch, uint block, uint kv_head) {
    return (size_t)(block * launch.kv_heads + kv_head) * (launch.head_dim * 16);
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
// exchanged among each eight. There are zeros for what does not exist, and for positions after the last.
template <int D, bool SIMPLE> FN void copy_values(
    uint to, const Launch &launch, const Run &run, const uint (&blocks)[TURNS(D)], uint kv_head, uint first, uint from
) {
    uint slot = threadIdx.x % PIECES(D) / (D / 8), piece = threadIdx.x % (D / 8), dim = from + piece * 8;
    uint in_step = threadIdx.x / PIECES(D) * 16 + slot, at = slot * launch.head_dim + dim;
    to += in_step * D * 2 + ((piece ^ (slot & 7)) << 4);
    #pragma unroll
    for (uint i = 0; i < TURNS(D); i++) {
        uint place = to + i * STRIDE(D) * D * 32;
        bool exists = first + i * STRIDE(D) * 16 + in_step <= run.last && dim < launch.head_dim;
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

// A thread's part of 16 queries of `D` dimensions from `from`, times the scale: rows `lane / 4` and 8 after it.
template <int D> FN void load_queries(
    uint (&out)[D / 16][4 * PARTS], const Launch &launch, const GLOBAL float *const (&rows)[2], uint from
) {
    uint dims = launch.head_dim - from;
    #pragma unroll
    for (uint i = 0; i < D / 16; i++) {
        #pragma unroll
        for (uint j = 0; j < 4; j++) {
            uint dim = i * 16 + j / 2 * 8 + threadIdx.x % 4 * 2;
            float low = dim < dims ? rows[j % 2][from + dim] : 0.0f;
            float high = dim + 1 < dims ? rows[j % 2][from + dim + 1] : 0.0f;
            in_parts(out[i] + j, 4, low * launch.scale, high * launch.scale);
        }
    }
}

// scores += queries · keys, for 64 positions.
template <int D> FN void add_scores(float (&scores)[8][4], const uint (&queries)[D / 16][4 * PARTS], uint keys) {
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
                multiply_f16(scores[block * 2], queries[i] + part * 4, b[0], b[1]);
                multiply_f16(scores[block * 2 + 1], queries[i] + part * 4, b[2], b[3]);
            }
        }
    }
}

// sums += weights · values, for 64 positions.
template <int D> FN void add_values(float (&sums)[D / 8][4], const float (&weights)[8][4], uint values) {
    uint lane = threadIdx.x % 32;
    #pragma unroll
    for (uint block = 0; block < 4; block++) {
        uint a[4 * PARTS];
        #pragma unroll
        for (uint j = 0; j < 4; j++) {
            const float *two = weights[block * 2 + j / 2] + j % 2 * 2;
            in_parts(a + j, 4, two[0], two[1]);
        }
        uint row = values + (block * 16 + lane % 16) * D * 2;
        #pragma unroll
        for (uint i = 0; i < D / 16; i++) {
            uint b[4];
            load_transposed(b, row + ((i * 2 + lane / 16 ^ (lane & 7)) << 4));
            #pragma unroll
            for (uint part = 0; part < PARTS; part++) {
                multiply_f16(sums[i * 2], a + part * 4, b[0], b[1]);
                multiply_f16(sums[i * 2 + 1], a + part * 4, b[2], b[3]);
            }
        }
    }
}

// The largest value, or the sum, of what the four threads of a row have.
FN float row_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}
FN float row_sum(float x) {
    x += __shfl_xor_sync(0xffffffff, x, 1);
    return x + __shfl_xor_sync(0xffffffff, x, 2);
}

// Scores become weights, and what there is so far is brought to the same maximum.
template <int D> FN void soften(
    float (&scores)[8][4], float (&sums)[D / 8][4], float (&largest)[2], float (&total)[2], const uint (&seen)[2],
    uint first
) {
    if (first + POSITIONS > min(seen[0], seen[1])) {
        #pragma unroll
        for (uint i = 0; i < 32; i++) {
            uint position = first + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2;
            if (position >= seen[i / 2 % 2]) scores[i / 4][i % 4] = -INFINITE;
        }
    }
    float corrections[2];
    #pragma unroll
    for (uint half = 0; half < 2; half++) {
        float best = largest[half];
        #pragma unroll
        for (uint i = 0; i < 16; i++) best = fmaxf(best, scores[i / 2][half * 2 + i % 2]);
        best = row_max(best);
        // A row that has seen nothing yet, because it is no query at all: no difference of infinities.
        float shift = best == -INFINITE ? 0.0f : best, sum = 0.0f;
        corrections[half] = power_of_two(largest[half] - shift);
        #pragma unroll
        for (uint i = 0; i < 16; i++) {
            float *score = scores[i / 2] + half * 2 + i % 2;
            *score = power_of_two(*score - shift);
            sum += *score;
        }
        largest[half] = best;
        total[half] = total[half] * corrections[half] + sum;
    }
    if (__all_sync(0xffffffff, corrections[0] == 1.0f && corrections[1] == 1.0f)) return;
    #pragma unroll
    for (uint i = 0; i < D / 2; i++) sums[i / 4][i % 4] *= corrections[i / 2 % 2];
}

// Up to QUERIES queries of a run, from `first_query`; queries are row after row, each with its heads. SIMPLE heads are at
// most D long and whole 16-byte pieces: while one step is computed the next one's copies are under way. Others take turns
// of D dimensions, and in each turn all of a query's dimensions are read again.
template <int D, bool SIMPLE> FN void attend(
    const Launch &launch, const Run &run, uint kv_head, uint first_query, uint memory
) {
    uint lane = threadIdx.x % 32, group = launch.heads / launch.kv_heads, queries = (run.next - run.row) * group;
    uint seen[2];
    const GLOBAL float *rows[2];
    size_t to[2];
    #pragma unroll
    for (uint half = 0; half < 2; half++) {
        uint query = first_query + threadIdx.x / 32 * 16 + half * 8 + lane / 4;
        bool exists = query < queries;
        query = min(query, queries - 1);
        uint row = run.row + query / group, head = kv_head * group + query % group;
        seen[half] = exists ? launch.positions[row] + 1 : 0;
        rows[half] = launch.q + (size_t)row * launch.stride + head * launch.head_dim;
        to[half] = ((size_t)row * launch.heads + head) * launch.head_dim;
    }
    uint farthest = __reduce_max_sync(0xffffffff, max(seen[0], seen[1]));
    // Two steps' keys, then two steps' values.
    uint keys = memory, values = memory + 2 * 128 * D;
    for (uint turn = 0; turn < (SIMPLE ? 1 : launch.head_dim); turn += D) {
        float sums[D / 8][4], largest[2] = {-INFINITE, -INFINITE}, total[2] = {0.0f, 0.0f};
        #pragma unroll
        for (uint i = 0; i < D / 8; i++) {
            #pragma unroll
            for (uint j = 0; j < 4; j++) sums[i][j] = 0.0f;
        }
        uint mine[D / 16][4 * PARTS];
        __syncthreads(); // all have done with what was there
        uint blocks[TURNS(D)];
        find_blocks<D>(blocks, run, 0);
        if (SIMPLE) {
            copy_keys<D>(keys, launch, blocks, kv_head, 0);
            copy_values<D, true>(values, launch, run, blocks, kv_head, 0, 0);
            end_copies();
            find_blocks<D>(blocks, run, POSITIONS);
            load_queries<D>(mine, launch, rows, 0);
        }
        for (uint first = 0, stage = 0; first <= run.last; first += POSITIONS, stage ^= 1) {
            float scores[8][4];
            #pragma unroll
            for (uint i = 0; i < 8; i++) {
                #pragma unroll
                for (uint j = 0; j < 4; j++) scores[i][j] = 0.0f;
            }
            if (SIMPLE) {
                await_copies<0>();
                __syncthreads();
                if (first + POSITIONS <= run.last) {
                    copy_keys<D>(keys + (stage ^ 1) * 128 * D, launch, blocks, kv_head, 0);
                    copy_values<D, true>(
                        values + (stage ^ 1) * 128 * D, launch, run, blocks, kv_head, first + POSITIONS, 0
                    );
                    end_copies();
                    find_blocks<D>(blocks, run, first + 2 * POSITIONS);
                }
                if (first >= farthest) continue;
                add_scores<D>(scores, mine, keys + stage * 128 * D);
            } else {
                find_blocks<D>(blocks, run, first);
                for (uint from = 0; from < launch.head_dim; from += D) {
                    __syncthreads();
                    copy_keys<D>(keys + stage * 128 * D, launch, blocks, kv_head, from);
                    if (from == 0) {
                        copy_values<D, false>(values + stage * 128 * D, launch, run, blocks, kv_head, first, turn);
                    }
                    end_copies();
                    load_queries<D>(mine, launch, rows, from);
                    await_copies<0>();
                    __syncthreads();
                    add_scores<D>(scores, mine, keys + stage * 128 * D);
                }
            }
            soften<D>(scores, sums, largest, total, seen, first);
            add_values<D>(sums, scores, values + stage * 128 * D);
        }
        #pragma unroll
        for (uint half = 0; half < 2; half++) {
            float share = 1.0f / row_sum(total[half]);
            if (seen[half] == 0) continue;
            #pragma unroll
            for (uint i = 0; i < D / 4; i++) {
                uint dim = turn + i / 2 * 8 + lane % 4 * 2 + i % 2;
                if (dim < launch.head_dim) launch.out[to[half] + dim] = sums[i / 2][half * 2 + i % 2] * share;
            }
        }
    }
}

KERNEL(ITEMS) attention_flash(
    const GLOBAL uint *RESTRICT params, const GLOBAL float *RESTRICT q, const GLOBAL ushort *RESTRICT keys,
    const GLOBAL ushort *RESTRICT values, GLOBAL float *RESTRICT out, uint rows, uint sequences, uint table_blocks,
    uint logit_rows, uint heads, uint kv_heads, uint head_dim, uint cache_blocks, uint scale, uint stride
) {
    extern __shared__ uchar dynamic[];
    __shared__ uint found[4];
    after_earlier_launches();
    uint memory = (local_address(dynamic) + 127) & ~127u;
    // The later a tile, the more it sees: those come first.
    uint kv_head = blockIdx.x, group = heads / kv_heads;
    uint tile = (rows + gridDim.y - 1) / gridDim.y, first_row = (gridDim.y - 1 - blockIdx.y) * tile;
    uint used = count(params, 0, rows), end = min(used, first_row + tile);
    const GLOBAL uint *positions = params + 4 + (size_t)rows;
    Launch launch = {
        q, keys, values, out, positions, positions + rows, positions + 2 * (size_t)rows + logit_rows, sequences,
        table_blocks, heads, kv_heads, head_dim, cache_blocks, stride,
        __uint_as_float(scale) * 1.4426950408889634f
    };
    for (uint row = first_row; row < end;) {
        Run run = run_at(launch, row, end, found);
        if (run.next == row) {
            for (uint i = threadIdx.x; i < group * head_dim; i += ITEMS) {
                out[((size_t)row * heads + kv_head * group) * head_dim + i] = 0.0f;
            }
        }
        for (uint first = 0; first < (run.next - row) * group; first += QUERIES) {
            if (head_dim % 8 != 0 || head_dim > 128) attend<64, false>(launch, run, kv_head, first, memory);
            else if (head_dim <= 64) attend<64, true>(launch, run, kv_head, first, memory);
            else attend<128, true>(launch, run, kv_head, first, memory);
        }
        row = max(run.next, row + 1);
    }
}
