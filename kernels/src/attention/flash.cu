// What the forms of attention with matrix units share. They take an f16 cache. A group takes one kv head of some rows, up to
// QUERIES queries of one sequence at a time over 64 positions at a time; a warp has 16 queries. What is computed for a query
// is the same whatever queries are beside it.
//
// Products are of f16 values, sums are f32. Keys and values are f16 as they are; where PARTS is 2, queries and weights
// are the sum of two f16 values each, which keeps 22 bits of them: class exact. Where it is 1, they are rounded.

#define QUERIES 128
#define POSITIONS 64
#define NO_BLOCK 0xffffffffu

// Where PARTIAL is 1, results are the partials of split attention with one split.
#if PARTIAL
#define PARTIAL_PARAMETERS , uint splits, uint word
#define ROW_WORD word
#else
#define PARTIAL_PARAMETERS
#define ROW_WORD 0
#endif

// A launch, as its constants and the lists of its parameters say.
typedef struct {
    const GLOBAL float *q;
    const GLOBAL ushort *keys, *values;
    GLOBAL float *out;
    Lists at;
    uint sequences, table_blocks, heads, kv_heads, head_dim, cache_blocks, stride, window;
    float scale, cap; // to base 2; no cap is zero
    GLOBAL float2 *numbers; // of partials, for each row and head: the largest score, and the sum
} Launch;

// A launch from a kernel's parameters.
#define LAUNCH { \
    q, keys, values, out, lists(params, rows, logit_rows), sequences, table_blocks, heads, kv_heads, head_dim, \
    cache_blocks, stride, window, __uint_as_float(scale) * 1.4426950408889634f, __uint_as_float(cap) * 1.4426950408889634f, \
    (GLOBAL float2 *)(out + (size_t)rows * heads * head_dim) \
}

// Rows of one sequence, all that they see exists: from `row` to before `next`; they see positions from `start` to `last`.
typedef struct {
    uint row, next, start, last;
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

// The first THREADS threads meet.
template <uint THREADS> FN void meet() { asm volatile("bar.sync 1, %0;" :: "n"(THREADS) : "memory"); }

// The run that begins at `row`, of rows before `end`; without rows if what the first one needs does not exist. `found` is
// four words of local memory. At most 128 rows.
template <uint THREADS> FN Run run_at(const Launch &launch, uint row, uint end, uint *found) {
    Run run;
    run.row = row;
    uint sequence = launch.at.row_sequences[row], mine = row + threadIdx.x;
    bool exists = sequence < launch.sequences;
    run.table = table_of(launch.at, row, launch.sequences, launch.table_blocks);
    bool is_other = mine < end && launch.at.row_sequences[mine] != sequence;
    uint position = mine < end ? launch.at.positions[mine] : 0;
    meet<THREADS>(); // whoever read `found` before has done so
    if (threadIdx.x < 4) found[threadIdx.x] = threadIdx.x == 0 ? end : 0;
    meet<THREADS>();
    if (is_other) atomicMin(found, mine);
    meet<THREADS>();
    run.next = exists ? *found : row;
    if (mine < run.next) atomicMax(found + 1, min(position / 16 + 1, launch.table_blocks));
    meet<THREADS>();
    uint wanted = found[1];
    if (threadIdx.x == 0) found[2] = wanted;
    meet<THREADS>();
    if (threadIdx.x == 0) found[1] = 0xffffffffu;
    for (uint i = threadIdx.x; i < wanted; i += THREADS) {
        if (run.table[i] >= launch.cache_blocks) {
            atomicMin(found + 2, i);
            break;
        }
    }
    meet<THREADS>();
    if (mine < run.next && position / 16 >= found[2]) atomicMin(found, mine);
    meet<THREADS>();
    run.next = min(run.next, *found);
    if (mine < run.next) {
        atomicMin(found + 1, window_start(position + 1, launch.window));
        atomicMax(found + 3, position);
    }
    meet<THREADS>();
    run.start = found[1];
    run.last = found[3];
    return run;
}

// The first position of the steps that a run sees.
FN uint first_step(const Run &run) { return run.start - run.start % POSITIONS; }

// Where the values of a kv head begin in its block.
FN size_t head_at(const Launch &launch, uint block, uint kv_head) {
    return (size_t)(block * launch.kv_heads + kv_head) * (launch.head_dim * 16);
}

// The two queries of which a thread has a part: where they are, and which heads of all rows they are. One sees positions from `start`
// to before `seen`, none if it does not exist.
typedef struct {
    size_t from[2], head[2];
    uint start[2], seen[2];
} Queries;

// Those of a run from `first_query`: row after row, each with its heads.
FN Queries queries_at(const Launch &launch, const Run &run, uint kv_head, uint first_query) {
    uint group = launch.heads / launch.kv_heads, queries = (run.next - run.row) * group;
    Queries out;
    #pragma unroll
    for (uint half = 0; half < 2; half++) {
        uint query = first_query + threadIdx.x / 32 * 16 + half * 8 + threadIdx.x % 32 / 4;
        bool exists = query < queries;
        query = min(query, queries - 1);
        uint row = run.row + query / group, head = kv_head * group + query % group;
        out.seen[half] = exists ? launch.at.positions[row] + 1 : 0;
        out.start[half] = window_start(out.seen[half], launch.window);
        out.from[half] = (size_t)row * launch.stride + head * launch.head_dim;
        out.head[half] = (size_t)row * launch.heads + head;
    }
    return out;
}

// A thread's part of 16 queries of `D` dimensions from `from`, times the scale: rows `lane / 4` and 8 after it.
template <int D> FN void load_queries(
    uint (&out)[D / 16][4 * PARTS], const Launch &launch, const Queries &mine, uint from
) {
    uint dims = launch.head_dim - from;
    #pragma unroll
    for (uint i = 0; i < D / 16; i++) {
        #pragma unroll
        for (uint j = 0; j < 4; j++) {
            uint dim = i * 16 + j / 2 * 8 + threadIdx.x % 4 * 2;
            float low = dim < dims ? launch.q[mine.from[j % 2] + from + dim] : 0.0f;
            float high = dim + 1 < dims ? launch.q[mine.from[j % 2] + from + dim + 1] : 0.0f;
            in_parts(out[i] + j, 4, low * launch.scale, high * launch.scale);
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
    float (&scores)[32], float (&sums)[D / 2], float (&largest)[2], float (&total)[2], const Queries &mine, float cap,
    uint first
) {
    if (cap != 0.0f) { // cap · tanh(score / cap)
        #pragma unroll
        for (uint i = 0; i < 32; i++) {
            float power = power_of_two(scores[i] * (2.0f * 1.4426950408889634f / cap));
            scores[i] = cap - 2.0f * cap / (1.0f + power);
        }
    }
    if (first + POSITIONS > min(mine.seen[0], mine.seen[1]) || first < max(mine.start[0], mine.start[1])) {
        #pragma unroll
        for (uint i = 0; i < 32; i++) {
            uint position = first + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2, half = i / 2 % 2;
            if (position < mine.start[half] || position >= mine.seen[half]) scores[i] = -INFINITE;
        }
    }
    float corrections[2];
    #pragma unroll
    for (uint half = 0; half < 2; half++) {
        float best = largest[half];
        #pragma unroll
        for (uint i = 0; i < 16; i++) best = fmaxf(best, scores[i / 2 * 4 + half * 2 + i % 2]);
        best = row_max(best);
        // A row that has seen nothing yet, because it is no query at all: no difference of infinities.
        float shift = best == -INFINITE ? 0.0f : best, sum = 0.0f;
        corrections[half] = power_of_two(largest[half] - shift);
        #pragma unroll
        for (uint i = 0; i < 16; i++) {
            float *score = scores + i / 2 * 4 + half * 2 + i % 2;
            *score = power_of_two(*score - shift);
            sum += *score;
        }
        largest[half] = best;
        total[half] = total[half] * corrections[half] + sum;
    }
    if (__all_sync(0xffffffff, corrections[0] == 1.0f && corrections[1] == 1.0f)) return;
    #pragma unroll
    for (uint i = 0; i < D / 2; i++) sums[i] *= corrections[i / 2 % 2];
}

// Writes D dimensions of the results, from `from`.
template <int D> FN void write_results(
    const Launch &launch, const Queries &mine, const float (&sums)[D / 2], const float (&largest)[2], const float (&total)[2],
    uint from
) {
    #pragma unroll
    for (uint half = 0; half < 2; half++) {
        float all = row_sum(total[half]), share = 1.0f / all;
        if (mine.seen[half] == 0) continue;
        GLOBAL float *to = launch.out + mine.head[half] * launch.head_dim;
#if PARTIAL
        // Scores were to base 2.
        if (from == 0 && threadIdx.x % 4 == 0) launch.numbers[mine.head[half]] = make_float2(largest[half] * 0.6931471805599453f, all);
#endif
        #pragma unroll
        for (uint i = 0; i < D / 4; i++) {
            uint dim = from + i / 2 * 8 + threadIdx.x % 4 * 2 + i % 2;
            if (dim < launch.head_dim) to[dim] = sums[i / 2 * 4 + half * 2 + i % 2] * share;
        }
    }
}

// The tile of a group: the later a tile, the more it sees, and those come first.
typedef struct {
    uint row, end;
} Tile;

FN Tile tile_of(const GLOBAL uint *params, uint rows, uint row_word) {
    uint height = (rows + gridDim.y - 1) / gridDim.y;
    Tile tile;
    uint first = (gridDim.y - 1 - blockIdx.y) * height;
#if PARTIAL
    tile.row = first;
    tile.end = min(count(params, row_word, rows), first + height);
#else
    tile.row = max(count(params, 2, rows), first); // split attention has computed the rows before
    tile.end = min(count(params, 0, rows), first + height);
#endif
    return tile;
}

// Zeros for a row that sees nothing.
template <uint THREADS> FN void write_nothing(const Launch &launch, uint row, uint kv_head) {
#if PARTIAL
    uint heads = launch.heads / launch.kv_heads;
    GLOBAL float2 *none = launch.numbers + ((size_t)row * launch.kv_heads + kv_head) * heads;
    for (uint i = threadIdx.x; i < heads; i += THREADS) none[i] = make_float2(0.0f, 0.0f);
#endif
    uint values = launch.heads / launch.kv_heads * launch.head_dim;
    GLOBAL float *to = launch.out + ((size_t)row * launch.kv_heads + kv_head) * values;
    for (uint i = threadIdx.x; i < values; i += THREADS) to[i] = 0.0f;
}

