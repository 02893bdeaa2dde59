// What both forms of attention share.

// Dimensions of a query that are in local memory at once, and of a result that are summed at once. Longer heads take
// more than one turn.
#define DIMS 256

// A score that tends to ± `cap`; no cap is zero.
FN float capped(float score, float cap) {
    return cap == 0.0f ? score : cap - 2.0f * cap / (1.0f + exp(score * (2.0f / cap)));
}

// How many blocks of a sequence's table exist one after the other, among the first `wanted`; all items get the answer.
FN uint reach(LOCAL uint *shared, const GLOBAL uint *table, uint wanted, uint cache_blocks) {
    BARRIER(); // whoever read `shared` before has done so
    if (ITEM == 0) *shared = wanted;
    BARRIER();
    for (uint i = ITEM; i < wanted; i += ITEMS) {
        if (table[i] >= cache_blocks) {
            LOCAL_MIN(shared, i);
            break;
        }
    }
    BARRIER();
    return *shared;
}
