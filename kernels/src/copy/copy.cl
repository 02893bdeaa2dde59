// Elements by strides, from one type to another: an item writes a word, of one element or two.

KERNEL(ITEMS) copy_elements(
    const GLOBAL uint *RESTRICT x, GLOBAL uint *RESTRICT out, uint from, uint to, uint first,
    uint size_0, uint size_1, uint size_2, uint size_3, uint size_4, uint size_5,
    uint stride_0, uint stride_1, uint stride_2, uint stride_3, uint stride_4, uint stride_5
) {
    BEGIN();
    uint count = size_0 * size_1 * size_2 * size_3 * size_4 * size_5;
    uint word = GROUP(0) * ITEMS + ITEM, start = word * in_a_word(to);
    if (start >= count) return;
    uint both = 0;
    for (uint i = 0; i < in_a_word(to) && start + i < count; i++) {
        size_t at = first + place(
            start + i, size_1, size_2, size_3, size_4, size_5, stride_0, stride_1, stride_2, stride_3, stride_4, stride_5
        );
        both |= convert_element(from, to, element(x, from, at)) << (16 * i);
    }
    out[word] = both;
}
