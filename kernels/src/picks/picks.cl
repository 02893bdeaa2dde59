// The candidates of a row, from those of its parts: one group a row.

// Candidate `at` of the records of a row.
FN ulong recorded(const GLOBAL uint *records, uint at) {
    const GLOBAL uint *record = records + (size_t)(at / BEST) * RECORD;
    uint place = record[BEST + at % BEST];
    return place == ~0u ? 0 : candidate(AS_FLOAT(record[at % BEST]), place);
}

KERNEL(ITEMS) picks(
    const GLOBAL uint *RESTRICT params, const GLOBAL uint *RESTRICT x, GLOBAL uint *RESTRICT out,
    uint rows, uint word, uint parts
) {
    BEGIN();
    SHARED ulong ranks[ITEMS];
    SHARED ulong kept[KEPT];
    SHARED float scratch[REDUCE_SPACE];
    SHARED ulong best_ranks[REDUCE_SPACE];
    bool is_used = GROUP(0) < count(params, word, rows);
    parts = is_used ? parts : 0;
    const GLOBAL uint *from = x + (size_t)GROUP(0) * parts * RECORD;
    if (ITEM < BEST) kept[ITEM] = 0;
    BARRIER();
    for (uint first = 0; first < parts * BEST; first += EACH * ITEMS) {
        ulong earlier = ITEM < BEST ? kept[ITEM] : 0;
        ulong best = 0;
        for (uint i = 0; i < EACH; i++) {
            uint at = first + ITEM + i * ITEMS;
            if (at < parts * BEST) best = max(best, recorded(from, at));
        }
        uint order = order_of(ranks, best);
        if (order < BEST) {
            for (uint i = 0; i < EACH; i++) {
                uint at = first + ITEM + i * ITEMS;
                kept[order * EACH + i] = at < parts * BEST ? recorded(from, at) : 0;
            }
        }
        if (ITEM < BEST) kept[BEST * EACH + ITEM] = earlier;
        BARRIER();
        sort_best(ranks, kept, KEPT);
    }
    float largest = value_of(kept[0]), sum = 0.0f;
    float scale = is_used ? AS_FLOAT(params[draw_of(params, word, rows) + 2]) : 0.0f;
    ulong drawn = 0;
    for (uint part = ITEM; part < parts; part += ITEMS) {
        const GLOBAL uint *record = from + (size_t)part * RECORD;
        if (record[BEST] != ~0u) {
            float weight = weight_of(AS_FLOAT(record[2 * BEST]), largest);
            sum += AS_FLOAT(record[2 * BEST + 1]) * weight;
        }
        if (record[2 * BEST + 3] != ~0u) {
            float lower = scaled(AS_FLOAT(record[2 * BEST]), largest, scale);
            drawn = max(drawn, candidate(AS_FLOAT(record[2 * BEST + 2]) + lower, record[2 * BEST + 3]));
        }
    }
    sum = group_sum(scratch, sum);
    drawn = group_best(best_ranks, drawn);
    if (is_used) write_record(out + (size_t)GROUP(0) * RECORD, kept, sum, drawn);
}
