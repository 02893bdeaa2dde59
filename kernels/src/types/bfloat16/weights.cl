// BF16.

// Values in 16 bytes: in `Rows16`, rows of a column.
#define LANES 8

// Two values.
FN void upper_halves(uint word, PRIVATE float *low, PRIVATE float *high) {
    *low = AS_FLOAT(word << 16);
    *high = AS_FLOAT(word & 0xffff0000u);
}

// 16 bytes as values.
FN void lanes(uint4 bytes, float out[LANES]) {
    upper_halves(bytes.x, &out[0], &out[1]);
    upper_halves(bytes.y, &out[2], &out[3]);
    upper_halves(bytes.z, &out[4], &out[5]);
    upper_halves(bytes.w, &out[6], &out[7]);
}

// Four values, 8 aligned bytes.
FN void four_values(const GLOBAL uchar *from, float out[4]) {
    uint2 bytes = LOAD2(from);
    upper_halves(bytes.x, &out[0], &out[1]);
    upper_halves(bytes.y, &out[2], &out[3]);
}
