// The best candidates of a group's values, as ranks: see `ranked`. NaN and -inf are no candidates and have the rank 0.

// Number of candidates that a record holds, and its words: values, ids, the largest value, the sum of weights, the key
// and the id of the drawn candidate.
#define BEST 64
#define RECORD (2 * BEST + 4)
// Number of values that an item reads at once, and of ranks in `kept`.
#define EACH 16
#define KEPT (BEST * (EACH + 1))

FN ulong candidate(float value, uint place) {
    ulong rank = ranked(value, place);
    uint key = (uint)(rank >> 32);
    if (key < 0x00800000u) return 0;
    // Infinity counts as the largest finite number.
    return ((ulong)min(key, 0xff7fffffu) << 32) | (uint)rank;
}

// The value of a candidate.
FN float value_of(ulong rank) {
    uint key = (uint)(rank >> 32);
    return AS_FLOAT(key & 0x80000000u ? key ^ 0x80000000u : ~key);
}

// exp(value - largest). Halves keep the difference finite.
FN float weight_of(float value, float largest) {
    float half_way = 0.5f * value - 0.5f * largest;
    return half_way < -45.0f ? 0.0f : exp(2.0f * half_way);
}

// (value - largest) * scale. Halves keep the difference finite.
FN float scaled(float value, float largest, float scale) { return (0.5f * value - 0.5f * largest) * (2.0f * scale); }

// Index of the parameter words of the row's draw: the words of a seed, and a scale. The draws are the last words in use.
FN uint draw_of(const GLOBAL uint *params, uint word, uint rows) {
    return params[3] - 3 * count(params, word, rows) + 3 * GROUP(0);
}

// The number of the group's ranks that come before the item's. `ranks` has ITEMS places.
FN uint order_of(LOCAL ulong *ranks, ulong rank) {
    ranks[ITEM] = rank;
    BARRIER();
    uint before = 0;
    for (uint i = 0; i < ITEMS; i++) before += ranks[i] > rank || (ranks[i] == rank && i < ITEM) ? 1 : 0;
    BARRIER();
    return before;
}

// Moves the best of the first `count` ranks of `kept` to its front, in descending order. Each item takes the best of
// several ranks. All of the best are among the ranks of the BEST items with the best ones, so a round leaves these.
FN void sort_best(LOCAL ulong *ranks, LOCAL ulong *kept, uint count) {
    uint each = 2;
    while (each > 1) {
        each = (count + ITEMS - 1) / ITEMS;
        ulong own[(KEPT + ITEMS - 1) / ITEMS];
        ulong best = 0;
        for (uint i = 0; i < each; i++) {
            uint at = ITEM + i * ITEMS;
            own[i] = at < count ? kept[at] : 0;
            best = max(best, own[i]);
        }
        uint order = order_of(ranks, best);
        if (order < BEST) {
            for (uint i = 0; i < each; i++) kept[order * each + i] = own[i];
        }
        BARRIER();
        count = BEST * each;
    }
}

// Writes a record of the sorted `kept`. Places without a candidate have the id ~0.
FN void write_record(GLOBAL uint *out, const LOCAL ulong *kept, float sum, ulong drawn) {
    if (ITEM < BEST) {
        ulong rank = kept[ITEM];
        out[ITEM] = AS_UINT(rank == 0 ? -INFINITE : value_of(rank));
        out[BEST + ITEM] = rank == 0 ? ~0u : place_of(rank);
    }
    if (ITEM == 0) {
        out[2 * BEST] = AS_UINT(kept[0] == 0 ? -INFINITE : value_of(kept[0]));
        out[2 * BEST + 1] = AS_UINT(sum);
        out[2 * BEST + 2] = AS_UINT(drawn == 0 ? -INFINITE : value_of(drawn));
        out[2 * BEST + 3] = drawn == 0 ? ~0u : place_of(drawn);
    }
}
