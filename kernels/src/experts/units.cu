// Products of f16 activations with the weights of their experts on matrix units, on compute capability 8.0. Warps decode
// quantised weights on their way to the units: no launch writes dequantised weights to memory.
//
// A work group takes TILE_ROWS rows of weights of one expert, and finds the assignments to it. It computes up to 64 of these at
// a time: each warp multiplies GROUPS groups of 16 rows of weights with all of them. Copies bring the next columns meanwhile:
// tiles of x of 64 columns for all warps, and chunks of CHUNK columns of its own groups for each warp.

#define WARPS (ITEMS / 32)
#define GROUPS 2
#define TILE_ROWS (WARPS * GROUPS * 16)
// Columns of a tile of x, and bytes of one of its rows.
#define TILE_K 64
#define TILE_ROW 128
// Assignments that are computed at a time, in pairs of eight.
#define PAIRS 4
#define TOKENS (PAIRS * 16)
#define X_STAGE (TOKENS * TILE_ROW)
#define X_STAGES 3
// Tiles of x that are under way while one is multiplied.
#define AHEAD (X_STAGES - 1)
#define CHUNK_TILES (CHUNK / TILE_K)
// Bytes of a warp's groups in a chunk of columns.
#define W_STAGE (GROUPS * STAGE)
#define W_STAGES 2
// Rows of x whose assignments are found at a time. A row has at most one with the expert.
#define LIST 2048
// Loads of ids that a thread has under way.
#define LOADS 4
#define NONE 0xffffffffu

// A lane's sums for each of the warp's groups of weights and for each eight assignments.
typedef float Sums[GROUPS][PAIRS * 2][4];

// Adds `own` to the list if there is one. The lanes of a warp share one place at its end.
FN void append(uint own, uint *list, uint *length) {
    uint lane = ITEM % 32, mask = __ballot_sync(0xffffffffu, own != NONE), at = 0;
    if (mask == 0) return;
    if (lane == 0) at = atomicAdd(length, (uint)__popc(mask));
    at = __shfl_sync(0xffffffffu, at, 0);
    if (own != NONE) list[at + __popc(mask & ((1u << lane) - 1))] = own;
}

// Lists the assignments of the rows from `begin` to `end` to the expert, in any order: a sum does not depend on it.
FN void find(const GLOBAL uint *route, uint used, uint expert, uint begin, uint end, uint *list, uint *length) {
    const bool by_four = used % 4 == 0;
    const uint wide = by_four ? 4 : 1, per_row = used / wide;
    uint row = begin + ITEM / per_row, part = ITEM % per_row;
    const uint more_rows = ITEMS / per_row, more_parts = ITEMS % per_row;
    #pragma unroll 1
    for (uint next = 0; next < (end - begin) * per_row; next += LOADS * ITEMS) {
        uint4 ids[LOADS];
        uint first[LOADS];
        #pragma unroll
        for (uint i = 0; i < LOADS; i++) {
            const GLOBAL uint *from = route + (size_t)row * 2 * used + part * wide;
            ids[i] = UINT4(NONE, NONE, NONE, NONE);
            first[i] = row * used + part * wide;
            if (row < end && by_four) ids[i] = LOAD4(from);
            if (row < end && !by_four) ids[i].x = *from;
            row += more_rows;
            part += more_parts;
            if (part >= per_row) {
                part -= per_row;
                row++;
            }
        }
        #pragma unroll
        for (uint i = 0; i < LOADS; i++) {
            uint own = NONE;
            if (ids[i].x == expert) own = first[i];
            if (ids[i].y == expert) own = first[i] + 1;
            if (ids[i].z == expert) own = first[i] + 2;
            if (ids[i].w == expert) own = first[i] + 3;
            append(own, list, length);
        }
    }
}

// The rows of weights of a work group and of the calling warp.
typedef struct {
    const uchar *groups[GROUPS];
    bool has[GROUPS]; // local memory has anything in the place of a group that is not bound, and its sums are not written
    uint first;       // the warp's first row, of all experts
} Share;

FN Share share_of(const uchar *weights, uint n, uint k, uint first_row, uint expert_begin, uint expert_rows) {
    Share share;
    share.first = expert_begin / 16 * 16 + GROUP(0) * TILE_ROWS + ITEM / 32 * (GROUPS * 16);
    #pragma unroll
    for (uint i = 0; i < GROUPS; i++) {
        uint row = share.first + i * 16, bound = row / 16 - first_row / 16;
        // Groups before the bound rows have numbers beyond all others.
        share.has[i] = bound < (n + 15) / 16 && row < expert_begin + expert_rows;
        share.groups[i] = weights + (size_t)(share.has[i] ? bound : 0) * group_bytes(k);
    }
    return share;
}

// Starts the copies of a chunk of the warp's groups.
FN void copy_weights(uint to, const Share *share, uint k, uint column) {
    #pragma unroll
    for (uint i = 0; i < GROUPS; i++) {
        if (share->has[i]) copy_chunk(to + i * STAGE, share->groups[i], k, column);
    }
}

// Starts the copies of a tile of x from column `column` on. `rows` says where a thread's rows of x start in pieces of eight
// values, row ITEM / 8 of each 16, or NONE. Columns from `k` on are zeros. Eight lanes read the same columns of four rows at
// once: the swizzle gives each of the rows banks of its own.
FN void copy_x(uint to, const GLOBAL uint4 *x, const uint (&rows)[PAIRS], uint k, uint column) {
    uint row = ITEM / 8, piece = ITEM % 8;
    bool is_inside = column + piece * 8 < k;
    uint at = to + row * TILE_ROW + ((piece ^ (row % 4 * 2)) << 4);
    #pragma unroll
    for (uint i = 0; i < PAIRS; i++) {
        if (rows[i] == NONE) continue;
        const GLOBAL uint4 *from = x + (size_t)rows[i] + (is_inside ? column / 8 + piece : 0);
        copy16(at + i * 16 * TILE_ROW, from, is_inside ? 16 : 0);
    }
}

// Adds the products of a block of 32 columns, the first or the second of a tile of x. Rows of x beyond `tokens` have anything,
// and add nothing of use.
FN void multiply_block(Sums &d, const uchar *stage, uint block, const uchar *x, uint half_tile, uint tokens) {
    uint a[GROUPS][8], g = ITEM % 32 / 4, t = ITEM % 4;
    #pragma unroll
    for (uint i = 0; i < GROUPS; i++) decode(stage + i * STAGE, block, a[i]);
    #pragma unroll
    for (uint half = 0; half < 2; half++) {
        const uchar *from = x + g * TILE_ROW + (((half_tile * 2 + half) ^ (g % 4)) << 5) + t * 8;
        uint2 b[PAIRS * 2];
        #pragma unroll
        for (uint j = 0; j < PAIRS * 2; j++) {
            if (j < PAIRS || tokens > PAIRS * 8) b[j] = LOAD2(from + j * 8 * TILE_ROW);
        }
        #pragma unroll
        for (uint j = 0; j < PAIRS * 2; j++) {
            if (j / 2 * 16 >= tokens) break;
            #pragma unroll
            for (uint i = 0; i < GROUPS; i++) multiply_f16(d[i][j], a[i] + half * 4, b[j].x, b[j].y);
        }
    }
}

// Where results go.
typedef struct {
    GLOBAL float *y;
    uint expert_begin, expert_rows, first_row, n, piece, used, column, stride;
} Output;

// Writes the sums of `tokens` assignments.
FN void write(const Output *out, const Share *share, const Sums &d, const uint *list, uint tokens) {
    // Of each group, the lane has two rows. Rows of other experts, and rows that are not bound, are beyond the limits.
    bool has[GROUPS][2], is_pair[GROUPS];
    uint at[GROUPS][2], others = out->piece | out->column | out->stride | (uint)((size_t)out->y / 4);
    #pragma unroll
    for (uint i = 0; i < GROUPS; i++) {
        uint of_all = share->first + i * 16 + ITEM % 32 / 4 * 2, own = of_all - out->expert_begin;
        #pragma unroll
        for (uint r = 0; r < 2; r++) {
            has[i][r] = own + r < out->expert_rows && of_all + r - out->first_row < out->n;
            at[i][r] = (own + r) / out->piece * out->used * out->piece + (own + r) % out->piece;
        }
        is_pair[i] = has[i][0] && has[i][1] && (own | others) % 2 == 0;
    }
    const float down = 1.0f / UP;
    #pragma unroll
    for (uint j = 0; j < PAIRS * 4; j++) {
        uint token = j / 2 * 8 + ITEM % 4 * 2 + j % 2;
        if (token >= tokens) continue;
        uint row = list[token] / out->used, slot = list[token] % out->used;
        GLOBAL float *to = out->y + (size_t)row * out->stride + out->column + slot * out->piece;
        #pragma unroll
        for (uint i = 0; i < GROUPS; i++) {
            float low = d[i][j / 2][j % 2] * down, high = d[i][j / 2][j % 2 + 2] * down;
            if (is_pair[i]) {
                *(GLOBAL float2 *)(to + at[i][0]) = make_float2(low, high);
            } else {
                if (has[i][0]) to[at[i][0]] = low;
                if (has[i][1]) to[at[i][1]] = high;
            }
        }
    }
}

// What all tiles of a work group have in common.
typedef struct {
    const GLOBAL uint4 *x;
    const uchar *space;     // local memory: the stages of x, then those of the warp's weights
    const uchar *weights;
    uint x_pitch, x_slots, k;
} Source;

// Computes the products of `tokens` assignments of the list, at most TOKENS. Copies of the chunk of weights with number `chunk`,
// of all tiles, have started. If another tile follows, those of its first one start. Returns the number of the next chunk.
FN uint multiply(
    const Source *in, const Share *share, const Output *out, const uint *list, uint tokens, uint chunk, bool is_last
) {
    Sums d;
    #pragma unroll
    for (uint i = 0; i < GROUPS * PAIRS * 8; i++) d[i / (PAIRS * 8)][i / 4 % (PAIRS * 2)][i % 4] = 0.0f;
    uint rows[PAIRS];
    #pragma unroll
    for (uint i = 0; i < PAIRS; i++) {
        uint token = ITEM / 8 + i * 16;
        uint assignment = list[token < tokens ? token : 0], slot = in->x_slots == 1 ? 0 : assignment % out->used;
        uint first = assignment / out->used * (in->x_pitch / 8) + slot * (in->k / 8);
        rows[i] = token < tokens ? first : NONE;
    }
    bool has_any = share->has[0] || share->has[1];
    uint steps = (in->k + TILE_K - 1) / TILE_K, blocks = in->k / 32;
    uint x = local_address(in->space), weights = local_address(in->weights);
    #pragma unroll 1
    for (uint next = 0; next < steps + AHEAD; next++) {
        uint step = next - AHEAD;
        if (next >= AHEAD) {
            // A chunk's copies started CHUNK_TILES steps before, which are more than may be under way.
            await_copies<AHEAD - 1>();
            __syncthreads();
        }
        if (next < steps) copy_x(x + next % X_STAGES * X_STAGE, in->x, rows, in->k, next * TILE_K);
        if (next >= AHEAD && step % CHUNK_TILES == 0) {
            uint column = (step / CHUNK_TILES + 1) * CHUNK;
            bool is_over = column >= in->k;
            chunk++;
            if (!is_over || !is_last) copy_weights(weights + chunk % W_STAGES * W_STAGE, share, in->k, is_over ? 0 : column);
        }
        end_copies();
        if (next < AHEAD || !has_any) continue;
        const uchar *stage = in->weights + (chunk - 1) % W_STAGES * W_STAGE, *tile = in->space + step % X_STAGES * X_STAGE;
        #pragma unroll 1
        for (uint i = 0; i < min(2u, blocks - step * 2); i++) {
            multiply_block(d, stage, step % CHUNK_TILES * 2 + i, tile, i, tokens);
        }
    }
    // The next tile's copies must not replace what other warps read.
    __syncthreads();
    write(out, share, d, list, tokens);
    return chunk;
}

// Registers suffice for three work groups of a multiprocessor.
extern "C" __global__ void __launch_bounds__(ITEMS, 3) expert_matmul_units(
    const GLOBAL uint *RESTRICT params, const GLOBAL uchar *RESTRICT weights, const GLOBAL uint4 *RESTRICT x,
    const GLOBAL uint *RESTRICT route, GLOBAL float *RESTRICT y, uint rows, uint word, uint n, uint k, uint first_row,
    uint expert_rows, uint piece, uint used, uint x_slots, uint column, uint stride, uint is_fixed, uint x_pitch,
    uint x_column, uint y_gap
) {
    extern SHARED uint4 dynamic[];
    SHARED uint list[LIST];
    SHARED uint length;
    LAUNCH_NEXT();
    uint in_use = count(params, word, rows), expert = first_row / expert_rows + GROUP(1), begin = expert * expert_rows;
    uint tile = begin / 16 * 16 + GROUP(0) * TILE_ROWS;
    // A tile ends before the bound rows, or starts after the expert's.
    bool is_empty = tile + TILE_ROWS <= first_row || tile >= first_row + n || tile >= begin + expert_rows;
    Share share = share_of(weights, n, k, first_row, begin, expert_rows);
    const uchar *space = (const uchar *)dynamic;
    const uchar *of_warp = space + X_STAGES * X_STAGE + ITEM / 32 * W_STAGES * W_STAGE;
    Source in = {x, space, of_warp, (x_slots * k + 63) & ~63u, x_slots, k};
    Output out = {y, begin, expert_rows, first_row, n, piece, used, column, stride};
    // No launch writes weights, so the first ones may come before the launch before has ended. Few experts have no assignments.
    if (!is_empty && in_use > 0) copy_weights(local_address(of_warp), &share, k, 0);
    AWAIT_LAST();
    uint chunk = 0;
    for (uint from = 0; from < (is_empty ? 0 : in_use); from += LIST) {
        if (ITEM == 0) length = 0;
        __syncthreads();
        find(route, used, expert, from, min(from + LIST, in_use), list, &length);
        __syncthreads();
        uint all = length;
        bool is_last_list = in_use - from <= LIST;
        for (uint first = 0; first < all; first += TOKENS) {
            bool is_last = is_last_list && all - first <= TOKENS;
            chunk = multiply(&in, &share, &out, list + first, min(all - first, (uint)TOKENS), chunk, is_last);
        }
        // All have read the list.
        __syncthreads();
    }
    // Copies must not outlive the work group.
    end_copies();
    await_copies<0>();
}
