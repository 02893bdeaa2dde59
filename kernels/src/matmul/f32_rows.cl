// f32 activations, as the tiled products read them.

#define INPUT float

// Four values of a row of x from a column on.
FN float4 four_of_row(const GLOBAL float *x, uint row, uint k, uint column) {
    return LOADF4(x + (size_t)row * k + column);
}
