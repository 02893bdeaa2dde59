// The way of weights that stand row by row through a warp's ring. A work group takes some sets of SET rows of weights, a warp
// of it every WARPS-th chunk of CHUNK columns.

// Values in 16 bytes of weights, and columns that a warp's lanes take at once.
#define VECTOR (16 / VALUE_BYTES)
#define PASS (32 * VECTOR)
#define PASSES (CHUNK / PASS)
// Columns that the warps take at once.
#define SEGMENT (WARPS * CHUNK)
#define SET 4

// A warp's chunks in their order: segment by segment all sets of rows.
typedef struct {
    const uchar *weights; // of the work group's first row
    uint pitch;           // values from one row to the next
    uint sets;            // of rows
    uint column, set;     // the next chunk
    uint left;            // chunks from there
} Chunks;

FN Chunks chunks_of(const uchar *weights, uint pitch, uint sets) {
    Chunks chunks = {weights, pitch, sets, ITEM / 32 * CHUNK, 0, 0};
    if (chunks.column < pitch) chunks.left = (pitch - chunks.column + SEGMENT - 1) / SEGMENT * sets;
    return chunks;
}

FN void advance(Chunks *chunks) {
    chunks->left--;
    if (++chunks->set == chunks->sets) {
        chunks->set = 0;
        chunks->column += SEGMENT;
    }
}

FN const uchar *place_of(const Chunks *chunks, uint row) {
    return chunks->weights + (((size_t)chunks->set * SET + row) * chunks->pitch + chunks->column) * VALUE_BYTES;
}

FN void fill(Ring *ring, Chunks *chunks) {
    if (chunks->left == 0) {
        ring_skip(ring);
        return;
    }
    if (FILLS) {
        uint bytes = min((uint)CHUNK, chunks->pitch - chunks->column) * VALUE_BYTES;
        ring_expect(ring, SET * bytes);
        #pragma unroll
        for (uint r = 0; r < SET; r++) ring_copy(ring, r * CHUNK * VALUE_BYTES, place_of(chunks, r), bytes);
    }
    ring_filled(ring);
    advance(chunks);
}
