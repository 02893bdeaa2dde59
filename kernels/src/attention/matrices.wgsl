// Attention of a run's queries on matrix units, 64 of them over 32 positions at a time. A sub-group has a slice of 16 queries;
// keys and values are f16 as they are, queries and weights are the sum of two f16 values each, which keeps 21 bits of them.
// For heads of up to MOST_DIMS dimensions that are a multiple of 16; the others go without matrices.
//
// The second of two parts is small, and a device may take f16 values below 2^-14 as zero. So queries and weights are scaled by
// powers of two, as far as f16 has room above them: a query so that the largest of its dimensions is 2^10 or more, weights by
// 2^HEADROOM.
//
// What a sum of values is scaled by is not the largest score so far, but one that it was once: weights may be 2^SLACK times as
// large, and sums are scaled anew only where that is not enough.
//
// Lines with a mark are repeated for each 16 dimensions ($d), or each four values that an item copies ($v).

struct Place {
    @builtin(local_invocation_index) item: u32,
    @builtin(num_subgroups) sub_groups: u32,
    @builtin(subgroup_id) sub_group: u32,
}

const SLICES = 4u;
const GROUP_QUERIES = 16u * SLICES;
const STEP = 32u;
// Together at most 15: f16 values end below 2^16.
const SLACK = 8.0;
const HEADROOM = 7.0;
// 1 / ln 2
const LOG2_E = 1.4426950408889634;
// Fours from one query to the next, of scores and of weights, and from one position to the next, of values.
const SCORE_PITCH = STEP / 4u + 1u;
const PART_PITCH = STEP / 4u + 2u;
const VALUES = MOST_DIMS / 4u;
const VALUE_PITCH = VALUES + 2u;

// Scores, or sums of 16 dimensions; and what is to be a matrix: two parts of queries or weights, and values.
var<workgroup> fours: array<vec4<f32>, GROUP_QUERIES * SCORE_PITCH>;
var<workgroup> high: array<vec4<f16>, GROUP_QUERIES * PART_PITCH>;
var<workgroup> low: array<vec4<f16>, GROUP_QUERIES * PART_PITCH>;
var<workgroup> tile: array<vec4<f16>, STEP * VALUE_PITCH>;
// What each query's sums are scaled by, and each item's share of a query's largest dimension or of its sum of weights.
var<workgroup> factors: array<f32, GROUP_QUERIES>;
var<workgroup> shares: array<f32, ITEMS>;
// Whether any sums are, and nothing: matrices are loaded from places that are multiples of 16 bytes, and nobody says in which
// order a driver lays these out. So each has a multiple of 16.
var<workgroup> is_scaled: vec4<u32>;

// Four values in two parts. The first is cut off by its bits: compilers may take a conversion to f16 and back for nothing, and
// then nothing would be left for the second.
fn put_parts(at: u32, four: vec4<f32>) {
    let first = bitcast<vec4<f32>>(bitcast<vec4<u32>>(four) & vec4<u32>(0xffffe000u));
    high[at] = vec4<f16>(first);
    low[at] = vec4<f16>(four - first);
}

// Four dimensions of the values of a position of a run; zeros beyond its last.
fn value_of(run: Run, position: u32, dim: u32) -> vec4<f16> {
    if position > run.last || dim >= constants.head_dim { return vec4<f16>(); }
    let block = start_of(params[run.table + position / 16u], run.kv_head);
    return values[(block + position % 16u * constants.head_dim + dim) / 4u];
}

// Where a block's keys begin, in fours. Where a run has no such block, those of its last are as good: no query sees them.
fn keys_of(run: Run, position: u32) -> u32 {
    return start_of(params[run.table + min(position, run.last) / 16u], run.kv_head) / 4u;
}

// The exponent of a query's largest dimension times the scale, as f32 has it, but never so small that a power of two that makes
// up for it is none. All items come here together.
fn exponent_of(item: u32, begin: u32) -> u32 {
    var largest = 0.0;
    for (var d = item % 2u; d < constants.head_dim; d += 2u) { largest = max(largest, abs(q[begin + d])); }
    shares[item] = largest * (constants.scale * LOG2_E);
    workgroupBarrier();
    largest = max(shares[item & ~1u], shares[item | 1u]);
    return max(bitcast<u32>(largest) >> 23u, 11u);
}

// 16 dimensions of a query, times `factor`, into local memory; zeros beyond its last. All items come here together.
fn load_dims(row: u32, side: u32, begin: u32, dim: u32, factor: f32) {
    workgroupBarrier(); // what was there has been read
    for (var i = side; i < 4u; i += 2u) {
        var four = vec4(0.0);
        for (var j = 0u; j < 4u; j++) {
            let d = dim + 4u * i + j;
            if d < constants.head_dim { four[j] = q[begin + d] * (constants.scale * LOG2_E) * factor; }
        }
        put_parts(row * PART_PITCH + i, four);
    }
    workgroupBarrier();
}

// Scales what a query has of 16 dimensions in local memory.
fn scale(row: u32, side: u32) {
    for (var i = side; i < 4u; i += 2u) { fours[row * SCORE_PITCH + i] *= factors[row]; }
}

// A query's results of 16 dimensions, from local memory.
fn put_slice(query: Query, row: u32, side: u32, dim: u32, total: f32) {
    for (var i = side; i < 4u; i += 2u) {
        put_result(query, dim + 4u * i, fours[row * SCORE_PITCH + i] / total);
    }
}

// Attends with the queries of SLICES slices from `first_query`, of which the sub-groups take those from `turn` on.
fn attend_slices(place: Place, run: Run, first_query: u32, turn: u32) {
    let item = place.item;
    // Where there are more sub-groups than slices, some do the same.
    let slice = min(turn + place.sub_group, SLICES - 1u);
    let of_fours = slice * 16u * SCORE_PITCH;
    let of_parts = slice * 16u * PART_PITCH;
    // As softmax's items: half the positions of a query.
    let row = item / 2u;
    let side = item % 2u;
    let mine = query_of(run, first_query + row);
    let seen = select(0u, mine.seen, first_query + row < run.queries);
    let query_at = mine.row * constants.stride + mine.head * constants.head_dim;
    // Up to 2^10 and more, and back.
    let exponent = exponent_of(item, query_at);
    let up = bitcast<f32>((264u - exponent) << 23u);
    let down = bitcast<f32>((exponent - 10u) << 23u);
    load_dims(row, side, query_at, $du * 16u, up); let query_high_$d = coopLoadT<coop_mat16x16<f16, A>>(&high[of_parts], PART_PITCH); let query_low_$d = coopLoadT<coop_mat16x16<f16, A>>(&low[of_parts], PART_PITCH);
    var sums_$d: coop_mat16x16<f32, C>;
    var sum = 0.0;
    var largest = LOWEST;
    for (var first = 0u; first <= run.last; first += STEP) {
        // Values are on their way while scores are made.
        let value_$v = value_of(run, first + (item + $vu * ITEMS) / VALUES, item % VALUES * 4u);
        if item == 0u { is_scaled = vec4<u32>(); }
        let near = keys_of(run, first);
        let far = keys_of(run, first + 16u);
        var scores_near: coop_mat16x16<f32, C>;
        var scores_far: coop_mat16x16<f32, C>;
        if constants.head_dim > $du * 16u { let key = coopLoadT<coop_mat16x16<f16, B>>(&keys[near + $du * 64u], 4u); scores_near = coopMultiplyAdd(query_low_$d, key, coopMultiplyAdd(query_high_$d, key, scores_near)); }
        if constants.head_dim > $du * 16u { let key = coopLoadT<coop_mat16x16<f16, B>>(&keys[far + $du * 64u], 4u); scores_far = coopMultiplyAdd(query_low_$d, key, coopMultiplyAdd(query_high_$d, key, scores_far)); }
        coopStoreT(scores_near, &fours[of_fours], SCORE_PITCH);
        coopStoreT(scores_far, &fours[of_fours + 4u], SCORE_PITCH);
        workgroupBarrier();
        tile[(item + $vu * ITEMS) / VALUES * VALUE_PITCH + item % VALUES] = value_$v;
        // Softmax so far.
        var best = LOWEST;
        for (var i = 0u; i < STEP / 4u; i++) {
            let is_seen = vec4(first + 4u * i) + vec4(0u, 1u, 2u, 3u) < vec4(seen);
            let four = select(vec4(LOWEST), fours[row * SCORE_PITCH + i] * down, is_seen);
            best = max(best, max(max(four.x, four.y), max(four.z, four.w)));
        }
        var factor = 1.0;
        if best > largest + SLACK {
            factor = exp2(largest - best);
            largest = best;
            if first > 0u { is_scaled.x = 1u; }
        }
        if side == 0u { factors[row] = factor; }
        sum *= factor;
        let base = largest - HEADROOM;
        for (var i = side * 4u; i < side * 4u + 4u; i++) {
            let is_seen = vec4(first + 4u * i) + vec4(0u, 1u, 2u, 3u) < vec4(seen);
            let four = select(vec4(0.0), exp2(fours[row * SCORE_PITCH + i] * down - base), is_seen);
            sum += (four.x + four.y) + (four.z + four.w);
            put_parts(row * PART_PITCH + i, four);
        }
        let scales = workgroupUniformLoad(&is_scaled);
        if scales.x != 0u {
            { coopStoreT(sums_$d, &fours[of_fours], SCORE_PITCH); workgroupBarrier(); scale(row, side); workgroupBarrier(); sums_$d = coopLoadT<coop_mat16x16<f32, C>>(&fours[of_fours], SCORE_PITCH); workgroupBarrier(); }
        }
        // Sums of values.
        let near_high = coopLoadT<coop_mat16x16<f16, A>>(&high[of_parts], PART_PITCH);
        let near_low = coopLoadT<coop_mat16x16<f16, A>>(&low[of_parts], PART_PITCH);
        let far_high = coopLoadT<coop_mat16x16<f16, A>>(&high[of_parts + 4u], PART_PITCH);
        let far_low = coopLoadT<coop_mat16x16<f16, A>>(&low[of_parts + 4u], PART_PITCH);
        if constants.head_dim > $du * 16u { let value = coopLoadT<coop_mat16x16<f16, B>>(&tile[$du * 4u], VALUE_PITCH); sums_$d = coopMultiplyAdd(near_low, value, coopMultiplyAdd(near_high, value, sums_$d)); }
        if constants.head_dim > $du * 16u { let value = coopLoadT<coop_mat16x16<f16, B>>(&tile[16u * VALUE_PITCH + $du * 4u], VALUE_PITCH); sums_$d = coopMultiplyAdd(far_low, value, coopMultiplyAdd(far_high, value, sums_$d)); }
    }
    shares[item] = sum;
    workgroupBarrier();
    let total = shares[2u * row] + shares[2u * row + 1u];
    let is_own = seen > 0u && row / 16u >= turn && row / 16u < turn + place.sub_groups;
    { coopStoreT(sums_$d, &fours[of_fours], SCORE_PITCH); workgroupBarrier(); if is_own { put_slice(mine, row, side, $du * 16u, total); } workgroupBarrier(); }
}

fn attend_run(place: Place, run: Run) {
    if constants.head_dim % 16u == 0u && constants.head_dim <= MOST_DIMS {
        for (var first_query = 0u; first_query < run.queries; first_query += GROUP_QUERIES) {
            for (var turn = 0u; turn < SLICES; turn += place.sub_groups) {
                attend_slices(place, run, first_query, turn);
            }
        }
    } else {
        attend_tiles(place.item, run);
    }
}
