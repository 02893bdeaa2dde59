// F16.

// Values in 16 bytes: in `Rows16`, rows of a column.
#define LANES 8

// 16 bytes as values.
FN void lanes(uint4 bytes, float out[LANES]) {
    halves(bytes.x, &out[0], &out[1]);
    halves(bytes.y, &out[2], &out[3]);
    halves(bytes.z, &out[4], &out[5]);
    halves(bytes.w, &out[6], &out[7]);
}

// Four values, 8 aligned bytes.
FN void four_values(const GLOBAL uchar *from, float out[4]) {
    uint2 bytes = LOAD2(from);
    halves(bytes.x, &out[0], &out[1]);
    halves(bytes.y, &out[2], &out[3]);
}
