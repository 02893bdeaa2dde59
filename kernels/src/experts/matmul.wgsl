// Multiplies rows of x by the weights of the experts to which they are assigned. A group processes 16 rows of weights
// for one assignment. Its items share the columns, and the group adds their sums at the end.

struct Constants {
    first_group: vec3<u32>,
    rows: u32,
    word: u32,
    n: u32,
    k: u32,
    first_row: u32,
    expert_rows: u32,
    piece: u32,
    used: u32,
    x_slots: u32,
    column: u32,
    stride: u32,
    is_fixed: u32,
    x_pitch: u32,
    x_column: u32,
    y_gap: u32,
}
var<immediate> constants: Constants;

@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> route: array<u32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;

// Sums of four weight rows for each item.
var<workgroup> partial: array<vec4<f32>, ITEMS>;

@compute @workgroup_size(ITEMS)
fn expert_matmul(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) item: u32) {
    let c = constants;
    let index = workgroup + c.first_group;
    let row = index.y / c.used;
    let slot = index.y % c.used;
    let is_used = row < count(c.word, c.rows);
    var expert = slot;
    if is_used && c.is_fixed == 0u { expert = route[row * 2u * c.used + slot]; }
    // Group of weight rows, among all experts and among those that are bound. Groups beyond these compute nothing.
    let group = expert * c.expert_rows / 16u + index.x;
    let bound = group - c.first_row / 16u;
    let quads = select(0u, c.k / 4u, is_used && bound < (c.n + 15u) / 16u);
    let lines = bound * group_vectors(c.k);
    let begin = (row * c.x_slots + select(slot, 0u, c.x_slots == 1u)) * (c.x_pitch / 4u) + c.x_column / 4u;
    var sums = vec4<f32>();
    for (var quad = item / 4u; quad < quads; quad += ITEMS / 4u) {
        sums += quad_values(lines, c.k, quad / 8u, quad % 8u, item % 4u) * x[begin + quad];
    }
    partial[item] = sums;
    workgroupBarrier();
    let line = group * 16u + item - expert * c.expert_rows;
    if item < 16u && quads > 0u && line < c.expert_rows {
        var sum = 0.0;
        for (var i = item / 4u; i < ITEMS; i += 4u) { sum += partial[i][item % 4u]; }
        let to = row * c.stride + c.column + slot * c.y_gap;
        y[to + (line / c.piece * c.used + slot) * c.piece + line % c.piece] = sum;
    }
}
