// One value for each line along an axis.

// Additions of a part of a sum: rounding grows with the parts and with their number, not with the axis.
#define RUN 64

KERNEL(ITEMS) reduce(
    const GLOBAL float *RESTRICT x, GLOBAL float *RESTRICT out, uint reduction, uint outer, uint axis, uint inner
) {
    BEGIN();
    SHARED float scratch[ITEMS];
    uint columns = columns_of(inner), lanes = ITEMS / columns;
    uint column = GROUP(1) * columns + ITEM % columns;
    const GLOBAL float *from = x + (size_t)GROUP(0) * axis * inner + min(column, inner - 1);
    bool adds = reduction == 0 || reduction == 3;
    float value = adds ? 0.0f : from[0];
    for (uint start = ITEM / columns; start < axis; start += lanes * RUN) {
        float run = adds ? 0.0f : from[0];
        for (uint i = start, n = 0; i < axis && n < RUN; i += lanes, n++) {
            run = combined(reduction, run, from[(size_t)i * inner]);
        }
        value = combined(reduction, value, run);
    }
    value = across(scratch, reduction, columns, value);
    if (reduction == 3) value /= (float)axis;
    if (ITEM < columns && column < inner) out[(size_t)GROUP(0) * inner + column] = value;
}
