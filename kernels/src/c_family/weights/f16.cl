// F16: for each column 16 values.

// Rows in 16 bytes.
#define LANES 8

FN uint group_bytes(uint columns) { return columns * 32; }

// 16 bytes as values.
FN void lanes(uint4 bytes, float out[LANES]) {
    halves(bytes.x, &out[0], &out[1]);
    halves(bytes.y, &out[2], &out[3]);
    halves(bytes.z, &out[4], &out[5]);
    halves(bytes.w, &out[6], &out[7]);
}

// Four rows of a column.
FN void column_values(const GLOBAL uchar *group, uint column, uint part, float out[4]) {
    uint2 bytes = LOAD2(group + column * 32 + part * 8);
    halves(bytes.x, &out[0], &out[1]);
    halves(bytes.y, &out[2], &out[3]);
}
