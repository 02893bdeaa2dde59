// f32 activations, as the products in sub-groups multiply them.

#define INPUT float
#define VALUE float
#define ROW_LENGTH(k) (k)

FN VALUE tile_value(float value) { return value; }

// Adds the products of 16 columns: of the item's row of weights with the rows of x of all items.
FN void add_columns(const GLOBAL float *x, uint column, const LOCAL float *w, PRIVATE float acc[WIDTH]) {
    float own[WIDTH];
    #pragma unroll
    for (uint i = 0; i < WIDTH; i += 4) {
        float4 four = LOADF4(x + column + i);
        own[i] = four.x;
        own[i + 1] = four.y;
        own[i + 2] = four.z;
        own[i + 3] = four.w;
    }
    #pragma unroll
    for (uint c = 0; c < WIDTH; c++) {
        #pragma unroll
        for (uint r = 0; r < WIDTH; r++) acc[r] = fma(w[c * 64], sub_group_broadcast(own[c], r), acc[r]);
    }
}
