// The place of the largest value of each row: one group a row.

KERNEL(ITEMS) arg_max(
    const GLOBAL uint *RESTRICT params, const GLOBAL float *RESTRICT x, GLOBAL uint *RESTRICT out,
    uint rows, uint word, uint width
) {
    BEGIN();
    SHARED ulong scratch[REDUCE_SPACE];
    bool is_used = GROUP(0) < count(params, word, rows);
    width = is_used ? width : 0;
    const GLOBAL float *from = x + (size_t)GROUP(0) * width;
    ulong best = ranked(NAN, 0);
    for (uint first = 0; first < width; first += ITEMS) {
        uint c = first + ITEM;
        if (c < width) best = max(best, ranked(from[c], c));
    }
    best = group_best(scratch, best);
    if (ITEM == 0 && is_used) out[GROUP(0)] = place_of(best);
}
