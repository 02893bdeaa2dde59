// TQ1_0, as files store it.

// Five quants in base 3, times 256/243, rounded up.
FN uint digits_of(const PRIVATE Block *b, uint first, uint stride, uint count) {
    uint number = 0;
    for (uint n = 0; n < 5; n++) number = number * 3 + (n < count ? b->quants[first + n * stride] : 0);
    return (number * 256 + 242) / 243;
}

FN float value_of_tq1_0(const GLOBAL uint *words, size_t start, uint i) {
    uint at = i < 160 ? i % 32 : i < 240 ? 32 + i % 16 : 48 + i % 4;
    uint digit = i < 160 ? i / 32 : i < 240 ? (i - 160) / 16 : (i - 240) / 4;
    uint number = byte_at(words, start + at);
    for (uint n = 0; n < digit; n++) number = number * 3 & 0xff;
    return half_at(words, start + 52) * ((float)(number * 3 >> 8) - 1.0f);
}

FN void scale_tq1_0(PRIVATE Block *b) { scale_by(b, absolute(largest_of(b->values, 256))); }
FN uint quant_of_tq1_0(const PRIVATE Block *b, uint i) { return clamped(rounded(steps_of(b, i, 0)) + 1.0f, 2.0f); }

FN uint byte_of_tq1_0(const PRIVATE Block *b, uint at) {
    if (at < 32) return digits_of(b, at, 32, 5);
    if (at < 48) return digits_of(b, 160 + at - 32, 16, 5);
    return at < 52 ? digits_of(b, 240 + at - 48, 4, 4) : half_byte(b->d, at);
}
