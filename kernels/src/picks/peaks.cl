// The candidates of a part of a row: one group a row and part.

KERNEL(ITEMS) peaks(
    const GLOBAL uint *RESTRICT params, const GLOBAL float *RESTRICT x, GLOBAL uint *RESTRICT out,
    uint rows, uint word, uint width, uint part
) {
    BEGIN();
    SHARED ulong ranks[ITEMS];
    SHARED ulong kept[KEPT];
    SHARED float scratch[REDUCE_SPACE];
    bool is_used = GROUP(0) < count(params, word, rows);
    uint parts = width / part + (width % part > 0 ? 1 : 0), begin = GROUP(1) * part;
    uint columns = is_used ? min(part, width - begin) : 0;
    const GLOBAL float *from = x + (size_t)(is_used ? GROUP(0) : 0) * width + begin;
    ulong best = 0;
    for (uint i = 0; i < EACH; i++) {
        uint c = ITEM + i * ITEMS;
        if (c < columns) best = max(best, candidate(from[c], begin + c));
    }
    uint order = order_of(ranks, best);
    if (order < BEST) {
        for (uint i = 0; i < EACH; i++) {
            uint c = ITEM + i * ITEMS;
            kept[order * EACH + i] = c < columns ? candidate(from[c], begin + c) : 0;
        }
    }
    BARRIER();
    sort_best(ranks, kept, BEST * EACH);
    float largest = value_of(kept[0]), sum = 0.0f;
    for (uint i = 0; i < EACH; i++) {
        uint c = ITEM + i * ITEMS;
        ulong rank = c < columns ? candidate(from[c], begin + c) : 0;
        if (rank != 0) sum += weight_of(value_of(rank), largest);
    }
    sum = group_sum(scratch, sum);
    if (is_used) write_record(out + ((size_t)GROUP(0) * parts + GROUP(1)) * RECORD, kept, sum);
}
