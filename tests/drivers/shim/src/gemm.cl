// Replaces rocBLAS: D = α · Aᵀ · B + β · D with column-major matrices, one work item per value of D.

KERNEL(256) gemm(const GLOBAL HALF *a, const GLOBAL HALF *b, GLOBAL float *d, uint m, uint n, uint k, uint lda, uint ldb,
                 uint ldd, uint alpha, uint beta) {
    BEGIN();
    uint at = GROUP(0) * 256u + ITEM;
    uint row = at % m, column = at / m;
    if (column >= n) return;
    const GLOBAL HALF *left = a + (size_t)row * lda;
    const GLOBAL HALF *right = b + (size_t)column * ldb;
    float sum = 0;
    for (uint i = 0; i < k; i++) sum = fma(LOAD_HALF(left, i), LOAD_HALF(right, i), sum);
    GLOBAL float *to = d + (size_t)column * ldd + row;
    float before = AS_FLOAT(beta) == 0.0f ? 0.0f : AS_FLOAT(beta) * *to;
    *to = AS_FLOAT(alpha) * sum + before;
}
