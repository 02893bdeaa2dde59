// The candidates of a part of a row: one group a row and part.

// A word that depends on all bits of another one.
FN uint mixed(uint word) {
    word = (word ^ (word >> 16)) * 0x85ebca6bu;
    word = (word ^ (word >> 13)) * 0xc2b2ae35u;
    return word ^ (word >> 16);
}

// Gumbel noise from a uniform word. Near 1, -log is as exact as near 0.
FN float noise_of(uint word) {
    float low = ((float)word + 0.5f) * 2.3283064e-10f;
    float high = ((float)~word + 0.5f) * 2.3283064e-10f;
    float series = low * (1.0f + low * (0.5f + low * (0.33333334f + low * 0.25f)));
    return -log(low < 0.015625f ? series : -log(high));
}

// A candidate with noise: its key is (value - largest) * scale + noise.
FN ulong with_noise(ulong rank, float largest, uint low, uint high, float scale) {
    uint id = place_of(rank);
    float noise = noise_of(mixed(mixed(id * 0x9e3779b9u + low) ^ high));
    return candidate(scaled(value_of(rank), largest, scale) + noise, id);
}

KERNEL(ITEMS) peaks(
    const GLOBAL uint *RESTRICT params, const GLOBAL float *RESTRICT x, GLOBAL uint *RESTRICT out,
    uint rows, uint word, uint width, uint part
) {
    BEGIN();
    SHARED ulong ranks[ITEMS];
    SHARED ulong kept[KEPT];
    SHARED float scratch[REDUCE_SPACE];
    SHARED ulong best_ranks[REDUCE_SPACE];
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
    uint draw = draw_of(params, word, rows);
    float scale = is_used ? AS_FLOAT(params[draw + 2]) : 0.0f;
    ulong drawn = 0;
    for (uint i = 0; i < EACH; i++) {
        uint c = ITEM + i * ITEMS;
        ulong rank = scale > 0.0f && c < columns ? candidate(from[c], begin + c) : 0;
        if (rank != 0) drawn = max(drawn, with_noise(rank, largest, params[draw], params[draw + 1], scale));
    }
    drawn = group_best(best_ranks, drawn);
    if (is_used) write_record(out + ((size_t)GROUP(0) * parts + GROUP(1)) * RECORD, kept, sum, drawn);
}
