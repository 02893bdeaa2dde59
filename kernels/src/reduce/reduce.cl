// One value for each part of a line along an axis.

// Additions of a part of a sum: rounding grows with the parts and with their number, not with the axis.
#define RUN 64

KERNEL(ITEMS) reduce(
    const GLOBAL uint *RESTRICT x, GLOBAL float *RESTRICT out, uint reduction, uint type, uint outer, uint axis, uint inner,
    uint part, uint count
) {
    BEGIN();
    SHARED float scratch[ITEMS];
    uint columns = columns_of(inner), lanes = ITEMS / columns, first = GROUP(2) * part;
    uint column = GROUP(0) / outer * columns + ITEM % columns, length = min(part, axis - first);
    size_t line = GROUP(0) % outer, from = (line * axis + first) * inner + min(column, inner - 1);
    bool adds = reduction == 0 || reduction == 3;
    float none = adds ? 0.0f : element_value(x, type, from), value = none;
    for (uint start = ITEM / columns; start < length; start += lanes * RUN) {
        float run = none;
        for (uint i = start, n = 0; i < length && n < RUN; i += lanes, n++) {
            run = combined(reduction, run, element_value(x, type, from + (size_t)i * inner));
        }
        value = combined(reduction, value, run);
    }
    value = across(scratch, reduction, columns, value);
    if (reduction == 3) value /= (float)count;
    size_t to = (line * ((axis - 1) / part + 1) + GROUP(2)) * inner + column;
    if (ITEM < columns && column < inner) out[to] = value;
}
