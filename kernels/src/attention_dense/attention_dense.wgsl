// Dense attention. A group processes 16 queries of one kv head, 64 positions at a time.

struct Constants {
    first_group: vec3<u32>,
    batch: u32,
    heads: u32,
    kv_heads: u32,
    m: u32,
    n: u32,
    d: u32,
    q_batch: u32,
    q_head: u32,
    q_row: u32,
    k_batch: u32,
    k_head: u32,
    k_row: u32,
    v_batch: u32,
    v_head: u32,
    v_row: u32,
    out_batch: u32,
    out_head: u32,
    out_row: u32,
    scale: u32,
    cap: u32,
    causal: u32,
    window: u32,
    prefix: u32,
}
var<immediate> constants: Constants;

@group(0) @binding(0) var<storage, read> q: array<Word>;
@group(0) @binding(1) var<storage, read> k: array<Word>;
@group(0) @binding(2) var<storage, read> v: array<Word>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

// Numbers of queries, of positions, of value dimensions (two per item) and of key dimensions that a group
// processes at a time.
const QUERIES: u32 = 16u;
const POSITIONS: u32 = 64u;
const DIMS: u32 = 128u;
const CHUNK: u32 = 16u;
// Stride between positions for weights, and stride between dimensions for keys.
const WEIGHTS: u32 = QUERIES + 4u;
const KEYS: u32 = POSITIONS + 1u;
const SUMS: u32 = 17u;
// LEAST is lower than all scores. Masked positions have the score UNSEEN.
const LEAST: f32 = -3.0e38;
const UNSEEN: f32 = -3.3e38;

var<workgroup> query: array<f32, CHUNK * QUERIES>;
var<workgroup> keys: array<f32, CHUNK * KEYS>;
var<workgroup> weights: array<f32, POSITIONS * WEIGHTS>;
var<workgroup> partial_sums: array<f32, QUERIES * SUMS>;
var<workgroup> corrections: array<f32, QUERIES>;

// Returns the range of positions that a row attends to in addition to the prefix: the first position, and the
// position after the last.
fn span_of(row: u32) -> vec2<i32> {
    let at = i32(row) + i32(constants.n) - i32(constants.m);
    let wide = i32(min(constants.window, 1u << 30u));
    let narrow = constants.window != 0u;
    let end = select(select(i32(constants.n), at + wide, narrow), at + 1, constants.causal != 0u);
    return vec2<i32>(select(0, at - wide + 1, narrow), end);
}

fn sees(row: u32, position: u32) -> bool {
    let span = span_of(row);
    return position < constants.prefix || (i32(position) >= span.x && i32(position) < span.y);
}

// cap · tanh(score / cap).
fn capped(score: f32) -> f32 {
    let cap = bitcast<f32>(constants.cap);
    if cap == 0.0 || is_nan(score) { return score; }
    if size_bits(score) == INFINITE { return select(cap, -cap, bitcast<u32>(score) > INFINITE); }
    return cap * tanh_of(score / cap);
}

// Adds a value, times four weights, to four sums. If a weight is zero, the value may even be NaN.
fn added(sums: vec4<f32>, w: vec4<f32>, x: f32) -> vec4<f32> {
    return select(sums, fma(w, vec4<f32>(x), sums), w != vec4<f32>(0.0));
}

// Weights of four queries, and one dimension of four queries.
fn weights_from(at: u32) -> vec4<f32> {
    return vec4<f32>(weights[at], weights[at + 1u], weights[at + 2u], weights[at + 3u]);
}
fn queries_from(at: u32) -> vec4<f32> {
    return vec4<f32>(query[at], query[at + 1u], query[at + 2u], query[at + 3u]);
}

@compute @workgroup_size(ITEMS)
fn attention_dense(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) item: u32) {
    let group = workgroup.x + constants.first_group.x;
    let n = constants.n;
    let d = constants.d;
    let sharing = constants.heads / constants.kv_heads;
    let queries = constants.m * sharing;
    let tiles = (queries + QUERIES - 1u) / QUERIES;
    let first_query = group % tiles * QUERIES;
    let last_query = min(first_query + QUERIES, queries) - 1u;
    let kv_head = group / tiles % constants.kv_heads;
    let sequence = group / tiles / constants.kv_heads;
    let k_base = sequence * constants.k_batch + kv_head * constants.k_head;
    let v_base = sequence * constants.v_batch + kv_head * constants.v_head;
    // Range of positions that at least one row of the tile attends to.
    let begin = span_of(first_query / sharing).x;
    let end = span_of(last_query / sharing).y;
    let stop = min(max(constants.prefix, u32(max(end, 0))), n);
    // For scores, an item processes position `lane` of a step for query `quad` and the next three. For loads
    // of queries and the softmax, it processes query `item / 16`. For values, it processes dimensions `lane`
    // and `lane` + 64 of the same four queries.
    let lane = item % 64u;
    let quad = item / 64u * 4u;
    let mine = min(first_query + item / 16u, last_query);
    let q_base = sequence * constants.q_batch + (kv_head * sharing + mine % sharing) * constants.q_head
        + mine / sharing * constants.q_row;
    for (var turn = 0u; turn < d; turn += DIMS) {
        var low = vec4<f32>();
        var high = vec4<f32>();
        var sum = 0.0;
        var largest = LEAST;
        var fails = false;
        for (var first = 0u; first < stop; first += POSITIONS) {
            if first >= constants.prefix && (i32(first + POSITIONS) <= begin || i32(first) >= end) { continue; }
            // Scores.
            var scores = vec4<f32>();
            for (var d0 = 0u; d0 < d; d0 += CHUNK) {
                workgroupBarrier(); // Earlier reads are done.
                let dim = d0 + item % CHUNK;
                var factor = 0.0;
                if dim < d { factor = value(q[word(q_base + dim)], q_base + dim); }
                query[item % CHUNK * QUERIES + item / CHUNK] = factor;
                for (var i = item / CHUNK; i < POSITIONS; i += ITEMS / CHUNK) {
                    var key = 0.0;
                    if dim < d && first + i < n {
                        let at = k_base + (first + i) * constants.k_row + dim;
                        key = value(k[word(at)], at);
                    }
                    keys[item % CHUNK * KEYS + i] = key;
                }
                workgroupBarrier();
                for (var c = 0u; c < CHUNK; c++) {
                    scores = fma(queries_from(c * QUERIES + quad), vec4<f32>(keys[c * KEYS + lane]), scores);
                }
            }
            for (var i = 0u; i < 4u; i++) {
                let row = min(first_query + quad + i, last_query) / sharing;
                var score = UNSEEN;
                if first + lane < n && sees(row, first + lane) {
                    score = capped(scores[i] * bitcast<f32>(constants.scale));
                }
                weights[lane * WEIGHTS + quad + i] = score;
            }
            workgroupBarrier();
            // Running softmax: 16 items per query, four positions each.
            let at = item % 16u * 4u * WEIGHTS + item / 16u;
            let before = largest;
            var best = LEAST;
            for (var i = 0u; i < 4u; i++) {
                // A score of −∞ has no weight. Any other non-finite score makes the row NaN.
                let score = weights[at + i * WEIGHTS];
                if size_bits(score) >= INFINITE {
                    fails = fails || bitcast<u32>(score) != (0x80000000u | INFINITE);
                    weights[at + i * WEIGHTS] = UNSEEN;
                } else {
                    best = max(best, score);
                }
            }
            partial_sums[item / 16u * SUMS + item % 16u] = best;
            workgroupBarrier();
            for (var i = 0u; i < 16u; i++) { largest = max(largest, partial_sums[item / 16u * SUMS + i]); }
            let correction = exp(before - largest);
            sum *= correction;
            for (var i = 0u; i < 4u; i++) {
                let score = weights[at + i * WEIGHTS];
                var weight = 0.0;
                if score >= LEAST { weight = exp(score - largest); }
                weights[at + i * WEIGHTS] = weight;
                sum += weight;
            }
            if item % 16u == 0u { corrections[item / 16u] = correction; }
            workgroupBarrier();
            // Sums of values.
            let four = vec4<f32>(
                corrections[quad], corrections[quad + 1u], corrections[quad + 2u], corrections[quad + 3u],
            );
            low *= four;
            high *= four;
            for (var position = 0u; position < min(POSITIONS, n - first); position++) {
                let w = weights_from(position * WEIGHTS + quad);
                if all(w == vec4<f32>(0.0)) { continue; }
                let dim = turn + lane;
                let from_value = v_base + (first + position) * constants.v_row + dim;
                if dim < d { low = added(low, w, value(v[word(from_value)], from_value)); }
                if dim + 64u < d { high = added(high, w, value(v[word(from_value + 64u)], from_value + 64u)); }
            }
        }
        // Sums of weights, then the result. A negative sum marks a failed row.
        workgroupBarrier();
        partial_sums[item / 16u * SUMS + item % 16u] = select(sum, -1.0, fails);
        workgroupBarrier();
        for (var i = 0u; i < 4u; i++) {
            let place = first_query + quad + i;
            if place > last_query { break; }
            var total = 0.0;
            var row_fails = false;
            for (var s = 0u; s < 16u; s++) {
                let part = partial_sums[(quad + i) * SUMS + s];
                row_fails = row_fails || part < 0.0;
                total += part;
            }
            var results = vec2<f32>();
            // Not a constant, because translating a constant NaN is an error.
            if row_fails { results = vec2<f32>(bitcast<f32>(NOT_A_NUMBER | (place & 1u))); }
            else if total != 0.0 { results = vec2<f32>(low[i], high[i]) / total; }
            let to = sequence * constants.out_batch + (kv_head * sharing + place % sharing) * constants.out_head
                + place / sharing * constants.out_row;
            let dim = turn + lane;
            if dim < d { out[to + dim] = results.x; }
            if dim + 64u < d { out[to + dim + 64u] = results.y; }
        }
        workgroupBarrier();
    }
}
