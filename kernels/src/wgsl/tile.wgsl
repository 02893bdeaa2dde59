// Products of two matrices, tile by tile. A group computes 64 lines of one matrix by 64 lines of the other.
// STEP values of the summation index (the depth) at a time pass through local memory. An item computes 4 × 8
// values.
//
// In a tile, lines of equal depth are adjacent, with four lines per vector.

const TILE: u32 = 64u;
const STEP: u32 = 16u;
const QUADS: u32 = TILE / 4u;
// Stride between depths of a tile, in vectors.
const COLUMN: u32 = QUADS + 1u;

var<workgroup> lines: array<vec4<f32>, STEP * COLUMN>;
var<workgroup> lanes: array<vec4<f32>, STEP * COLUMN>;

// Sums of the item's line i: four lanes in element 2i, and the four lanes 32 further on in element 2i + 1.
var<private> sums: array<vec4<f32>, 8>;

// The first of the item's four lines, and the first of its lanes.
fn line_of(item: u32) -> u32 { return item / 8u * 4u; }
fn lane_of(item: u32) -> u32 { return item % 8u * 4u; }

// Quad and depth that belong to vector `i` of a tile. Consecutive vectors have adjacent lines if `by_lines`
// is set, and adjacent depths otherwise.
fn quad_of(i: u32, by_lines: bool) -> u32 { return select(i / STEP, i % QUADS, by_lines); }
fn depth_of(i: u32, by_lines: bool) -> u32 { return select(i % STEP, i / QUADS, by_lines); }

// Adds the products of two tiles.
fn multiply(item: u32) {
    for (var d = 0u; d < STEP; d++) {
        let line = lines[d * COLUMN + item / 8u];
        let low = lanes[d * COLUMN + item % 8u];
        let high = lanes[d * COLUMN + item % 8u + 8u];
        sums[0] = fma(vec4<f32>(line.x), low, sums[0]);
        sums[1] = fma(vec4<f32>(line.x), high, sums[1]);
        sums[2] = fma(vec4<f32>(line.y), low, sums[2]);
        sums[3] = fma(vec4<f32>(line.y), high, sums[3]);
        sums[4] = fma(vec4<f32>(line.z), low, sums[4]);
        sums[5] = fma(vec4<f32>(line.z), high, sums[5]);
        sums[6] = fma(vec4<f32>(line.w), low, sums[6]);
        sums[7] = fma(vec4<f32>(line.w), high, sums[7]);
    }
}
