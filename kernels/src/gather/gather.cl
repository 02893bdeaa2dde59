// The rows of which logits are wanted: one group a row.

KERNEL(ITEMS) gather(
    const GLOBAL uint *RESTRICT params, const GLOBAL float *RESTRICT x, GLOBAL float *RESTRICT out,
    uint rows, uint logit_rows, uint width
) {
    BEGIN();
    uint i = GROUP(0);
    if (i >= count(params, 1, logit_rows)) return;
    uint row = params[4 + 3 * (size_t)rows + i];
    const GLOBAL float *from = x + (size_t)row * width;
    GLOBAL float *to = out + (size_t)i * width;
    for (uint c = ITEM; c < width; c += ITEMS) to[c] = row < rows ? from[c] : 0.0f;
}
