// The k largest values of each row and their places: one group a row.
//
// Every item knows the best that is left of the columns ITEM, ITEM + ITEMS, …. The best of these is taken k times; each
// time the group looks together for the next one in the columns that it was taken from.

KERNEL(ITEMS) top_k(
    const GLOBAL uint *RESTRICT params, const GLOBAL float *RESTRICT x, GLOBAL float *RESTRICT values,
    GLOBAL uint *RESTRICT places, uint rows, uint word, uint width, uint k
) {
    BEGIN();
    SHARED ulong scratch[REDUCE_SPACE];
    width = used_width(params, word, rows, width);
    k = min(k, width);
    const GLOBAL float *from = x + (size_t)GROUP(0) * width;
    size_t to = (size_t)GROUP(0) * k;
    ulong left = 0;
    for (uint first = 0; first < width; first += ITEMS) {
        uint c = first + ITEM;
        if (c < width) left = max(left, ranked(from[c], c));
    }
    for (uint i = 0; i < k; i++) {
        ulong best = group_best(scratch, left);
        uint place = place_of(best), owner = place % ITEMS;
        if (ITEM == 0) {
            values[to + i] = from[place];
            places[to + i] = place;
        }
        ulong next = 0;
        for (uint c = owner + ITEM * ITEMS; c < width; c += ITEMS * ITEMS) {
            ulong rank = ranked(from[c], c);
            if (rank < best) next = max(next, rank);
        }
        next = group_best(scratch, next);
        if (ITEM == owner) left = next;
    }
}
