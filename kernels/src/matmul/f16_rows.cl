// f16 activations, as the tiled products read them.

#define INPUT uchar

// Four values of a row of x from a column on.
FN float4 four_of_row(const GLOBAL uchar *x, uint row, uint k, uint column) {
    uint2 bytes = LOAD2(x + (size_t)row * half_row_bytes(k) + column * 2);
    float values[4];
    halves(bytes.x, &values[0], &values[1]);
    halves(bytes.y, &values[2], &values[3]);
    return FLOAT4(values[0], values[1], values[2], values[3]);
}
