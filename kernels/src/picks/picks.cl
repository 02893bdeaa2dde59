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
    for (uint part = ITEM; part < parts; part += ITEMS) {
        const GLOBAL uint *record = from + (size_t)part * RECORD;
        if (record[BEST] != ~0u) {
            float weight = weight_of(AS_FLOAT(record[2 * BEST]), largest);
            sum += AS_FLOAT(record[2 * BEST + 1]) * weight;
        }
    }
    sum = group_sum(scratch, sum);
    if (is_used) write_record(out + (size_t)GROUP(0) * RECORD, kept, sum);
}
