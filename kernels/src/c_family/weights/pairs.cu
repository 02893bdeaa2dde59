// Quantised weights as mma.m16n8k32 takes them: see few_blocks.cu.

#define PLACE (ITEM % 4 * 64 + ITEM % 32 / 4 * 8)

// Scales of the first and the last 16 columns of a block, and minima, of two rows: see `Scales`.
typedef struct {
    float first[2], last[2], minimum[2], last_minimum[2];
} Pair;

FN void pair_halves(const uchar *section, float out[2]) {
    halves(LOAD1(section + ITEM % 32 / 4 * 4), &out[0], &out[1]);
}

FN void pair_nibbles(const uchar *section, uint block, uint out[4]) {
    uint2 both = LOAD2(section + block * 256 + PLACE);
    out[0] = both.x & 0x0f0f0f0fu;
    out[1] = both.y & 0x0f0f0f0fu;
    out[2] = (both.x >> 4) & 0x0f0f0f0fu;
    out[3] = (both.y >> 4) & 0x0f0f0f0fu;
}

FN void pair_fifths(const uchar *section, uint block, uint out[4]) {
    uint2 both = LOAD2(section + block * 64 + ITEM % 32 / 4 * 8);
    uint t = ITEM % 4;
    out[0] |= ((both.x >> t) & 0x01010101u) << 4;
    out[1] |= ((both.y >> t) & 0x01010101u) << 4;
    out[2] |= ((both.x >> (t + 4)) & 0x01010101u) << 4;
    out[3] |= ((both.y >> (t + 4)) & 0x01010101u) << 4;
}

FN void pair_whole(const uchar *section, Pair *pair) {
    pair_halves(section, pair->first);
    pair->minimum[0] = pair->minimum[1] = 0.0f;
}

FN void pair_minimum(const uchar *section, Pair *pair) {
    float m[2];
    pair_halves(section, pair->first);
    pair_halves(section + 32, m);
    pair->minimum[0] = -m[0];
    pair->minimum[1] = -m[1];
}

// f16 d and dmin for 256 columns, and a byte each for 32.
FN void pair_two_level(const uchar *subs, const uchar *tops, uint block, Pair *pair) {
    float d[2], dmin[2];
    pair_halves(tops + block / 8 * 64, d);
    pair_halves(tops + block / 8 * 64 + 32, dmin);
    uint scale = *(const ushort *)(subs + block * 32 + ITEM % 32 / 4 * 2);
    uint minimum = *(const ushort *)(subs + block * 32 + 16 + ITEM % 32 / 4 * 2);
    pair->first[0] = d[0] * (float)(scale & 255);
    pair->first[1] = d[1] * (float)(scale >> 8);
    pair->minimum[0] = dmin[0] * (float)(minimum & 255);
    pair->minimum[1] = dmin[1] * (float)(minimum >> 8);
}

