// IQ4_XS: nibbles that index a table of signed bytes, then i8 scales, then for each 256 columns f16 d.

#define OFFSET 0
#define UNEQUAL 0
#define MINIMA 0

FN uint group_bytes(uint columns) { return (columns / 256 * (8 * 272 + 32) + 63) & ~63u; }

FN void block_scales(const GLOBAL uchar *group, uint blocks, uint block, uint part, PRIVATE Scales *scales) {
    float d[4];
    four_halves(group + blocks * 272 + block / 8 * 32, part, d);
    uint subs = LOAD1(group + blocks * 256 + block * 16 + part * 4);
    for (uint r = 0; r < 4; r++) scales->first[r] = d[r] * (float)BYTE(subs, r);
    whole(scales);
}
