// Reduces each part of a line along an axis to one value.

struct Constants {
    first_group: vec3<u32>,
    reduction: u32, kind: u32, outer: u32, axis: u32, inner: u32, part: u32, count: u32,
}
var<immediate> constants: Constants;

@group(0) @binding(0) var<storage, read> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;

// Number of values per partial sum. Rounding errors grow with this number and with the number of partial
// sums, but not with the size of the axis.
const RUN: u32 = 64u;

fn value_at(i: u32) -> f32 { return value_in(x[word_of(constants.kind, i)], constants.kind, i); }

@compute @workgroup_size(ITEMS)
fn reduce(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) item: u32) {
    let c = constants;
    let group = workgroup + c.first_group;
    let columns = columns_of(c.inner);
    let lanes = ITEMS / columns;
    let column = group.x / c.outer * columns + item % columns;
    let line = group.x % c.outer;
    let before = group.z * c.part;
    let length = min(c.part, c.axis - before);
    let start = (line * c.axis + before) * c.inner + min(column, c.inner - 1u);
    let adds = c.reduction == 0u || c.reduction == 3u;
    let none = select(value_at(start), 0.0, adds);
    var value = none;
    for (var first = item / columns; first < length; first += lanes * RUN) {
        var run = none;
        let end = min(length, first + lanes * RUN);
        for (var i = first; i < end; i += lanes) {
            run = combined(c.reduction, run, value_at(start + i * c.inner));
        }
        value = combined(c.reduction, value, run);
    }
    value = across(item, c.reduction, columns, value);
    if c.reduction == 3u { value /= f32(c.count); }
    let to = (line * ((c.axis - 1u) / c.part + 1u) + group.z) * c.inner + column;
    if item < columns && column < c.inner { out[to] = value; }
}
