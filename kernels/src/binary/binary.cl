// An operation on pairs of values, each by strides of its own: an item writes a word, of one value or two.

FN float operation_of(uint operation, float a, float b) {
    switch (operation) {
    case 0: return a + b;
    case 1: return a - b;
    case 2: return a * b;
    case 3: return a / b;
    case 4: return a > b || isnan(a) ? a : b;
    default: return a < b || isnan(a) ? a : b;
    }
}

KERNEL(ITEMS) binary(
    const GLOBAL uint *RESTRICT a, const GLOBAL uint *RESTRICT b, GLOBAL uint *RESTRICT out, uint operation, uint type,
    uint size_0, uint size_1, uint size_2, uint size_3, uint size_4, uint size_5,
    uint a_0, uint a_1, uint a_2, uint a_3, uint a_4, uint a_5,
    uint b_0, uint b_1, uint b_2, uint b_3, uint b_4, uint b_5
) {
    BEGIN();
    uint count = size_0 * size_1 * size_2 * size_3 * size_4 * size_5;
    uint word = GROUP(0) * ITEMS + ITEM, start = word * in_a_word(type), both = 0;
    if (start >= count) return;
    for (uint n = 0; n < in_a_word(type) && start + n < count; n++) {
        uint i = start + n;
        size_t at_a = place(i, size_1, size_2, size_3, size_4, size_5, a_0, a_1, a_2, a_3, a_4, a_5);
        size_t at_b = place(i, size_1, size_2, size_3, size_4, size_5, b_0, b_1, b_2, b_3, b_4, b_5);
        float value = operation_of(operation, element_value(a, type, at_a), element_value(b, type, at_b));
        both |= element_of(type, value) << (16 * n);
    }
    out[word] = both;
}
