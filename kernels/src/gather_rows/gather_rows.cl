// Rows of a table, from one type to another: an item writes a word, of one element or two.

KERNEL(ITEMS) gather_rows(
    const GLOBAL uint *RESTRICT indices, const GLOBAL uint *RESTRICT table, GLOBAL uint *RESTRICT out,
    uint from, uint to, uint rows, uint table_rows, uint width
) {
    BEGIN();
    uint word = GROUP(0) * ITEMS + ITEM, start = word * in_a_word(to);
    if (start >= rows * width) return;
    uint both = 0;
    for (uint i = 0; i < in_a_word(to) && start + i < rows * width; i++) {
        uint index = indices[(start + i) / width];
        if (index >= table_rows) continue;
        size_t at = (size_t)index * width + (start + i) % width;
        both |= convert_element(from, to, element(table, from, at)) << (16 * i);
    }
    out[word] = both;
}
