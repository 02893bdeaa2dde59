// Products of many rows of x with the weights of their experts. A group takes 64 weight rows of one expert, finds the
// assignments to it, and computes 32 of these at a time. 32 columns at a time pass through local memory. An item
// computes 2 × 8 values.

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

// Most rows of x whose assignments are found at a time. A row has at most one with the expert.
const LIST = 256u;
const NONE = 0xffffffffu;
// Assignments in a tile.
const TILE = 32u;

// Tiles, stored column by column, in vectors of four weight rows and of two rows of x.
var<workgroup> w_tile: array<vec4<f32>, 512>;
var<workgroup> x_tile: array<vec2<f32>, 512>;
var<workgroup> found: array<u32, ITEMS>;
var<workgroup> list: array<u32, LIST>;
var<workgroup> list_length: u32;

fn slot_of_four(column: u32, four: u32) -> u32 { return column * 16u + (four ^ (column / 4u)); }

// Returns the index of the first value of x that an assignment multiplies.
fn x_begin(assignment: u32) -> u32 {
    let slot = select(assignment % constants.used, 0u, constants.x_slots == 1u);
    return (assignment / constants.used * constants.x_slots + slot) * constants.x_pitch + constants.x_column;
}

// Writes four values of an assignment, from weight row `of_all` of all experts on. Rows of other experts, and rows that
// are not bound, are beyond the limits.
fn put_four(assignment: u32, of_all: u32, expert_begin: u32, values: vec4<f32>) {
    let c = constants;
    let to = assignment / c.used * c.stride + c.column + assignment % c.used * c.y_gap;
    for (var j = 0u; j < 4u; j++) {
        let own = of_all + j - expert_begin;
        if own < c.expert_rows && of_all + j - c.first_row < c.n {
            y[to + (own / c.piece * c.used + assignment % c.used) * c.piece + own % c.piece] = values[j];
        }
    }
}

@compute @workgroup_size(ITEMS)
fn expert_matmul_tiled(
    @builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) item: u32
) {
    let c = constants;
    let place = workgroup + c.first_group;
    let in_use = count(c.word, c.rows);
    let expert = c.first_row / c.expert_rows + place.y;
    // The first weight row of the tile, of all experts. It may belong to the expert before.
    let expert_begin = expert * c.expert_rows;
    let tile_begin = expert_begin / 16u * 16u + place.x * 64u;
    let is_empty = tile_begin + 64u <= c.first_row || tile_begin >= c.first_row + c.n ||
        tile_begin >= expert_begin + c.expert_rows;
    if is_empty { return; }
    // The item computes four weight rows from `lane` and from `lane` + 8 on, in units of four rows, and the pair `line` of x.
    let lane = item % 8u;
    let line = item / 8u;
    // What the item loads of the weights. Groups that are not bound are replaced, and not written.
    let quad = item / 4u % 8u;
    let group = tile_begin / 16u + item / 32u - c.first_row / 16u;
    let lines = select(0u, group, group < (c.n + 15u) / 16u) * group_vectors(c.k);
    for (var begin = 0u; begin < in_use; begin += LIST) {
        for (var next = begin; next < min(begin + LIST, in_use); next += ITEMS) {
            let row = next + item;
            var own = NONE;
            if row < in_use {
                // A fixed route has each expert in its own slot.
                if c.is_fixed != 0u { own = row * c.used + expert; }
                for (var slot = 0u; slot < c.used && c.is_fixed == 0u; slot++) {
                    if route[row * 2u * c.used + slot] == expert { own = row * c.used + slot; }
                }
            }
            found[item] = own;
            workgroupBarrier();
            if item == 0u {
                var length = select(list_length, 0u, next == begin);
                for (var i = 0u; i < ITEMS; i++) {
                    if found[i] != NONE { list[length] = found[i]; length++; }
                }
                list_length = length;
            }
            workgroupBarrier();
        }
        let length = workgroupUniformLoad(&list_length);
        for (var first = 0u; first < length; first += TILE) {
            let tile = min(TILE, length - first);
            var low0 = vec4<f32>();
            var low1 = vec4<f32>();
            var high0 = vec4<f32>();
            var high1 = vec4<f32>();
            for (var block = 0u; block < c.k / 32u; block++) {
                let values = quad_values(lines, c.k, block, quad, item % 4u);
                w_tile[slot_of_four(quad * 4u + $iu, item / 32u * 4u + item % 4u)] = values[$i];
                // 16 pairs × 8 quads. Beyond the tile's assignments, the item loads the first one again.
                let pair = item / 8u * 2u;
                let from0 = x_begin(list[first + select(0u, pair, pair < tile)]);
                let from1 = x_begin(list[first + select(0u, pair + 1u, pair + 1u < tile)]);
                let at = block * 8u + item % 8u;
                let x0 = x[from0 / 4u + at];
                let x1 = x[from1 / 4u + at];
                x_tile[(item % 8u * 4u + $iu) * 16u + item / 8u] = vec2<f32>(x0[$i], x1[$i]);
                workgroupBarrier();
                for (var column = 0u; column < 32u; column++) {
                    let low = w_tile[slot_of_four(column, lane)];
                    let high = w_tile[slot_of_four(column, lane + 8u)];
                    let factors = x_tile[column * 16u + line];
                    low0 = fma(low, vec4<f32>(factors.x), low0);
                    low1 = fma(low, vec4<f32>(factors.y), low1);
                    high0 = fma(high, vec4<f32>(factors.x), high0);
                    high1 = fma(high, vec4<f32>(factors.y), high1);
                }
                workgroupBarrier();
            }
            let begin_row = tile_begin + lane * 4u;
            if line * 2u < tile {
                let assignment = list[first + line * 2u];
                put_four(assignment, begin_row, expert_begin, low0);
                put_four(assignment, begin_row + 32u, expert_begin, high0);
            }
            if line * 2u + 1u < tile {
                let assignment = list[first + line * 2u + 1u];
                put_four(assignment, begin_row, expert_begin, low1);
                put_four(assignment, begin_row + 32u, expert_begin, high1);
            }
        }
        workgroupBarrier();
    }
}
