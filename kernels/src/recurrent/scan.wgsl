// State scan. The group of the first row of a run processes a block of columns of one head. Four items share a column, and
// each has 32 values of it. They process the rows of the run in tiles, whose queries and keys are in workgroup memory.

struct Constants {
    first_group: vec3<u32>,
    rows: u32,
    sequences: u32,
    table_blocks: u32,
    logit_rows: u32,
    heads: u32,
    key_heads: u32,
    keys: u32,
    values: u32,
    pitch: u32,
    q_at: u32,
    k_at: u32,
    v_at: u32,
    gate_pitch: u32,
    a_at: u32,
    b_at: u32,
    gate_stride: u32,
    flags: u32,
    // Number of slots.
    cache_blocks: u32,
}
var<immediate> constants: Constants;

@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> gates: array<f32>;
@group(0) @binding(3) var<storage, read> weights: array<f32>;
@group(0) @binding(4) var<storage, read_write> state: array<f32>;
@group(0) @binding(5) var<storage, read_write> out: array<f32>;

const DELTA = 1u;
const TILED = 2u;
const LOGARITHM = 4u;
const PARTS = 4u;
const COLUMNS = ITEMS / PARTS;
const SPAN = 32u;
const TILE = 8u;
// Values per row of a tile. The distance between two rows avoids conflicts between the items that sum them.
const STRIDE = PARTS * SPAN + 4u;

var<workgroup> q: array<f32, TILE * STRIDE>;
var<workgroup> k: array<f32, TILE * STRIDE>;
// For each row: the sums of squares of its query and of its key, and their product. Then what these become.
var<workgroup> dots: array<f32, 3u * TILE>;
var<workgroup> factors: array<f32, 5u * TILE>;
var<workgroup> parts: array<f32, 4u * ITEMS>;

// Returns the number of rows of a tile that begins at a row.
fn rows_of_tile(row: u32, used: u32, sequence: u32) -> u32 {
    var rows = 0u;
    while rows < TILE && row + rows < used {
        if sequence_of(row + rows) != sequence { break; }
        rows++;
    }
    return rows;
}

@compute @workgroup_size(ITEMS)
fn state_scan(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) item: u32) {
    let c = constants;
    let group = workgroup + c.first_group;
    var row = group.x;
    let head = group.y;
    let part = item / COLUMNS;
    let column = group.z * COLUMNS + item % COLUMNS;
    let used = count(0u, c.rows);
    let sequence = sequence_of(row);
    if row >= used { return; }
    if row > 0u { if sequence_of(row - 1u) == sequence { return; } }
    let is_column = column < c.values;
    let slot = slots_of(row);
    let size = c.keys * c.values;
    let reads = is_column && position_of(row) > 0u && slot.x < c.cache_blocks;
    let writes = is_column && slot.y < c.cache_blocks;
    let old = select(0u, (slot.x * c.heads + head) * size, reads);
    let sharing = c.heads / c.key_heads;
    let key_head = select(head / sharing, head % c.key_heads, (c.flags & TILED) > 0u);
    let gate = head / sharing * c.gate_stride + head % sharing;
    let is_delta = (c.flags & DELTA) > 0u;
    var s: array<f32, 32>;
    for (var i = 0u; i < SPAN; i++) {
        let d = part * SPAN + i;
        s[i] = 0.0;
        if reads && d < c.keys { s[i] = state[old + d * c.values + column]; }
    }
    var a = weights[head];
    if (c.flags & LOGARITHM) > 0u { a = -exp(a); }
    let bias = weights[c.heads + head];
    var direct = 0.0;
    if !is_delta { direct = weights[2u * c.heads + head]; }
    loop {
        let tile = rows_of_tile(row, used, sequence);
        if tile == 0u { break; }
        for (var i = item; i < TILE * PARTS * SPAN; i += ITEMS) {
            let t = i / (PARTS * SPAN);
            let d = i % (PARTS * SPAN);
            var query = 0.0;
            var key = 0.0;
            if t < tile && d < c.keys {
                let at = (row + t) * c.pitch + key_head * c.keys + d;
                query = x[at + c.q_at];
                key = x[at + c.k_at];
            }
            q[t * STRIDE + d] = query;
            k[t * STRIDE + d] = key;
        }
        workgroupBarrier();
        if item < 3u * TILE {
            let at = item % TILE * STRIDE;
            let kind = item / TILE;
            var sum = 0.0;
            for (var d = 0u; d < c.keys; d++) {
                let one = select(q[at + d], k[at + d], kind == 1u);
                let other = select(k[at + d], q[at + d], kind == 0u);
                sum = fma(one, other, sum);
            }
            dots[item] = sum;
        }
        workgroupBarrier();
        if item < tile {
            let of_row = (row + item) * c.gate_pitch + gate;
            let raw = gates[of_row + c.a_at] + bias;
            var delta = log(1.0 + exp(raw));
            // The logarithm of 1 plus a small number is this number.
            if raw < -9.0 { delta = exp(raw); }
            if raw > 20.0 { delta = raw; }
            var strength = delta;
            var q_scale = 1.0;
            var k_scale = 1.0;
            if is_delta {
                strength = 1.0 / (1.0 + exp(-gates[of_row + c.b_at]));
                q_scale = inverseSqrt((dots[item] + 1e-6) * f32(c.keys));
                k_scale = inverseSqrt(dots[TILE + item] + 1e-6);
            }
            factors[item] = exp(a * delta);
            factors[TILE + item] = strength;
            factors[2u * TILE + item] = q_scale;
            factors[3u * TILE + item] = k_scale;
            factors[4u * TILE + item] = dots[2u * TILE + item] * q_scale * k_scale;
        }
        workgroupBarrier();
        for (var t = 0u; t < tile; t++) {
            let start = t * STRIDE + part * SPAN;
            var of_q = 0.0;
            var of_k = 0.0;
            for (var i = 0u; i < SPAN; i++) {
                of_q = fma(s[i], q[start + i], of_q);
                of_k = fma(s[i], k[start + i], of_k);
            }
            // The next row uses the other places, so one barrier per row suffices.
            let sums = t % 2u * 2u * ITEMS;
            parts[sums + item] = of_q;
            parts[sums + ITEMS + item] = of_k;
            workgroupBarrier();
            of_q = 0.0;
            of_k = 0.0;
            for (var p = item % COLUMNS; p < ITEMS; p += COLUMNS) {
                of_q += parts[sums + p];
                of_k += parts[sums + ITEMS + p];
            }
            var value = 0.0;
            if is_column { value = x[(row + t) * c.pitch + c.v_at + head * c.values + column]; }
            let decay = factors[t];
            let k_scale = factors[3u * TILE + t];
            let known = select(0.0, decay * k_scale * of_k, is_delta);
            let added = factors[TILE + t] * (value - known);
            if part == 0u && is_column {
                let result = fma(decay * factors[2u * TILE + t], of_q, factors[4u * TILE + t] * added);
                out[((row + t) * c.heads + head) * c.values + column] = fma(direct, value, result);
            }
            for (var i = 0u; i < SPAN; i++) { s[i] = fma(k[start + i], k_scale * added, s[i] * decay); }
        }
        row += tile;
        // The next tile replaces the queries and keys.
        workgroupBarrier();
    }
    if !writes { return; }
    let to = (slot.y * c.heads + head) * size;
    for (var i = 0u; i < SPAN; i++) {
        let d = part * SPAN + i;
        if d < c.keys { state[to + d * c.values + column] = s[i]; }
    }
}
