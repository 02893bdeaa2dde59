// Products of two matrices, tile by tile: a group computes 64 lines of the one by 64 of the other, STEP of what is summed over
// (the depth) at a time through local memory; an item computes 4 by 8 of them.
//
// In a tile the lines of one depth lie side by side.

#define TILE 64
#define STEP 16
// Floats from one depth of a tile to the next.
#define COLUMN 68
#define TILE_SPACE (STEP * COLUMN)

// The item's first line of the one tile, of which it has 4, and of the other, of which it has 4 and those 32 further on.
#define LINE (ITEM / 8 * 4)
#define LANE (ITEM % 8 * 4)
// The line of the other tile that is an item's number `j`.
#define LANE_OF(j) (LANE + (j) / 4 * 32 + (j) % 4)

// Where an item puts four lines of a tile: `i` counts all quads. Neighbours have lines side by side, or depths side by side.
#define QUADS (TILE / 4)
#define QUAD(i, by_lines) ((by_lines) ? (i) % QUADS : (i) / STEP)
#define DEPTH(i, by_lines) ((by_lines) ? (i) / QUADS : (i) % STEP)

FN void put_quad(LOCAL float *tile, uint quad, uint depth, const PRIVATE float four[4]) {
    *(LOCAL float4 *)(tile + depth * COLUMN + quad * 4) = FLOAT4(four[0], four[1], four[2], four[3]);
}

// Fills a tile with lines of a matrix, which lie `across` values apart; their values lie `along` apart. What is beyond the
// last line and the last value is zero.
FN void fill_tile(
    LOCAL float *tile, const GLOBAL ELEMENT *matrix, uint first_line, uint lines, size_t across, uint first, uint depth,
    size_t along
) {
    for (uint i = ITEM; i < STEP * QUADS; i += ITEMS) {
        uint quad = QUAD(i, across == 1), d = DEPTH(i, across == 1), line = first_line + quad * 4;
        float four[4];
        #pragma unroll
        for (uint j = 0; j < 4; j++) {
            bool exists = line + j < lines && first + d < depth;
            four[j] = exists ? LOAD_ELEMENT(matrix, (line + j) * across + (first + d) * along) : 0.0f;
        }
        put_quad(tile, quad, d, four);
    }
}

FN void clear_sums(PRIVATE float sums[4][8]) {
    #pragma unroll
    for (uint i = 0; i < 4; i++) {
        #pragma unroll
        for (uint j = 0; j < 8; j++) sums[i][j] = 0.0f;
    }
}

// Adds the products of two tiles.
FN void multiply(const LOCAL float *lines, const LOCAL float *lanes, PRIVATE float sums[4][8]) {
    #pragma unroll 8
    for (uint d = 0; d < STEP; d++) {
        float4 from = LOAD_LOCALF4(lines + d * COLUMN + LINE);
        float4 low = LOAD_LOCALF4(lanes + d * COLUMN + LANE), high = LOAD_LOCALF4(lanes + d * COLUMN + LANE + 32);
        float a[4] = {from.x, from.y, from.z, from.w};
        float b[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
        #pragma unroll
        for (uint i = 0; i < 4; i++) {
            #pragma unroll
            for (uint j = 0; j < 8; j++) sums[i][j] = fma(a[i], b[j], sums[i][j]);
        }
    }
}
