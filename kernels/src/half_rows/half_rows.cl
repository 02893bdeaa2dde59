// f16 activations: rows of f16 values, padded with zeros to a multiple of 64.

FN uint half_pitch(uint width) { return (width + 63) & ~63u; }
FN uint half_row_bytes(uint width) { return half_pitch(width) * 2; }

// Beyond the range of f16 its largest value; what is not a number stays none.
FN float in_half_range(float value) {
    return value > 65504.0f ? 65504.0f : value < -65504.0f ? -65504.0f : value;
}

// Writes four values of columns `column` … of the row at `out`; columns from `width` on are padding.
FN void put_halves(const float values[4], uint column, uint width, GLOBAL uchar *out) {
    if (column >= half_pitch(width)) return;
    bool inside = column < width;
    uint low = pack_halves(in_half_range(values[0]), in_half_range(values[1]));
    uint high = pack_halves(in_half_range(values[2]), in_half_range(values[3]));
    *(GLOBAL uint2 *)(out + column * 2) = UINT2(inside ? low : 0, inside ? high : 0);
}
