// F32: for each column 16 values.

// Rows in 16 bytes.
#define LANES 4

FN uint group_bytes(uint columns) { return columns * 64; }

// 16 bytes as values.
FN void lanes(uint4 bytes, float out[LANES]) {
    out[0] = AS_FLOAT(bytes.x);
    out[1] = AS_FLOAT(bytes.y);
    out[2] = AS_FLOAT(bytes.z);
    out[3] = AS_FLOAT(bytes.w);
}

// Four rows of a column.
FN void column_values(const GLOBAL uchar *group, uint column, uint part, float out[4]) {
    lanes(LOAD4(group + column * 64 + part * 16), out);
}
