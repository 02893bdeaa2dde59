// Values of types with integer quanta.

// What the words of a quad stand for: out[row][column].
FN void scaled_values(const uint words[4], const PRIVATE Scales *scales, uint quad, float out[4][4]) {
    for (uint r = 0; r < 4; r++) {
        float scale = quad < 4 ? scales->first[r] : scales->last[r];
        float minimum = UNEQUAL && MINIMA && quad >= 4 ? scales->last_minimum[r] : scales->minimum[r];
        float bias = MINIMA ? -minimum : scale * (float)-OFFSET;
        for (uint i = 0; i < 4; i++) out[r][i] = fma((float)BYTE(words[r], i), scale, bias);
    }
}

// Values of a quad: out[row][column].
FN void quad_values(const GLOBAL uchar *group, uint columns, uint block, uint quad, uint part, float out[4][4]) {
    uint words[4];
    Scales scales;
    quad_words(group, columns / 32, block, quad, part, words);
    block_scales(group, columns / 32, block, part, &scales);
    scaled_values(words, &scales, quad, out);
}
