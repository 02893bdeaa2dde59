// Softmax of each line along an axis.

KERNEL(ITEMS) softmax_axis(
    const GLOBAL uint *RESTRICT x, GLOBAL float *RESTRICT out, uint type, uint outer, uint axis, uint inner
) {
    BEGIN();
    SHARED float scratch[ITEMS];
    uint columns = columns_of(inner), lanes = ITEMS / columns, lane = ITEM / columns;
    uint column = GROUP(0) / outer * columns + ITEM % columns;
    size_t start = (size_t)(GROUP(0) % outer) * axis * inner + min(column, inner - 1);
    float largest = element_value(x, type, start), sum = 0.0f;
    for (uint i = lane; i < axis; i += lanes) largest = combined(1, largest, element_value(x, type, start + (size_t)i * inner));
    largest = across(scratch, 1, columns, largest);
    if (largest == INFINITE) largest = NAN;
    if (largest == -INFINITE) largest = 0.0f; // nothing is allowed: all become zero
    for (uint i = lane; i < axis; i += lanes) sum += exp(element_value(x, type, start + (size_t)i * inner) - largest);
    sum = across(scratch, 0, columns, sum);
    if (column >= inner) return;
    for (uint i = lane; i < axis; i += lanes) {
        size_t at = start + (size_t)i * inner;
        out[at] = sum == 0.0f ? 0.0f : exp(element_value(x, type, at) - largest) / sum;
    }
}
