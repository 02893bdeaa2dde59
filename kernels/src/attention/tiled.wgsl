// Attention of a run's queries. A group of 256 items processes 16 queries over 64 positions at a time.
// Neighbouring rows, and the heads that share a kv head, thus share the loads of keys and values.

// Number of queries and number of positions that a group processes at a time.
const QUERIES = ITEMS / 16u;
const POSITIONS = 64u;
// Number of query dimensions that local memory holds at once, and number of result dimensions that one pass
// computes. Longer heads take several passes.
const DIMS = 128u;
// Strides: between queries, in vectors of four dimensions; between positions, in weights of all queries; and
// between queries, in sets of four positions. Each is one larger than necessary, so that adjacent items
// access different banks.
const QUERY = DIMS / 4u + 1u;
const PITCH = QUERIES + 1u;
const QUAD_PITCH = POSITIONS / 4u + 1u;

// Weights per position and query. Queries are in `fours`, which has at least QUERIES * QUERY vectors.
var<workgroup> weights: array<f32, POSITIONS * PITCH>;
// Largest scores, later sums of weights, per query and four positions.
var<workgroup> shared_by: array<f32, QUERIES * QUAD_PITCH>;
var<workgroup> corrections: array<f32, QUERIES>;

// Loads the dimensions of an item's query from `d0` on into local memory. Dimensions beyond the last become
// zeros. All items must call this together.
fn load_query(item: u32, mine: Query, d0: u32) {
    workgroupBarrier(); // Earlier reads are done.
    let begin = mine.row * constants.stride + mine.head * constants.head_dim;
    for (var i = item % 16u; i < DIMS / 4u; i += 16u) {
        var four = vec4(0.0);
        for (var j = 0u; j < 4u; j++) {
            let d = d0 + i * 4u + j;
            if d < constants.head_dim { four[j] = q[begin + d]; }
        }
        fours[item / 16u * QUERY + i] = four;
    }
    workgroupBarrier();
}

// Partial scores of four positions, over the dimensions of the query that are in local memory. The keys for
// these dimensions start at `key`.
fn scores(at: u32, key: u32, dims: u32) -> vec4<f32> {
    var sum = vec4(0.0);
    for (var i = 0u; i < dims / 4u; i++) {
        let factors = fours[at + i];
        let d = key + i * 16u;
        sum += factors.x * widened(keys_at(d)) + factors.y * widened(keys_at(d + 4u));
        sum += factors.z * widened(keys_at(d + 8u)) + factors.w * widened(keys_at(d + 12u));
    }
    for (var d = dims & ~3u; d < dims; d++) { sum += fours[at + d / 4u][d % 4u] * widened(keys_at(key + d * 4u)); }
    return sum;
}

// Computes DIMS dimensions of the results of QUERIES queries.
fn attend(item: u32, run: Run, first_query: u32, turn: u32) {
    let head_dim = constants.head_dim;
    // For scores and the softmax, an item processes four positions of a step for one query. For values, it
    // processes four dimensions of two queries.
    let quad = item % 16u;
    let at = item / 16u;
    let mine = query_of(run, first_query + at);
    let dim = turn + item % 32u * 4u;
    let pair = item / 32u * 2u;
    let a = query_of(run, first_query + pair);
    let b = query_of(run, first_query + pair + 1u);
    let sums_values = first_query + pair < run.queries && dim < head_dim;
    var acc_a = vec4(0.0);
    var acc_b = vec4(0.0);
    var sum = 0.0;
    var largest = LOWEST;
    let start = run.start - run.start % POSITIONS;
    for (var first = start; first <= run.last; first += POSITIONS) {
        // Scores.
        let position = first + quad * 4u;
        var key = 0u;
        if position <= run.last {
            key = (start_of(params[run.table + position / 16u], run.kv_head) + position % 16u) / 4u;
        }
        var four = vec4(0.0);
        for (var d0 = 0u; d0 < head_dim; d0 += DIMS) {
            // If a head is short, its queries stay in local memory from step to step.
            if first == start || head_dim > DIMS { load_query(item, mine, d0); }
            if position <= run.last { four += scores(at * QUERY, key + d0 * 4u, min(DIMS, head_dim - d0)); }
        }
        // Running softmax.
        let at_position = vec4(position) + vec4(0u, 1u, 2u, 3u);
        let is_seen = (at_position >= vec4(mine.start)) & (at_position < vec4(mine.seen));
        four = select(vec4(LOWEST), capped(four * constants.scale), is_seen);
        shared_by[at * QUAD_PITCH + quad] = max(max(four.x, four.y), max(four.z, four.w));
        workgroupBarrier();
        let before = largest;
        for (var i = 0u; i < 16u; i++) { largest = max(largest, shared_by[at * QUAD_PITCH + i]); }
        let correction = exp(before - largest);
        four = select(vec4(0.0), exp(four - largest), is_seen);
        sum = sum * correction + (four.x + four.y) + (four.z + four.w);
        for (var i = 0u; i < 4u; i++) { weights[(quad * 4u + i) * PITCH + at] = four[i]; }
        if quad == 0u { corrections[at] = correction; }
        workgroupBarrier();
        // Sums of values, for each query over its positions.
        if sums_values {
            acc_a *= corrections[pair];
            acc_b *= corrections[pair + 1u];
            let stop = min(run.last + 1u, first + POSITIONS);
            for (var p = first; p < stop; p++) {
                let begin = start_of(params[run.table + p / 16u], run.kv_head) + p % 16u * head_dim + dim;
                let value = widened(values_at(begin, head_dim - dim));
                let weight = (p - first) * PITCH + pair;
                if p >= a.start && p < a.seen { acc_a += weights[weight] * value; }
                if p >= b.start && p < b.seen { acc_b += weights[weight + 1u] * value; }
            }
        }
    }
    // Sums of weights, then the result.
    workgroupBarrier();
    shared_by[at * QUAD_PITCH + quad] = sum;
    workgroupBarrier();
    if sums_values {
        var total = vec2(0.0);
        for (var i = 0u; i < 16u; i++) {
            total += vec2(shared_by[pair * QUAD_PITCH + i], shared_by[(pair + 1u) * QUAD_PITCH + i]);
        }
        put_result(a, dim, acc_a / total.x);
        if first_query + pair + 1u < run.queries { put_result(b, dim, acc_b / total.y); }
    }
}

fn attend_tiles(item: u32, run: Run) {
    for (var first_query = 0u; first_query < run.queries; first_query += QUERIES) {
        for (var turn = 0u; turn < constants.head_dim; turn += DIMS) { attend(item, run, first_query, turn); }
    }
}
