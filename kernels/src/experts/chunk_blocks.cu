// Chunks of quantised weights. The sections of a chunk stand in local memory as those of a group of CHUNK columns.

// A warp starts the copies of a chunk of a group.
FN void copy_chunk(uint to, const uchar *group, uint k, uint column) {
    uint columns = min((uint)CHUNK, k - column);
    #pragma unroll
    for (uint s = 0; s < SECTIONS; s++) {
        const uchar *from = group + column / 32 * SECTION_BYTES(s) / 8;
        #pragma unroll 1
        for (uint b = ITEM % 32 * 16; b < columns * SECTION_BYTES(s) / 256; b += 512) copy16(to + b, from + b, 16);
        to += CHUNK * SECTION_BYTES(s) / 256;
        group += k / 32 * SECTION_BYTES(s) / 8;
    }
}
