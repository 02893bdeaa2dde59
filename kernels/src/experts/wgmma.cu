// Products of f16 activations with the weights of their experts on compute capability 9.0a: warpgroups multiply (`wgmma`), and
// warps decode quantised weights on their way to the matrix units. No launch writes dequantised weights to memory.
//
// Each work group sorts the assignments by their experts. A piece of work is TILE_ROWS rows of weights of one expert, times up
// to TOKENS of its assignments. Work groups take pieces in turn. In a work group, each of the CONSUMERS warpgroups multiplies
// 64 rows of weights, a left factor that its warps decode from rings of their own, and one more warpgroup copies the rows of x,
// the right factor, into local memory. Both go on to the next piece while others still work on the last.

#define THREADS (128 * (CONSUMERS + 1))
#define TILE_ROWS (64 * CONSUMERS)
#define X_STAGE (TOKENS * TILE_ROW)
#define CHUNK_TILES (CHUNK / TILE_K)
// Assignments that are sorted at a time.
#define LIST 16384
#define NONE 0xffffffffu

// The assignments of some rows, sorted by expert. A number of an assignment is row · used + slot, from the first row on.
typedef struct {
    ushort *list;
    uint *starts;    // for each expert, where its part of the list starts, and after the last one its end
    uint *passes;    // for each expert, the passes of up to TOKENS assignments of all experts up to it
    uint row;        // the first row
    uint pieces;
} Sorted;

// What a launch multiplies.
typedef struct {
    const uchar *weights;
    uint n, k, first_row, expert_rows, used;
    uint of_used;         // 2^32 / used, rounded up
    uint expert, experts; // the first expert with bound rows, and how many there are
    uint tiles;           // of rows of weights that an expert may need
} Launch;

// The row of x and the slot of an assignment, from its number in the list.
typedef struct {
    uint row, slot;
} Assignment;

FN Assignment assignment_of(const Sorted *sorted, const Launch *launch, uint at) {
    // Exact for numbers below 2^16, as `used` is at most 64.
    uint number = sorted->list[at], row = launch->used == 1 ? number : __umulhi(number, launch->of_used);
    Assignment assignment = {sorted->row + row, number - row * launch->used};
    return assignment;
}

// The part of a warp of the assignments of some rows, in units of four, or of one, of a row.
typedef struct {
    const GLOBAL uint *route;
    uint used, row, next, end;
} Part;

FN Part part_of(const GLOBAL uint *route, uint used, uint begin, uint end) {
    uint total = (end - begin) * (used % 4 ? used : used / 4), each = (total + WARPS - 1) / WARPS, warp = threadIdx.x / 32;
    Part part = {route, used, begin, min(total, each * warp), min(total, each * (warp + 1))};
    return part;
}

// The experts of unit `at`, or NONE beyond the part.
FN uint4 experts_of(const Part &part, uint at) {
    uint wide = part.used % 4 ? 1 : 4, per_row = part.used / wide;
    uint4 ids = UINT4(NONE, NONE, NONE, NONE);
    const GLOBAL uint *from = part.route + (size_t)(part.row + at / per_row) * 2 * part.used + at % per_row * wide;
    if (at < part.end && wide == 4) ids = LOAD4(from);
    if (at < part.end && wide == 1) ids.x = *from;
    return ids;
}

// Calls `take` with the expert and the number of each assignment of a part: all lanes at once, also without an assignment, in
// the same order every time.
template <class Take> FN void visit(const Part &part, Take take) {
    uint wide = part.used % 4 ? 1 : 4, lane = threadIdx.x % 32;
    uint4 next = experts_of(part, part.next + lane);
    #pragma unroll 1
    for (uint from = part.next; from < part.end; from += 32) {
        uint4 ids = next;
        next = experts_of(part, from + 32 + lane);
        #pragma unroll 1
        for (uint i = 0; i < wide; i++) {
            take(ids.x, (from + lane) * wide + i);
            ids = UINT4(ids.y, ids.z, ids.w, NONE);
        }
    }
}

// Finds where the parts of the list of the experts start, from their lengths. By one warp.
FN void find_starts(const Sorted *sorted, uint experts) {
    // Both sums are below 2^16.
    uint before = 0;
    for (uint from = 0; from <= experts; from += 32) {
        uint e = from + threadIdx.x, length = e < experts ? sorted->starts[e] : 0;
        uint own = length | (length + TOKENS - 1) / TOKENS << 16, sum = own;
        #pragma unroll
        for (uint distance = 1; distance < 32; distance *= 2) {
            uint left = __shfl_up_sync(0xffffffffu, sum, distance);
            if (threadIdx.x >= distance) sum += left;
        }
        sum += before;
        if (e <= experts) sorted->starts[e] = (sum - own) & 0xffff;
        if (e < experts) sorted->passes[e] = sum >> 16;
        before = __shfl_sync(0xffffffffu, sum, 31);
    }
}

// Counts an assignment of each lane to an expert, or to none if it is not below `experts`. Returns how many of these lanes'
// experts the warp had counted before, in the order of lanes.
FN uint count_up(ushort *counts, uint expert, uint experts) {
    uint equal = __match_any_sync(0xffffffffu, expert), below = equal & ((1u << threadIdx.x % 32) - 1);
    uint before = expert < experts ? counts[expert] : 0;
    __syncwarp();
    if (expert < experts && below == 0) counts[expert] = (ushort)(before + __popc(equal));
    __syncwarp();
    return before + __popc(below);
}

// Sorts the assignments of the rows from `begin` to `end`, at most LIST, in the same order in every work group: each takes some
// passes of an expert. All threads of the work group take part. `counts` has space for a number for each warp and expert.
FN void sort(Sorted *sorted, const Launch *launch, const GLOBAL uint *route, uint begin, uint end, ushort *counts) {
    uint experts = launch->experts, expert = launch->expert, *starts = sorted->starts;
    ushort *own = counts + threadIdx.x / 32 * experts, *list = sorted->list;
    Part part = part_of(route, launch->used, begin, end);
    // All have read the list before.
    __syncthreads();
    for (uint i = threadIdx.x; i < WARPS * experts; i += THREADS) counts[i] = 0;
    __syncthreads();
    visit(part, [=](uint id, uint) { count_up(own, id - expert, experts); });
    __syncthreads();
    // Each count becomes the sum of those of the warps before.
    for (uint e = threadIdx.x; e < experts; e += THREADS) {
        uint sum = 0;
        #pragma unroll
        for (uint warp = 0; warp < WARPS; warp++) {
            uint length = counts[warp * experts + e];
            counts[warp * experts + e] = (ushort)sum;
            sum += length;
        }
        starts[e] = sum;
    }
    __syncthreads();
    if (threadIdx.x < 32) find_starts(sorted, experts);
    __syncthreads();
    visit(part, [=](uint id, uint number) {
        uint e = id - expert, at = count_up(own, e, experts);
        if (e < experts) list[starts[e] + at] = (ushort)number;
    });
    // Copies to the same place follow.
    show_to_matrix_units();
    __syncthreads();
    sorted->row = begin;
    sorted->pieces = sorted->passes[experts - 1] * launch->tiles;
}

typedef struct {
    uint row;           // the first of the tile, of all experts' rows
    uint begin;         // the expert's first row
    uint first, tokens; // its part of the list
    bool is_empty;      // no row of the tile is both bound and the expert's
} Piece;

FN Piece piece_at(const Sorted *sorted, const Launch *launch, uint index) {
    uint pass = index / launch->tiles, lane = threadIdx.x % 32, experts = launch->experts, low = 0;
    // The expert is the first whose passes are more. Lanes look at every 32nd, and then at 32 neighbours.
    #pragma unroll
    for (uint step = 32; step > 0; step /= 32) {
        uint e = low + lane * step + step - 1;
        low += __popc(__ballot_sync(0xffffffffu, e < experts && sorted->passes[min(e, experts - 1)] <= pass)) * step;
    }
    Piece piece;
    uint passes = low ? sorted->passes[low - 1] : 0;
    piece.begin = (launch->expert + low) * launch->expert_rows;
    piece.row = piece.begin / 16 * 16 + index % launch->tiles * TILE_ROWS;
    piece.first = sorted->starts[low] + (pass - passes) * TOKENS;
    piece.tokens = min((uint)TOKENS, sorted->starts[low + 1] - piece.first);
    piece.is_empty = piece.row + TILE_ROWS <= launch->first_row || piece.row >= launch->first_row + launch->n
        || piece.row >= piece.begin + launch->expert_rows;
    return piece;
}

// The number of rows of x that the matrix units multiply for so many assignments.
FN uint width_of(uint tokens) {
    return tokens <= 16 ? 16 : tokens <= 32 ? 32 : tokens <= 64 ? 64 : 128;
}

// Where the next tile of x comes.
typedef struct {
    uint index, phase;
} Stage;

FN void advance(Stage *stage) {
    stage->index = stage->index + 1 == X_STAGES ? 0 : stage->index + 1;
    stage->phase ^= stage->index == 0;
}

// Copies the rows of x of the work group's pieces. `pitch` is the number of 16-byte pieces of a row.
FN void copy_x(
    const Sorted *sorted, const Launch *launch, const GLOBAL uint4 *x, uint pitch, uint x_slots, uint to, uint full, uint empty,
    Stage *stage
) {
    uint thread = threadIdx.x % 128, row = thread / 8, part = thread % 8, steps = (launch->k + TILE_K - 1) / TILE_K;
    uint place = to + piece_of(row, part);
    #pragma unroll 1
    for (uint index = blockIdx.x; index < sorted->pieces; index += gridDim.x) {
        Piece piece = piece_at(sorted, launch, index);
        if (piece.is_empty) continue;
        uint width = width_of(piece.tokens);
        const GLOBAL uint4 *from[TOKENS / 16];
        #pragma unroll
        for (uint i = 0; i < TOKENS / 16; i++) {
            Assignment own = assignment_of(sorted, launch, piece.first + min(row + i * 16, piece.tokens - 1));
            from[i] = x + (size_t)own.row * pitch + (x_slots == 1 ? 0 : own.slot) * (launch->k / 8) + part;
        }
        #pragma unroll 1
        for (uint step = 0; step < steps; step++) {
            // Columns from k on are zeros.
            bool is_inside = step * TILE_K + part * 8 < launch->k;
            await(empty + stage->index * 8, stage->phase ^ 1);
            #pragma unroll
            for (uint i = 0; i < TOKENS / 16; i++) {
                if (i * 16 >= width) break;
                copy16(place + stage->index * X_STAGE + i * 16 * TILE_ROW, from[i], is_inside ? 16 : 0);
                if (step + 1 < steps) from[i] += 8;
            }
            arrive_after_copies(full + stage->index * 8);
            advance(stage);
        }
    }
}

FN uint chunk_bytes(uint columns) {
    uint total = 0;
    #pragma unroll
    for (uint s = 0; s < SECTIONS; s++) total += columns * SECTION_BYTES(s) / 256;
    return total;
}

// The way of a warp through its groups of rows of weights: in each, chunk after chunk.
typedef struct {
    uint index, column;
    const uchar *group;
} Way;

// The calling warp's group of rows of a piece, or 0 if none is bound.
FN const uchar *group_of(const Launch *launch, const Piece *piece) {
    uint row = piece->row + threadIdx.x / 32 * 16, bound = row / 16 - launch->first_row / 16;
    // Groups before the bound rows have numbers beyond all others.
    bool is_there = bound < (launch->n + 15) / 16 && row < piece->begin + launch->expert_rows;
    return is_there ? launch->weights + (size_t)bound * group_bytes(launch->k) : (const uchar *)0;
}

// Goes on to the next piece, from `way->index` on, in which the warp has a group.
FN void find_group(Way *way, const Sorted *sorted, const Launch *launch) {
    way->column = 0;
    for (; way->index < sorted->pieces; way->index += gridDim.x) {
        Piece piece = piece_at(sorted, launch, way->index);
        way->group = group_of(launch, &piece);
        if (way->group) return;
    }
}

// A chunk's sections stand in a stage as those of a group of CHUNK columns.
FN void fill(Ring *ring, Way *way, const Sorted *sorted, const Launch *launch) {
    if (way->index >= sorted->pieces) {
        ring_skip(ring);
        return;
    }
    uint columns = min((uint)CHUNK, launch->k - way->column);
    if (FILLS) {
        ring_expect(ring, chunk_bytes(columns));
        const uchar *from = way->group;
        uint to = 0;
        #pragma unroll
        for (uint s = 0; s < SECTIONS; s++) {
            ring_copy(ring, to, from + way->column / 32 * SECTION_BYTES(s) / 8, columns * SECTION_BYTES(s) / 256);
            to += CHUNK * SECTION_BYTES(s) / 256;
            from += launch->k / 32 * SECTION_BYTES(s) / 8;
        }
    }
    ring_filled(ring);
    way->column += CHUNK;
    if (way->column >= launch->k) {
        way->index += gridDim.x;
        find_group(way, sorted, launch);
    }
}

// Where results go.
typedef struct {
    GLOBAL float *y;
    uint piece, column, stride;
} Results;

// What a consumer reads.
typedef struct {
    Ring ring;
    Way way;
    Stage stage;
    uint x, full, empty;
} Input;

// The first values of an array.
template <int N> FN float (&first(float (&d)[TOKENS / 2]))[N] { return *(float (*)[N])d; }

// Adds the product of 64 columns, of two blocks, for the first `width` assignments.
template <int SUMS> FN void multiply_tile(float (&d)[SUMS], const uint *a, ulong right) {
    begin_products();
    #pragma unroll
    for (uint i = 0; i < 4; i++) tile_product(d, a + i * 4, right + i * 2);
    end_products();
}

// Adds the products of the warpgroup's rows to `d`, for the first `width` assignments. While the matrix units multiply a tile of
// x, the warp decodes the weights for the next.
FN void multiply(
    float (&d)[TOKENS / 2], Input *in, const Sorted *sorted, const Launch *launch, bool has_group, uint width
) {
    uint a[2][16], last[2] = {0, 0};
    #pragma unroll
    for (uint i = 0; i < 16; i++) a[0][i] = a[1][i] = 0;
    bool signals = threadIdx.x % 32 == 0;
    #pragma unroll 1
    for (uint column = 0; column < launch->k; column += CHUNK) {
        const uchar *part = has_group ? ring_await(&in->ring) : (const uchar *)0;
        // Twice is enough for `a`, and keeps the program short.
        #pragma unroll 2
        for (uint i = 0; i < CHUNK_TILES; i++) {
            if (column + i * TILE_K >= launch->k) break;
            await_products<1>();
            if (signals && last[i % 2]) arrive(last[i % 2]);
            last[i % 2] = in->empty + in->stage.index * 8;
            if (has_group) {
                decode(part, i * 2, a[i % 2]);
                decode(part, i * 2 + 1, a[i % 2] + 8);
            }
            await(in->full + in->stage.index * 8, in->stage.phase);
            show_to_matrix_units();
            ulong right = matrix_at(in->x + in->stage.index * X_STAGE, 16, 8 * TILE_ROW);
            // Branches around no more than the products, and no less, keep these asynchronous.
            if (width == TOKENS) multiply_tile(d, a[i % 2], right);
            else if (TOKENS > 64 && width == 64) multiply_tile(first<32>(d), a[i % 2], right);
            else if (TOKENS > 32 && width == 32) multiply_tile(first<16>(d), a[i % 2], right);
            else multiply_tile(first<8>(d), a[i % 2], right);
            advance(&in->stage);
        }
        if (has_group) {
            ring_drained(&in->ring);
            fill(&in->ring, &in->way, sorted, launch);
        }
    }
    await_products<0>();
    #pragma unroll
    for (uint i = 0; i < 2; i++) {
        if (signals && last[i]) arrive(last[i]);
    }
    settle(d);
}

// Writes the warp's sums of a piece.
FN void write(
    const float (&d)[TOKENS / 2], const Results *out, const Sorted *sorted, const Launch *launch, const Piece *piece
) {
    // The lane has two rows. Rows of other experts, and rows that are not bound, are beyond the limits.
    uint of_all = piece->row + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 * 2, of_expert = of_all - piece->begin, at[2];
    GLOBAL float *y = out->y + out->column;
    bool has[2];
    #pragma unroll
    for (uint r = 0; r < 2; r++) {
        has[r] = of_expert + r < launch->expert_rows && of_all + r - launch->first_row < launch->n;
        at[r] = (of_expert + r) / out->piece * launch->used * out->piece + (of_expert + r) % out->piece;
    }
    bool is_pair = has[0] && has[1] && (of_expert | out->piece | out->stride | (uint)((size_t)y / 4)) % 2 == 0;
    const float down = 1.0f / UP;
    #pragma unroll
    for (uint j = 0; j < TOKENS / 4; j++) {
        uint token = j / 2 * 8 + threadIdx.x % 4 * 2 + j % 2;
        if (token >= piece->tokens) continue;
        Assignment own = assignment_of(sorted, launch, piece->first + token);
        // y has less than 2^32 values.
        GLOBAL float *to = y + (own.row * out->stride + own.slot * out->piece);
        float low = d[j / 2 * 4 + j % 2] * down, high = d[j / 2 * 4 + j % 2 + 2] * down;
        if (is_pair) {
            *(GLOBAL float2 *)(to + at[0]) = make_float2(low, high);
        } else {
            if (has[0]) to[at[0]] = low;
            if (has[1]) to[at[1]] = high;
        }
    }
}

FN void consume(Input *in, const Results *out, const Sorted *sorted, const Launch *launch) {
    in->way.index = blockIdx.x;
    find_group(&in->way, sorted, launch);
    #pragma unroll 1
    for (uint i = 0; i < STAGES; i++) fill(&in->ring, &in->way, sorted, launch);
    #pragma unroll 1
    for (uint index = blockIdx.x; index < sorted->pieces; index += gridDim.x) {
        Piece piece = piece_at(sorted, launch, index);
        if (piece.is_empty) continue;
        bool has_group = group_of(launch, &piece) != 0;
        float d[TOKENS / 2];
        #pragma unroll
        for (uint i = 0; i < TOKENS / 2; i++) d[i] = 0.0f;
        multiply(d, in, sorted, launch, has_group, width_of(piece.tokens));
        if (has_group) write(d, out, sorted, launch, &piece);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) expert_matmul_wgmma(
    const GLOBAL uint *RESTRICT params, const GLOBAL uchar *RESTRICT weights, const GLOBAL uint4 *RESTRICT x,
    const GLOBAL uint *RESTRICT route, GLOBAL float *RESTRICT y, uint rows, uint word, uint n, uint k, uint first_row,
    uint expert_rows, uint piece, uint used, uint x_slots, uint column, uint stride, uint is_fixed, uint x_pitch,
    uint x_column, uint y_gap
) {
    static_assert(X_STAGES * X_STAGE >= WARPS * MAX_EXPERTS * 2, "the counts need the place of the tiles of x");
    extern SHARED uchar dynamic[];
    SHARED ulong ring_barriers[CONSUMERS * 4 * BARRIERS], x_barriers[2 * X_STAGES];
    SHARED ushort list[LIST];
    SHARED uint starts[MAX_EXPERTS + 1], passes[MAX_EXPERTS];
    uint base = (local_address(dynamic) + 1023) & ~1023u, full = local_address(x_barriers), empty = full + X_STAGES * 8;
    uchar *rings = dynamic + (base - local_address(dynamic)) + X_STAGES * X_STAGE;
    if (threadIdx.x == 0) {
        for (uint s = 0; s < X_STAGES; s++) {
            start_barrier(full + s * 8, 128);
            start_barrier(empty + s * 8, CONSUMERS * 4);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    // A block beyond the last column meets zeros of x: it must have numbers.
    if (k % TILE_K) {
        for (uint i = threadIdx.x; i < CONSUMERS * 4 * STAGES * STAGE / 4; i += THREADS) ((uint *)rings)[i] = 0;
    }
    __syncthreads();
    BEGIN();
    uint in_use = count(params, word, rows), expert = first_row / expert_rows;
    uint before = expert_rows % 16 ? 15 : 0, at_once = LIST / used;
    Launch launch = {
        weights, n, k, first_row, expert_rows, used, 0xffffffffu / used + 1, expert, (first_row + n - 1) / expert_rows - expert + 1,
        (expert_rows + before + TILE_ROWS - 1) / TILE_ROWS
    };
    Sorted sorted = {list, starts, passes, 0, 0};
    // Between two pieces of work, tiles of x are not in use.
    ushort *counts = (ushort *)(dynamic + (base - local_address(dynamic)));
    if (threadIdx.x / 128 == CONSUMERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(COPIER_REGISTERS));
        Stage stage = {0, 0};
        uint pitch = pitch_of(x_slots * k) / 8;
        #pragma unroll 1
        for (uint from = 0; from < in_use; from += at_once) {
            sort(&sorted, &launch, route, from, min(from + at_once, in_use), counts);
            copy_x(&sorted, &launch, x, pitch, x_slots, base, full, empty, &stage);
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(CONSUMER_REGISTERS));
        Results out = {y, piece, column, stride};
        Input in;
        ring_start(&in.ring, rings + threadIdx.x / 32 * STAGES * STAGE, ring_barriers + threadIdx.x / 32 * BARRIERS);
        in.stage.index = in.stage.phase = 0;
        in.x = base;
        in.full = full;
        in.empty = empty;
        #pragma unroll 1
        for (uint from = 0; from < in_use; from += at_once) {
            sort(&sorted, &launch, route, from, min(from + at_once, in_use), counts);
            consume(&in, &out, &sorted, &launch);
        }
    }
}
