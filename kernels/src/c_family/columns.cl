// Groups that take some columns of `[axis, inner]`, a power of two; as many items as there are share each column.

FN uint columns_of(uint inner) {
    uint columns = 1;
    while (columns < inner && columns < ITEMS) columns *= 2;
    return columns;
}

// 0 and 3 add; 1 takes the larger, 2 the smaller, which are NaN where either is.
FN float combined(uint reduction, float a, float b) {
    if (reduction == 1) return a > b || isnan(a) ? a : b;
    if (reduction == 2) return a < b || isnan(a) ? a : b;
    return a + b;
}

// One value for the items of each column, from theirs. `scratch` has a place for each item.
FN float across(LOCAL float *scratch, uint reduction, uint columns, float value) {
    BARRIER();
    scratch[ITEM] = value;
    BARRIER();
    for (uint half = ITEMS / 2; half >= columns; half /= 2) {
        if (ITEM < half) scratch[ITEM] = combined(reduction, scratch[ITEM], scratch[ITEM + half]);
        BARRIER();
    }
    return scratch[ITEM & (columns - 1)];
}
