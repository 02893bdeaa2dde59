// Code for groups that process several columns of `[axis, inner]`. The number of columns is a power of two.
// The items are divided evenly among the columns.

var<workgroup> scratch: array<f32, ITEMS>;

fn columns_of(inner: u32) -> u32 {
    var columns = 1u;
    while columns < inner && columns < ITEMS { columns *= 2u; }
    return columns;
}

// Combines two values. Reductions 0 and 3 add. Reduction 1 takes the maximum and 2 the minimum, and both
// return NaN if either value is NaN.
fn combined(reduction: u32, a: f32, b: f32) -> f32 {
    if reduction == 1u { return select(b, a, is_nan(a) || (a > b && !is_nan(b))); }
    if reduction == 2u { return select(b, a, is_nan(a) || (a < b && !is_nan(b))); }
    return a + b;
}

// Combines the values of all items of a column into one.
fn across(item: u32, reduction: u32, columns: u32, value: f32) -> f32 {
    workgroupBarrier();
    scratch[item] = value;
    workgroupBarrier();
    // Mesa 26 computes wrong results if `apart` itself is halved down to a limit known only at launch.
    for (var halvings = 1u; columns << halvings <= ITEMS; halvings += 1u) {
        let apart = ITEMS >> halvings;
        if item < apart { scratch[item] = combined(reduction, scratch[item], scratch[item + apart]); }
        workgroupBarrier();
    }
    return scratch[item % columns];
}
