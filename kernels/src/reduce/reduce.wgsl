// One value for each line along an axis.

struct Constants {
    first_group: vec3<u32>,
    reduction: u32, outer: u32, axis: u32, inner: u32,
}
var<immediate> constants: Constants;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;

// Additions of a part of a sum: rounding grows with the parts and with their number, not with the axis.
const RUN: u32 = 64u;

@compute @workgroup_size(ITEMS)
fn reduce(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) item: u32) {
    let c = constants;
    let group = workgroup + c.first_group;
    let columns = columns_of(c.inner);
    let lanes = ITEMS / columns;
    let column = group.y * columns + item % columns;
    let start = group.x * c.axis * c.inner + min(column, c.inner - 1u);
    let adds = c.reduction == 0u || c.reduction == 3u;
    var value = select(x[start], 0.0, adds);
    for (var first = item / columns; first < c.axis; first += lanes * RUN) {
        var run = select(x[start], 0.0, adds);
        let end = min(c.axis, first + lanes * RUN);
        for (var i = first; i < end; i += lanes) {
            run = combined(c.reduction, run, x[start + i * c.inner]);
        }
        value = combined(c.reduction, value, run);
    }
    value = across(item, c.reduction, columns, value);
    if c.reduction == 3u { value /= f32(c.axis); }
    if item < columns && column < c.inner { out[group.x * c.inner + column] = value; }
}
