// Product for many rows on matrix units. A group multiplies TILE_X rows of x by TILE_W rows of weights.
// K_STEP columns at a time pass through local memory. The sub-groups of a group divide the resulting tile
// into slices. A slice has LINES_X × LINES_W squares of 16 × 16 values.
//
// The group loads the next columns while it multiplies the current ones.
//
// Control flow that depends on values from buffers does not count as uniform. The values that control it are
// therefore shared through `facts` first.

// Number of vectors of four values per tile row, and stride between tile rows. With this stride, the 16 bytes
// of eight rows at one column have no bank conflicts.
const FOURS: u32 = K_STEP / 4u;
const PITCH: u32 = FOURS + 2u;
const TILE_X: u32 = SLICES_X * LINES_X * 16u;
const TILE_W: u32 = SLICES_W * LINES_W * 16u;
const SLICES: u32 = SLICES_X * SLICES_W;
// Number of 16-byte vectors per row and step, and number of rows that the group loads at once, with one
// vector per item.
const VECTORS: u32 = FOURS / 2u;
const ROWS: u32 = ITEMS / VECTORS;

@group(0) @binding(1) var<storage, read> weights: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> x: array<vec4<u32>>;

var<workgroup> tile_x: array<vec4<f16>, TILE_X * PITCH>;
var<workgroup> tile_w: array<vec4<f16>, TILE_W * PITCH>;
var<workgroup> squares: array<f32, SLICES * 256u>;
// This variable has 16 bytes, so that the size of every variable is a multiple of 16. Matrices are loaded
// from multiples of 16 bytes, and the order in which a driver lays out variables is unknown.
var<workgroup> facts: vec4<u32>;

// Unpacks f16 bits. Translators that recognize the pattern omit both conversions.
fn halves(words: vec2<u32>) -> vec4<f16> {
    return vec4<f16>(vec4<f32>(unpack2x16float(words.x), unpack2x16float(words.y)));
}

struct Place {
    @builtin(local_invocation_index) item: u32,
    @builtin(num_subgroups) sub_groups: u32,
    @builtin(subgroup_id) sub_group: u32,
    @builtin(subgroup_size) size: u32,
    @builtin(subgroup_invocation_id) lane: u32,
}

// Writes those values of a square that lie within y. The square is in local memory.
fn put_square(place: Place, slice: u32, used: u32, row: u32, column: u32) {
    for (var i = place.lane; i < 256u; i += place.size) {
        let to_row = row + i / 16u;
        let to_column = column + i % 16u;
        if to_row < used && to_column < constants.n { put(to_row, to_column, squares[slice * 256u + i]); }
    }
}

// Computes a slice. All items of the group load the tiles of the slice, so all of them must call this
// together.
fn multiply_slice(place: Place, slice: u32, writes: bool, first_row: u32, first_line: u32) {
    let known = workgroupUniformLoad(&facts);
    let used = known.x;
    let stride = constants.stride;
    let pitch = ((constants.k + 63u) & ~63u) / 8u;
    // Indices of the data that the item loads. Beyond the last row, the item loads the last row again, and
    // does not write the result.
    let row = place.item / VECTORS;
    let column = place.item % VECTORS;
    let from_x$x = min(first_row + row + $xu * ROWS, used - 1u) * pitch + column;
    let from_w$w = min(first_line + row + $wu * ROWS, constants.n - 1u) * pitch + column;
    let to = row * PITCH + column * 2u;
    let x_line = slice / SLICES_W * (LINES_X * 16u);
    let w_line = slice % SLICES_W * (LINES_W * 16u);
    var next_x$x = x[from_x$x];
    var next_w$w = weights[from_w$w];
    for (var i = place.item; i < 256u; i += ITEMS) { squares[i] = 0.0; }
    workgroupBarrier();
    let zeros = coopLoadT<coop_mat16x16<f32, C>>(&squares[0], 16u);
    var sum_$i_$j = zeros;
    for (var at = VECTORS; at <= pitch; at += VECTORS) {
        workgroupBarrier(); // The previous step has been read.
        { let at = to + $xu * ROWS * PITCH; tile_x[at] = halves(next_x$x.xy); tile_x[at + 1u] = halves(next_x$x.zw); }
        { let at = to + $wu * ROWS * PITCH; tile_w[at] = weight_halves(next_w$w.xy); tile_w[at + 1u] = weight_halves(next_w$w.zw); }
        workgroupBarrier();
        if at < pitch {
            next_x$x = x[from_x$x + at];
            next_w$w = weights[from_w$w + at];
        }
        let of_x = x_line * PITCH;
        let of_w = w_line * PITCH;
        MULTIPLY;
    }
    let to_row = first_row + x_line;
    let to_line = first_line + w_line;
    if known.z != 0u {
        if constants.accumulate == 0u {
            { let at = (to_row + $iu * 16u) * stride + to_line + $ju * 16u; let sum = sum_$i_$j; coopStoreT(sum, &y[at], stride); }
        } else {
            { let at = (to_row + $iu * 16u) * stride + to_line + $ju * 16u; let before = coopLoadT<coop_mat16x16<f32, C>>(&y[at], stride); let sum = sum_$i_$j + before; coopStoreT(sum, &y[at], stride); }
        }
    } else {
        let end = select(0u, used, writes);
        { let at = slice * 256u; let sum = sum_$i_$j; coopStoreT(sum, &squares[at], 16u); workgroupBarrier(); put_square(place, slice, end, to_row + $iu * 16u, to_line + $ju * 16u); workgroupBarrier(); }
    }
    workgroupBarrier();
}

@compute @workgroup_size(ITEMS)
fn matmul_matrices(@builtin(workgroup_id) workgroup: vec3<u32>, place: Place) {
    let first_row = (workgroup.x + constants.first_group.x) * TILE_X;
    let first_line = (workgroup.y + constants.first_group.y) * TILE_W;
    if place.item == 0u {
        let used = count(constants.word, constants.rows);
        // A whole tile lies entirely within y, at an offset to which matrices can be stored. Each of its
        // slices is written by a single sub-group.
        let is_whole = first_row + TILE_X <= used && first_line + TILE_W <= constants.n && constants.stride % 4u == 0u;
        facts = vec4<u32>(used, place.sub_groups, u32(is_whole && place.sub_groups <= SLICES), 0u);
    }
    let known = workgroupUniformLoad(&facts);
    if first_row >= known.x { return; }
    // If there are fewer sub-groups than slices, each sub-group computes several slices in turn. If there are
    // more, several sub-groups compute the same slice, and only one of them writes it.
    for (var turn = 0u; turn < SLICES; turn += known.y) {
        let slice = turn + place.sub_group;
        multiply_slice(place, min(slice, SLICES - 1u), slice < SLICES, first_row, first_line);
    }
}
