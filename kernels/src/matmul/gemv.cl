// Products for few rows of x: a group takes 16 rows of weights and reads them once for up to eight rows of x.

KERNEL(ITEMS) matmul_gemv(
    const GLOBAL uint *RESTRICT params, const GLOBAL uchar *RESTRICT weights, const GLOBAL INPUT *RESTRICT x,
    GLOBAL float *RESTRICT y, uint rows, uint word, uint n, uint k, uint accumulate
) {
    LOCAL float partial[PASS * 16 * (STRIDE + 17)];
    const GLOBAL uchar *group = weights + (size_t)GROUP(0) * group_bytes(k);
    // With room for one row only, nothing waits for the count: it matters when the row is written.
    uint used = rows == 1 ? 1 : count(params, word, rows);
    for (uint first = 0; first < used; first += 8) {
        const GLOBAL INPUT *from = x + (size_t)first * ROW_LENGTH(k);
        GLOBAL float *to = y + (size_t)first * n;
        uint left = used - first;
        if (left == 1) {
            uint writable = rows == 1 ? count(params, word, rows) : left;
            rows_1(partial, group, from, to, left, writable, n, k, accumulate);
        } else if (left <= 4) {
            rows_4(partial, group, from, to, left, left, n, k, accumulate);
        } else {
            rows_8(partial, group, from, to, left, left, n, k, accumulate);
        }
    }
}
