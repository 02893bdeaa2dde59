// State scan. A group processes a block of columns of one head, and the rows of one sequence. Four items share a column, and
// each has 32 values of it. They process the rows in tiles, whose queries and keys are in workgroup memory.
//
// With d(t, i), the product of the decays of the rows after i up to t, the state after row t is
// d(t, -1) · S + Σ d(t, i) · k(i) ⊗ u(i) for all i ≤ t. So products of the tile's rows with each other and with the state
// before the tile suffice, and the items exchange their sums once per tile.

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
const VECTOR = 8u;
const PARTS = 4u;
const COLUMNS = ITEMS / PARTS;
const SPAN = 32u;
const TILE = 4u;
// Values per row of a tile. The distance between two rows avoids conflicts between the items that sum them.
const STRIDE = PARTS * SPAN + 4u;
// Pairs of rows of a tile, and the products that such a pair can have: key · key, query · key, and query · query.
const PAIRS = TILE * TILE;
const KINDS = 3u;

var<workgroup> q: array<f32, TILE * STRIDE>;
var<workgroup> k: array<f32, TILE * STRIDE>;
// Parts of the products of pairs, and of the products of columns with each key and each query.
var<workgroup> dots: array<f32, KINDS * PAIRS * PARTS>;
var<workgroup> sums: array<f32, 2u * TILE * ITEMS>;
// Values for each row of a tile.
var<workgroup> decays: array<f32, TILE>;
var<workgroup> strengths: array<f32, TILE>;
// Decays of the dimensions of the keys, if these have their own. A tile then has one row.
var<workgroup> fades: array<f32, ITEMS>;
// Factors of the state before the tile in the product with a row's key and query, and in the state after the tile.
var<workgroup> far_k: array<f32, TILE>;
var<workgroup> far_q: array<f32, TILE>;
var<workgroup> far_end: f32;
// Factors of what a row adds in a later row's products, and in the state after the tile.
var<workgroup> near_k: array<f32, PAIRS>;
var<workgroup> near_q: array<f32, PAIRS>;
var<workgroup> near_end: array<f32, TILE>;
// First row of the sequence, and the row after its last.
var<workgroup> first_row: u32;
var<workgroup> end_row: u32;

// Returns ln(1 + e^x). That of a small number is this number.
fn softplus(x: f32) -> f32 {
    if x > 20.0 { return x; }
    if x < -9.0 { return exp(x); }
    return log(1.0 + exp(x));
}

// Returns the sum of the parts of a pair's product.
fn whole_dot(at: u32) -> f32 {
    return (dots[at] + dots[at + 1u]) + (dots[at + 2u] + dots[at + 3u]);
}

// Returns the sum of the parts of a column's product.
fn whole_sum(at: u32) -> f32 {
    return (sums[at] + sums[at + COLUMNS]) + (sums[at + 2u * COLUMNS] + sums[at + 3u * COLUMNS]);
}

@compute @workgroup_size(ITEMS)
fn state_scan(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) item: u32) {
    let c = constants;
    let group = workgroup + c.first_group;
    let sequence = group.x;
    let head = group.y;
    let part = item / COLUMNS;
    let column = group.z * COLUMNS + item % COLUMNS;
    let used = count(0u, c.rows);
    if item == 0u {
        first_row = 0u;
        end_row = 0u;
    }
    workgroupBarrier();
    for (var i = item; i < used; i += ITEMS) {
        if sequence_of(i) != sequence { continue; }
        var is_first = i == 0u;
        if i > 0u { is_first = sequence_of(i - 1u) != sequence; }
        var is_last = i + 1u == used;
        if i + 1u < used { is_last = sequence_of(i + 1u) != sequence; }
        if is_first { first_row = i; }
        if is_last { end_row = i + 1u; }
    }
    var row = workgroupUniformLoad(&first_row);
    let end = workgroupUniformLoad(&end_row);
    let is_column = column < c.values;
    let slot = slots_of(row);
    let size = c.keys * c.values;
    let reads = end > row && is_column && position_of(row) > 0u && slot.x < c.cache_blocks;
    let writes = end > row && is_column && slot.y < c.cache_blocks;
    let old = select(0u, (slot.x * c.heads + head) * size, reads);
    let sharing = c.heads / c.key_heads;
    let key_head = select(head / sharing, head % c.key_heads, (c.flags & TILED) > 0u);
    let gate = head / sharing * c.gate_stride + head % sharing;
    let is_delta = (c.flags & DELTA) > 0u;
    let is_vector = (c.flags & VECTOR) > 0u;
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
    // Tiles start at multiples of TILE, wherever the run starts.
    let position = position_of(row) - row;
    while row < end {
        let tile = select(min(end - row, TILE - (position + row) % TILE), 1u, is_vector);
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
        if is_vector {
            let own = select(0u, head * c.keys + item, item < c.keys);
            fades[item] = exp(a * softplus(gates[row * c.gate_pitch + c.a_at + own] + weights[c.heads + own]));
        }
        if item < tile {
            let of_row = (row + item) * c.gate_pitch + gate;
            var delta = 0.0;
            if !is_vector { delta = softplus(gates[of_row + c.a_at] + bias); }
            decays[item] = exp(a * delta);
            strengths[item] = delta;
            if is_delta { strengths[item] = 1.0 / (1.0 + exp(-gates[of_row + c.b_at])); }
        }
        workgroupBarrier();
        if is_vector {
            for (var i = 0u; i < SPAN; i++) { s[i] *= fades[part * SPAN + i]; }
        }
        // The items of a part compute the products of all pairs.
        for (var i = item % COLUMNS; i < KINDS * PAIRS; i += COLUMNS) {
            let kind = i / PAIRS;
            let later = i / TILE % TILE;
            let earlier = i % TILE;
            if later >= tile || earlier > later || (kind == 2u && earlier < later) { continue; }
            let one = later * STRIDE + part * SPAN;
            let other = earlier * STRIDE + part * SPAN;
            var sum = 0.0;
            for (var j = 0u; j < SPAN; j++) {
                let x = select(q[one + j], k[one + j], kind == 0u);
                let y = select(k[other + j], q[other + j], kind == 2u);
                sum = fma(x, y, sum);
            }
            dots[i * PARTS + part] = sum;
        }
        for (var t = 0u; t < tile; t++) {
            let start = t * STRIDE + part * SPAN;
            var of_q = 0.0;
            var of_k = 0.0;
            for (var i = 0u; i < SPAN; i++) {
                of_q = fma(s[i], q[start + i], of_q);
                of_k = fma(s[i], k[start + i], of_k);
            }
            sums[t * ITEMS + item] = of_k;
            sums[(TILE + t) * ITEMS + item] = of_q;
        }
        workgroupBarrier();
        let later = item / TILE;
        let earlier = item % TILE;
        if later < tile && earlier <= later {
            var k_scale = 1.0;
            var q_scale = 1.0;
            var earlier_scale = 1.0;
            if is_delta {
                k_scale = inverseSqrt(whole_dot(later * (TILE + 1u) * PARTS) + 1e-6);
                earlier_scale = inverseSqrt(whole_dot(earlier * (TILE + 1u) * PARTS) + 1e-6);
                let squares = whole_dot((2u * PAIRS + later * (TILE + 1u)) * PARTS) + 1e-6;
                q_scale = inverseSqrt(squares * f32(c.keys));
            }
            var decay = 1.0;
            for (var t = earlier + 1u; t <= later; t++) { decay *= decays[t]; }
            near_k[item] = decay * k_scale * earlier_scale * whole_dot(item * PARTS);
            near_q[item] = decay * q_scale * earlier_scale * whole_dot((PAIRS + item) * PARTS);
            if later + 1u == tile { near_end[earlier] = decay * earlier_scale; }
            if earlier == 0u {
                let far = decay * decays[0];
                far_k[later] = far * k_scale;
                far_q[later] = far * q_scale;
                if later + 1u == tile { far_end = far; }
            }
        }
        workgroupBarrier();
        var added: array<f32, 4>;
        for (var t = 0u; t < tile; t++) {
            var value = 0.0;
            if is_column { value = x[(row + t) * c.pitch + c.v_at + head * c.values + column]; }
            var known = far_k[t] * whole_sum(t * ITEMS + item % COLUMNS);
            for (var i = 0u; i < t; i++) { known = fma(near_k[t * TILE + i], added[i], known); }
            added[t] = strengths[t] * (value - select(0.0, known, is_delta));
            // The items of a column write its results in turn.
            if part == t % PARTS && is_column {
                var result = far_q[t] * whole_sum((TILE + t) * ITEMS + item % COLUMNS);
                for (var i = 0u; i <= t; i++) { result = fma(near_q[t * TILE + i], added[i], result); }
                out[((row + t) * c.heads + head) * c.values + column] = fma(direct, value, result);
            }
        }
        for (var i = 0u; i < SPAN; i++) { s[i] *= far_end; }
        for (var t = 0u; t < tile; t++) {
            let factor = near_end[t] * added[t];
            for (var i = 0u; i < SPAN; i++) { s[i] = fma(k[t * STRIDE + part * SPAN + i], factor, s[i]); }
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
