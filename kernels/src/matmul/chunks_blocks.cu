// The way of quantised weights through a warp's ring. A work group takes some groups of 16 rows of weights, a warp of it every
// WARPS-th chunk of CHUNK columns. A group of rows has SECTIONS sections, with SECTION_BYTES(s) bytes for 256 columns.

#define CHUNK_BLOCKS (CHUNK / 32)
// Columns that the warps take at once.
#define SEGMENT (WARPS * CHUNK)

// A warp's chunks in their order: segment by segment all groups of rows.
typedef struct {
    const uchar *weights; // of the work group's first group of rows
    uint columns, group_bytes;
    uint groups;          // of rows
    uint column, group;   // the next chunk
    uint left;            // chunks from there
} Chunks;

FN Chunks chunks_of(const uchar *weights, uint columns, uint groups) {
    Chunks chunks = {weights, columns, group_bytes(columns), groups, ITEM / 32 * CHUNK, 0, 0};
    if (chunks.column < columns) chunks.left = (columns - chunks.column + SEGMENT - 1) / SEGMENT * groups;
    return chunks;
}

FN void advance(Chunks *chunks) {
    chunks->left--;
    if (++chunks->group == chunks->groups) {
        chunks->group = 0;
        chunks->column += SEGMENT;
    }
}

// A chunk's sections stand in a stage as those of a group of CHUNK columns.
FN void fill(Ring *ring, Chunks *chunks) {
    if (chunks->left == 0) {
        ring_skip(ring);
        return;
    }
    if (FILLS) {
        uint columns = min((uint)CHUNK, chunks->columns - chunks->column), total = 0;
        #pragma unroll
        for (uint s = 0; s < SECTIONS; s++) total += columns * SECTION_BYTES(s) / 256;
        ring_expect(ring, total);
        const uchar *from = chunks->weights + (size_t)chunks->group * chunks->group_bytes;
        uint offset = 0;
        #pragma unroll
        for (uint s = 0; s < SECTIONS; s++) {
            ring_copy(ring, offset, from + chunks->column / 32 * SECTION_BYTES(s) / 8, columns * SECTION_BYTES(s) / 256);
            offset += CHUNK * SECTION_BYTES(s) / 256;
            from += chunks->columns / 32 * SECTION_BYTES(s) / 8;
        }
    }
    ring_filled(ring);
    advance(chunks);
}
