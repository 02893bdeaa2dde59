// Product for many rows on the matrix units of AMD's and Intel's devices. A group takes TILE rows of x and as
// many rows of weights, 32 columns at a time through local memory. Its waves (sub-groups) divide the tile's
// result, with half of the rows each unless the device's definitions give WAVE_ROWS.
//
// The next columns are loaded while the current ones are multiplied.

#define TILE_K 32
// Stride of tile rows in values: eight rows' 16 bytes of one column have no bank conflict.
#define TILE_PITCH (TILE_K + 8)
#ifndef WAVE_ROWS
#define WAVE_ROWS (TILE / 2)
#endif
#define WAVE_COLUMNS (TILE * TILE / WAVE_ROWS * WAVE / ITEMS)
#define WAVES_ABREAST (TILE / WAVE_COLUMNS)
// Pieces of 16 bytes of a tile that an item copies, APART rows apart.
#define APART (ITEMS / 4)
#define PIECES (TILE / APART)
// Loads a lane's part of the left matrix, if it differs from that of the right one.
#ifndef LOAD_LEFT
#define LOAD_LEFT load_fragment
#endif

#if WEIGHTS_BF16
// Converts a float to bf16, rounded to nearest, ties to even. NaN is preserved.
FN uint bf16_bits(float value) {
    uint bits = AS_UINT(value);
    return (isnan(value) ? bits : bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
}

// Converts the two f16 values of a word to bf16.
FN uint x_word(uint word) {
    float low, high;
    halves(word, &low, &high);
    return bf16_bits(low) | bf16_bits(high) << 16;
}
#else
FN uint x_word(uint word) { return word; }
#endif

// Loads an item's pieces of a tile. Rows beyond `last` repeat it.
FN void load_pieces(PRIVATE uint4 *pieces, const GLOBAL ushort *from, uint last, uint pitch) {
    #pragma unroll
    for (uint i = 0; i < PIECES; i++) {
        uint row = min(ITEM / 4 + i * APART, last);
        pieces[i] = LOAD4(from + (size_t)row * pitch + ITEM % 4 * 8);
    }
}

FN void put_piece(LOCAL ushort *tile, uint i, uint4 piece) {
    *(LOCAL uint4 *)(tile + (ITEM / 4 + i * APART) * TILE_PITCH + ITEM % 4 * 8) = piece;
}

// Loads a lane's part of SIDE rows of a tile.
FN void load_fragment(PRIVATE uint *out, const LOCAL ushort *rows, uint lane) {
    #pragma unroll
    for (uint i = 0; i < WORDS; i += 4) {
        uint4 four = LOAD_LOCAL4(rows + lane_row(lane) * TILE_PITCH + lane_value(lane) + i * 2);
        out[i] = four.x;
        out[i + 1] = four.y;
        out[i + 2] = four.z;
        out[i + 3] = four.w;
    }
}

KERNEL(ITEMS) matmul_fragments(
    const GLOBAL uint *RESTRICT params, const GLOBAL ushort *RESTRICT weights, const GLOBAL ushort *RESTRICT x,
    GLOBAL float *RESTRICT y, uint rows, uint word, uint n, uint k, uint accumulate, uint stride
) {
    BEGIN();
    SHARED ushort tile_x[TILE * TILE_PITCH] ALIGNED;
    SHARED ushort tile_w[TILE * TILE_PITCH] ALIGNED;
    FRAGMENT_SPACE();
    uint used = count(params, word, rows), m0 = GROUP(0) * TILE, n0 = GROUP(1) * TILE;
    // Groups beyond the count have no columns. They load row m0, which exists, and write none.
    uint last = max(used, m0 + 1) - 1, pitch = half_pitch(k), end = m0 < used ? pitch : 0;
    uint lane = ITEM % WAVE, wave = ITEM / WAVE;
    uint wave_row = wave / WAVES_ABREAST * WAVE_ROWS, wave_column = wave % WAVES_ABREAST * WAVE_COLUMNS;
    const GLOBAL ushort *from_x = x + (size_t)m0 * pitch, *from_w = weights + (size_t)n0 * pitch;
    uint4 next_x[PIECES], next_w[PIECES];
    load_pieces(next_x, from_x, last - m0, pitch);
    load_pieces(next_w, from_w, n - 1 - n0, pitch);
    float d[WAVE_ROWS / SIDE][WAVE_COLUMNS / SIDE][SUMS];
    #pragma unroll
    for (uint i = 0; i < WAVE_ROWS / SIDE; i++) {
        #pragma unroll
        for (uint j = 0; j < WAVE_COLUMNS / SIDE; j++) {
            #pragma unroll
            for (uint e = 0; e < SUMS; e++) d[i][j][e] = 0.0f;
        }
    }
    for (uint at = TILE_K; at <= end; at += TILE_K) {
        BARRIER();
        #pragma unroll
        for (uint i = 0; i < PIECES; i++) {
            uint4 piece = next_x[i];
            put_piece(tile_x, i, UINT4(x_word(piece.x), x_word(piece.y), x_word(piece.z), x_word(piece.w)));
            put_piece(tile_w, i, next_w[i]);
        }
        BARRIER();
        if (at < pitch) {
            load_pieces(next_x, from_x + at, last - m0, pitch);
            load_pieces(next_w, from_w + at, n - 1 - n0, pitch);
        }
        #pragma unroll
        for (uint c = 0; c < TILE_K; c += DEPTH) {
            uint a[WAVE_ROWS / SIDE][WORDS], b[WAVE_COLUMNS / SIDE][WORDS];
            #pragma unroll
            for (uint i = 0; i < WAVE_ROWS / SIDE; i++) {
                LOAD_LEFT(a[i], tile_x + (wave_row + i * SIDE) * TILE_PITCH + c, lane);
            }
            #pragma unroll
            for (uint j = 0; j < WAVE_COLUMNS / SIDE; j++) {
                load_fragment(b[j], tile_w + (wave_column + j * SIDE) * TILE_PITCH + c, lane);
            }
            #pragma unroll
            for (uint i = 0; i < WAVE_ROWS / SIDE; i++) {
                #pragma unroll
                for (uint j = 0; j < WAVE_COLUMNS / SIDE; j++) { MULTIPLY(d[i][j], a[i], b[j]); }
            }
        }
    }
    #pragma unroll
    for (uint i = 0; i < WAVE_ROWS / SIDE; i++) {
        #pragma unroll
        for (uint j = 0; j < WAVE_COLUMNS / SIDE; j++) {
            uint row = m0 + wave_row + i * SIDE, column = n0 + wave_column + j * SIDE + lane_row(lane);
            if (accumulate) {
                // Values beyond the edge repeat the edge and are not written, so no load waits for another.
                #pragma unroll
                for (uint e = 0; e < SUMS; e++) {
                    uint from = min(row + sum_row(lane, e), last);
                    d[i][j][e] += y[(size_t)from * stride + min(column, n - 1)];
                }
            }
            #pragma unroll
            for (uint e = 0; e < SUMS; e++) {
                uint to = row + sum_row(lane, e);
                if (to < used && column < n) y[(size_t)to * stride + column] = d[i][j][e];
            }
        }
    }
}
