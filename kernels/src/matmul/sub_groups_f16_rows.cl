// f16 activations, as the products in sub-groups multiply them: in f16. 16 products are added up in f16, and
// larger sums in f32.

#pragma OPENCL EXTENSION cl_khr_fp16 : enable
half BUILT_IN sub_group_broadcast(half value, uint lane);

#define INPUT uchar
#define VALUE half
#define ROW_LENGTH(k) half_row_bytes(k)

FN VALUE tile_value(float value) { return convert_half(in_half_range(value)); }

// Adds the products of 16 columns: of the item's row of weights with the rows of x of all items. A power of
// two brings the largest of the item's 16 values to between 2 and 4. Sums of products with weights up to 1000
// then stay in the range of f16.
FN void add_columns(const GLOBAL uchar *x, uint column, const LOCAL half *w, PRIVATE float acc[WIDTH]) {
    half8 low = as_half8(LOAD4(x + column * 2)), high = as_half8(LOAD4(x + column * 2 + 16));
    half8 eight = fmax(fabs(low), fabs(high));
    half4 four = fmax(eight.lo, eight.hi);
    half largest = fmax(fmax(four.x, four.y), fmax(four.z, four.w));
    uint exponent = max(as_ushort(largest) >> 10 & 31, 1);
    half scale = as_half((ushort)((31 - exponent) << 10));
    float back = AS_FLOAT((111 + exponent) << 23);
    half own[WIDTH], sums[WIDTH];
    vstore8(low * scale, 0, own);
    vstore8(high * scale, 1, own);
    #pragma unroll
    for (uint r = 0; r < WIDTH; r++) sums[r] = 0;
    #pragma unroll
    for (uint c = 0; c < WIDTH; c++) {
        #pragma unroll
        for (uint r = 0; r < WIDTH; r++) sums[r] = fma(w[c * 64], sub_group_broadcast(own[c], r), sums[r]);
    }
    #pragma unroll
    for (uint r = 0; r < WIDTH; r++) {
        acc[r] = fma(convert_float(sums[r]), sub_group_broadcast(back, r), acc[r]);
    }
}
