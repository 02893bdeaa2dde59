// Kernels that decode and encode blocks. Lines with `$id` are repeated for each type.

FN uint values_of(uint type) {
    switch (type) {
    case $id: return $values;
    }
    return 1;
}

FN uint bytes_of(uint type) {
    switch (type) {
    case $id: return $bytes;
    }
    return 1;
}

FN float value_of(const GLOBAL uint *words, uint type, size_t start, uint i) {
    switch (type) {
    case $id: return value_of_$name(words, start, i);
    }
    return 0.0f;
}

FN uint quant_of(const PRIVATE Block *b, uint i) {
    switch (b->type) {
    case $id: return quant_of_$name(b, i);
    }
    return 0;
}

FN uint byte_of(const PRIVATE Block *b, uint at) {
    switch (b->type) {
    case $id: return byte_of_$name(b, at);
    }
    return 0;
}

FN void scale_block(PRIVATE Block *b) {
    switch (b->type) {
    case $id: scale_$name(b); break;
    }
}

// An item decodes a value.
KERNEL(ITEMS) decode_blocks(
    const GLOBAL uint *RESTRICT blocks, GLOBAL float *RESTRICT out, uint type, uint count
) {
    BEGIN();
    uint i = GROUP(0) * ITEMS + ITEM, values = values_of(type);
    if (i < count * values) out[i] = value_of(blocks, type, (size_t)(i / values) * bytes_of(type), i % values);
}

// An item encodes four blocks, which are whole words for every type, byte by byte.
KERNEL(ITEMS) encode_blocks(
    const GLOBAL float *RESTRICT x, GLOBAL uint *RESTRICT out, uint type, uint count
) {
    BEGIN();
    uint four = GROUP(0) * ITEMS + ITEM, bytes = bytes_of(type);
    if (four * 4 >= count) return;
    size_t place = (size_t)four * bytes;
    uint word = 0, filled = 0;
    for (uint block = 4 * four; block < 4 * four + 4 && block < count; block++) {
        Block b;
        b.values = x + (size_t)block * values_of(type);
        b.type = type;
        scale_block(&b);
        for (uint i = 0; i < values_of(type); i++) b.quants[i] = (uchar)quant_of(&b, i);
        for (uint at = 0; at < bytes; at++) {
            word |= byte_of(&b, at) << (8 * filled);
            if (++filled == 4) {
                out[place++] = word;
                word = filled = 0;
            }
        }
    }
    if (filled > 0) out[place] = word;
}
