// Types with integer quanta, as the other sources read them: value = scale · (quantum − OFFSET) − minimum.
//
// A type says
//   OFFSET     what is taken from each quantum
//   UNEQUAL    1 if the two halves of a block have scales of their own
//   MINIMA     1 if a minimum is taken from each value; if UNEQUAL is 1, the two halves have minima of their own
//   group_bytes(columns)
//   quad_words(group, blocks, block, quad, part, out)    the quanta, signed bytes: four columns of each of four rows
//   block_scales(group, blocks, block, part, scales)     for each of four rows
// A `part` is four of a group's 16 rows, a `quad` four consecutive columns of a block of 32; `blocks` is how many
// blocks of 32 a row has.

// Rows in 16 bytes.
#define LANES 4

// Scales of the first and the last 16 columns of a block, and minima. `last_minimum` is that of the last 16 columns, set
// only if UNEQUAL and MINIMA are 1; otherwise `minimum` is that of the block.
typedef struct {
    float first[4];
    float last[4];
    float minimum[4];
    float last_minimum[4];
} Scales;

// Four bytes of each of four rows.
FN void words(uint4 bytes, uint out[4]) {
    out[0] = bytes.x;
    out[1] = bytes.y;
    out[2] = bytes.z;
    out[3] = bytes.w;
}

// Vector `vector` of a section, its bits from `shift` on.
FN void bits(const GLOBAL uchar *section, uint vector, uint part, uint shift, uint mask, uint out[4]) {
    words(LOAD4(section + vector * 64 + part * 16), out);
    for (uint r = 0; r < 4; r++) out[r] = (out[r] >> shift) & mask;
}

// Quads of a section of nibbles.
FN void nibbles(const GLOBAL uchar *section, uint block, uint quad, uint part, uint out[4]) {
    bits(section + block * 256, quad & 3, part, (quad >> 2) * 4, 0x0f0f0f0fu, out);
}

// Quads of nibbles with their fifth bits.
FN void five_bits(const GLOBAL uchar *low, const GLOBAL uchar *high, uint block, uint quad, uint part, uint out[4]) {
    uint fifth[4];
    nibbles(low, block, quad, part, out);
    bits(high + block * 64, 0, part, quad, 0x01010101u, fifth);
    for (uint r = 0; r < 4; r++) out[r] |= fifth[r] << 4;
}

// f16 of four rows.
FN void four_halves(const GLOBAL uchar *section, uint part, float out[4]) {
    uint2 both = LOAD2(section + part * 8);
    halves(both.x, &out[0], &out[1]);
    halves(both.y, &out[2], &out[3]);
}

// The same scale for a whole block.
FN void whole(PRIVATE Scales *scales) {
    for (uint r = 0; r < 4; r++) {
        scales->last[r] = scales->first[r];
        scales->minimum[r] = 0.0f;
    }
}

// Scales and minima of a type that has f16 d and dmin for 256 columns, and a byte each for 32.
FN void two_level(const GLOBAL uchar *subs, const GLOBAL uchar *tops, uint block, uint part, PRIVATE Scales *scales) {
    float d[4], dmin[4];
    four_halves(tops + block / 8 * 64, part, d);
    four_halves(tops + block / 8 * 64 + 32, part, dmin);
    uint scale = LOAD1(subs + block * 32 + part * 4), minimum = LOAD1(subs + block * 32 + 16 + part * 4);
    for (uint r = 0; r < 4; r++) {
        scales->first[r] = d[r] * (float)((scale >> (8 * r)) & 255);
        scales->last[r] = scales->first[r];
        scales->minimum[r] = dmin[r] * (float)((minimum >> (8 * r)) & 255);
    }
}

// f16 scales and negated minima for each block.
FN void scale_and_minimum(const GLOBAL uchar *section, uint block, uint part, PRIVATE Scales *scales) {
    float m[4];
    four_halves(section + block * 64, part, scales->first);
    four_halves(section + block * 64 + 32, part, m);
    for (uint r = 0; r < 4; r++) {
        scales->last[r] = scales->first[r];
        scales->minimum[r] = -m[r];
    }
}
