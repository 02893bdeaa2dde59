// F32.

// Values in 16 bytes: in `Rows16`, rows of a column.
#define LANES 4

// 16 bytes as values.
FN void lanes(uint4 bytes, float out[LANES]) {
    out[0] = AS_FLOAT(bytes.x);
    out[1] = AS_FLOAT(bytes.y);
    out[2] = AS_FLOAT(bytes.z);
    out[3] = AS_FLOAT(bytes.w);
}

// Four values, 16 aligned bytes.
FN void four_values(const GLOBAL uchar *from, float out[4]) { lanes(LOAD4(from), out); }
