// What the products of row-major f16 or bf16 weights with f16 activations share. WEIGHTS_BF16 says which.
//
// Local memory holds tiles of rows of 64 values, 128 bytes: 16-byte piece i of row r lies where piece i ^ r % 8 would.
// So neither eight rows' pieces of one column nor a row's eight pieces share a bank, and it is the form that `wgmma` reads.

#define TILE_K 64
#define TILE_ROW 128

// Values from one row of weights, or of activations, to the next.
FN uint pitch_of(uint k) { return (k + 63) & ~63u; }

// Where piece `piece` of row `row` of a tile is.
FN uint piece_of(uint row, uint piece) { return row * TILE_ROW + ((piece ^ (row & 7)) << 4); }

// Whether rows of y can be written 16 bytes at a time.
FN bool has_whole_pieces(const GLOBAL float *y, uint n, uint stride) {
    return ((size_t)y & 15) == 0 && (stride & 3) == 0 && (n & 3) == 0;
}

FN void write_one(GLOBAL float *to, float value, bool accumulate) { *to = accumulate ? *to + value : value; }

// Where results go.
typedef struct {
    GLOBAL float *y;
    uint rows, n, stride;
    bool accumulate, whole;
} Output;

// Writes four neighbours of a row.
FN void write_four(Output to, uint row, uint column, float4 value) {
    GLOBAL float *at = to.y + (size_t)row * to.stride + column;
    if (to.whole) {
        if (column >= to.n) return;
        if (to.accumulate) {
            float4 before = *(const GLOBAL float4 *)at;
            value.x += before.x; value.y += before.y; value.z += before.z; value.w += before.w;
        }
        *(GLOBAL float4 *)at = value;
    } else {
        if (column < to.n) write_one(at, value.x, to.accumulate);
        if (column + 1 < to.n) write_one(at + 1, value.y, to.accumulate);
        if (column + 2 < to.n) write_one(at + 2, value.z, to.accumulate);
        if (column + 3 < to.n) write_one(at + 3, value.w, to.accumulate);
    }
}

// Writes 16 · `PAIRS` columns of 16 rows from `row` and `column`: the fragments that a warp has, in which a thread's values
// are two neighbours of two rows. Threads exchange them in pairs, so that each writes four neighbours.
template <int PAIRS> FN void write_fragments(Output to, const float *d, uint row, uint column) {
    const uint AT_ONCE = PAIRS < 8 ? PAIRS : 8;
    uint lane = threadIdx.x % 32, odd = lane & 1;
    #pragma unroll
    for (uint half = 0; half < 2; half++) {
        uint r = row + half * 8 + lane / 4, c = column + odd * 8 + (lane & 2) * 2;
        GLOBAL float *line = to.y + (size_t)r * to.stride;
        if (to.whole) {
            #pragma unroll
            for (uint first = 0; first < PAIRS; first += AT_ONCE) {
                float4 before[AT_ONCE];
                #pragma unroll
                for (uint i = 0; i < AT_ONCE; i++) {
                    uint at = c + (first + i) * 16;
                    bool is_read = to.accumulate && r < to.rows && at < to.n;
                    before[i] = is_read ? *(const GLOBAL float4 *)(line + at) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                }
                #pragma unroll
                for (uint i = 0; i < AT_ONCE; i++) {
                    const float *left = d + (first + i) * 8 + half * 2, *right = left + 4;
                    float x = __shfl_xor_sync(0xffffffff, odd ? left[0] : right[0], 1);
                    float y = __shfl_xor_sync(0xffffffff, odd ? left[1] : right[1], 1);
                    float4 four = odd ? make_float4(x, y, right[0], right[1]) : make_float4(left[0], left[1], x, y);
                    if (to.accumulate) {
                        four.x += before[i].x; four.y += before[i].y; four.z += before[i].z; four.w += before[i].w;
                    }
                    uint at = c + (first + i) * 16;
                    if (r < to.rows && at < to.n) *(GLOBAL float4 *)(line + at) = four;
                }
            }
        } else if (r < to.rows) {
            #pragma unroll
            for (uint i = 0; i < PAIRS * 4; i++) {
                uint at = column + i / 2 * 8 + (lane & 3) * 2 + i % 2;
                if (at < to.n) write_one(line + at, d[i / 2 * 4 + half * 2 + i % 2], to.accumulate);
            }
        }
    }
}
