// Attention of a run's queries on matrix units: 64 queries over 32 positions at a time. A slice has 16
// queries, and a sub-group computes one slice at a time. Keys and values are f16 as stored. Each query and
// each weight is represented as the sum of two f16 values, which keeps 21 bits. The kernel supports heads of
// up to MAX_DIMS dimensions, if their number is a multiple of 16. Missing dimensions of queries are zeros.
// For other heads, the kernel does not use matrix units.
//
// The second of the two values is small, and a device may flush f16 values below 2^-14 to zero. Queries and
// weights are therefore scaled by powers of two within the range of f16. The scale of a query makes its
// largest dimension at least 2^10. The scale of weights is 2^HEADROOM.
//
// The sums of values are relative to the largest score so far, but this score may be out of date. Weights may
// therefore exceed 1 by a factor of up to 2^SLACK. The sums are rescaled only if a weight would exceed this
// limit.
//
// Keys and values of a step pass through local memory. The group loads those of the next step during the
// current step. It needs keys before the scores are known, and values afterwards. It refills each buffer
// after the barrier that follows the buffer's last use.
//
// Lines with a mark are repeated for each 16 dimensions ($d), or each 16 bytes that an item copies ($v).

struct Place {
    @builtin(num_subgroups) sub_groups: u32,
    @builtin(subgroup_id) sub_group: u32,
    @builtin(subgroup_size) size: u32,
    @builtin(subgroup_invocation_id) lane: u32,
}

// The numbering of items makes those that share a query neighbours in a sub-group.
fn item_of(place: Place) -> u32 { return place.sub_group * place.size + place.lane; }

const SLICES = 4u;
const GROUP_QUERIES = 16u * SLICES;
const STEP = 32u;
// The sum of SLACK and HEADROOM is at most 15, because f16 values are below 2^16.
const SLACK = 8.0;
const HEADROOM = 7.0;
// 1 / ln 2
const LOG2_E = 1.4426950408889634;
// Strides in vectors of four values: between queries for scores and for weights, between dimensions of keys,
// and between positions of values. With these strides, adjacent rows have no bank conflicts.
const SCORE_PITCH = STEP / 4u + 1u;
const PART_PITCH = STEP / 4u + 2u;
const KEY_PITCH = STEP / 4u + 2u;
const VALUE_PITCH = MAX_DIMS / 4u + 2u;
// Number of 16-byte vectors per dimension of a step's keys, and per position of its values.
const KEY_VECTORS = STEP / 8u;
const VALUE_VECTORS = MAX_DIMS / 8u;

// `fours` holds scores, or the sums of 16 dimensions. The other arrays are inputs of matrix units: the two
// parts of queries or weights, keys, and values.
var<workgroup> fours: array<vec4<f32>, GROUP_QUERIES * SCORE_PITCH>;
var<workgroup> high: array<vec4<f16>, GROUP_QUERIES * PART_PITCH>;
var<workgroup> low: array<vec4<f16>, GROUP_QUERIES * PART_PITCH>;
var<workgroup> tile_keys: array<vec4<f16>, MAX_DIMS * KEY_PITCH>;
var<workgroup> tile_values: array<vec4<f16>, STEP * VALUE_PITCH>;
// `factors` scale the sums of each query. `shares` holds each item's part of a maximum over the dimensions of
// a query, or of a query's sum of weights.
var<workgroup> factors: array<f32, GROUP_QUERIES>;
var<workgroup> shares: array<f32, ITEMS>;
// Component x: whether any sums need rescaling. The other components are unused. Matrices are loaded from
// multiples of 16 bytes, and the order in which a driver lays out variables is unknown. The size of each
// variable is therefore a multiple of 16 bytes.
var<workgroup> is_scaled: vec4<u32>;

// Stores eight values, each in two parts. The first part is truncated by a bit mask. With a conversion to f16
// and back, a compiler could remove the conversion, so that nothing would be left for the second part.
fn put_parts(at: u32, a: vec4<f32>, b: vec4<f32>) {
    let first_a = bitcast<vec4<f32>>(bitcast<vec4<u32>>(a) & vec4<u32>(0xffffe000u));
    let first_b = bitcast<vec4<f32>>(bitcast<vec4<u32>>(b) & vec4<u32>(0xffffe000u));
    high[at] = vec4<f16>(first_a);
    high[at + 1u] = vec4<f16>(first_b);
    low[at] = vec4<f16>(a - first_a);
    low[at + 1u] = vec4<f16>(b - first_b);
}

fn halves(four: Four) -> vec4<f16> { return vec4<f16>(widened(four)); }

// Returns a vector of the values at one position of a run, or zeros if no query attends to the position.
// Dimensions beyond those of the head have arbitrary values.
fn value_vector(run: Run, first: u32, i: u32) -> vec4<u32> {
    let position = first + i / VALUE_VECTORS;
    if position < run.start || position > run.last { return vec4<u32>(); }
    let block = start_of(params[run.table + position / 16u], run.kv_head);
    let vector = min(i % VALUE_VECTORS, constants.head_dim / 8u - 1u);
    return values[(block + position % 16u * constants.head_dim) / 8u + vector];
}

fn put_values(i: u32, vector: vec4<u32>) {
    let at = i / VALUE_VECTORS * VALUE_PITCH + i % VALUE_VECTORS * 2u;
    tile_values[at] = halves(vector.xy);
    tile_values[at + 1u] = halves(vector.zw);
}

// Returns a vector of one dimension of keys. For missing blocks, returns keys of the last block, but no query
// attends to these positions.
fn key_vector(run: Run, first: u32, i: u32) -> vec4<u32> {
    let dim = min(i / KEY_VECTORS, constants.head_dim - 1u);
    let part = i % KEY_VECTORS;
    let position = min(first + part * 8u, run.last);
    return keys[start_of(params[run.table + position / 16u], run.kv_head) / 8u + dim * 2u + part % 2u];
}

fn put_keys(i: u32, vector: vec4<u32>) {
    let at = i / KEY_VECTORS * KEY_PITCH + i % KEY_VECTORS * 2u;
    tile_keys[at] = halves(vector.xy);
    tile_keys[at + 1u] = halves(vector.zw);
}

// Returns the exponent, in the format of f32, of a query's largest dimension times the scale. The result is
// large enough that the compensating power of two is finite. All items must call this together.
fn exponent_of(item: u32, begin: u32) -> u32 {
    var largest = 0.0;
    for (var d = item % 2u; d < constants.head_dim; d += 2u) { largest = max(largest, abs(q[begin + d])); }
    shares[item] = largest * (constants.scale * LOG2_E);
    workgroupBarrier();
    largest = max(shares[item & ~1u], shares[item | 1u]);
    return max(bitcast<u32>(largest) >> 23u, 11u);
}

// Loads 16 dimensions of a query, times `factor`, into local memory. Dimensions beyond the last become zeros.
// All items must call this together.
fn load_dims(row: u32, side: u32, begin: u32, dim: u32, factor: f32) {
    workgroupBarrier(); // Earlier reads are done.
    var a = vec4(0.0);
    var b = vec4(0.0);
    for (var j = 0u; j < 4u; j++) {
        let d = dim + 8u * side + j;
        if d < constants.head_dim {
            a[j] = q[begin + d] * (constants.scale * LOG2_E) * factor;
            b[j] = q[begin + d + 4u] * (constants.scale * LOG2_E) * factor;
        }
    }
    put_parts(row * PART_PITCH + 2u * side, a, b);
    workgroupBarrier();
}

// Scales 16 dimensions of a query in local memory.
fn scale(row: u32, side: u32) {
    for (var i = side; i < 4u; i += 2u) { fours[row * SCORE_PITCH + i] *= factors[row]; }
}

// Writes 16 dimensions of a query's result from local memory.
fn put_slice(query: Query, row: u32, side: u32, dim: u32, total: f32) {
    for (var i = side; i < 4u; i += 2u) {
        put_result(query, dim + 4u * i, fours[row * SCORE_PITCH + i] / total);
    }
}

// Four scores to base 2. Masked positions have the score LOWEST.
fn seen_scores(at: u32, down: f32, position: u32, start: u32, seen: u32) -> vec4<f32> {
    let at_position = vec4(position) + vec4(0u, 1u, 2u, 3u);
    let is_seen = (at_position >= vec4(start)) & (at_position < vec4(seen));
    var scores = fours[at] * down;
    if constants.cap != 0.0 { scores = capped(scores / LOG2_E) * LOG2_E; }
    return select(vec4(LOWEST), scores, is_seen);
}

fn sum_of(four: vec4<f32>) -> f32 { return (four.x + four.y) + (four.z + four.w); }

// Computes the queries of SLICES slices, starting at `first_query`. Sub-group i computes slice `turn` + i.
fn attend_slices(place: Place, run: Run, first_query: u32, turn: u32) {
    let item = item_of(place);
    // If there are more sub-groups than slices, several sub-groups compute the last slice.
    let slice = min(turn + place.sub_group, SLICES - 1u);
    let of_fours = slice * 16u * SCORE_PITCH;
    let of_parts = slice * 16u * PART_PITCH;
    // In the softmax, an item processes half of the positions of one query.
    let row = item / 2u;
    let side = item % 2u;
    let of_scores = row * SCORE_PITCH + side * 4u;
    let of_weights = row * PART_PITCH + side * 4u;
    let mine = query_of(run, first_query + row);
    let seen = select(0u, mine.seen, first_query + row < run.queries);
    let query_at = mine.row * constants.stride + mine.head * constants.head_dim;
    // `up` scales the largest dimension to at least 2^10, and `down` reverses this.
    let exponent = exponent_of(item, query_at);
    let up = bitcast<f32>((264u - exponent) << 23u);
    let down = bitcast<f32>((exponent - 10u) << 23u);
    load_dims(row, side, query_at, $du * 16u, up); let query_high_$d = coopLoadT<coop_mat16x16<f16, A>>(&high[of_parts], PART_PITCH); let query_low_$d = coopLoadT<coop_mat16x16<f16, A>>(&low[of_parts], PART_PITCH);
    var sums_$d: coop_mat16x16<f32, C>;
    var sum = 0.0;
    var largest = LOWEST;
    let start = run.start - run.start % STEP;
    put_keys(item + $vu * ITEMS, key_vector(run, start, item + $vu * ITEMS));
    var keys_$v = key_vector(run, start + STEP, item + $vu * ITEMS);
    var values_$v = value_vector(run, start, item + $vu * ITEMS);
    workgroupBarrier();
    for (var first = start; first <= run.last; first += STEP) {
        if item == 0u { is_scaled = vec4<u32>(); }
        var scores_near: coop_mat16x16<f32, C>;
        var scores_far: coop_mat16x16<f32, C>;
        { let key = coopLoadT<coop_mat16x16<f16, B>>(&tile_keys[$du * 16u * KEY_PITCH], KEY_PITCH); scores_near = coopMultiplyAdd(query_low_$d, key, coopMultiplyAdd(query_high_$d, key, scores_near)); }
        { let key = coopLoadT<coop_mat16x16<f16, B>>(&tile_keys[$du * 16u * KEY_PITCH + 4u], KEY_PITCH); scores_far = coopMultiplyAdd(query_low_$d, key, coopMultiplyAdd(query_high_$d, key, scores_far)); }
        coopStoreT(scores_near, &fours[of_fours], SCORE_PITCH);
        coopStoreT(scores_far, &fours[of_fours + 4u], SCORE_PITCH);
        workgroupBarrier();
        put_values(item + $vu * ITEMS, values_$v);
        put_keys(item + $vu * ITEMS, keys_$v);
        // Running softmax.
        let position = first + 16u * side;
        let a = seen_scores(of_scores, down, position, mine.start, seen);
        let b = seen_scores(of_scores + 1u, down, position + 4u, mine.start, seen);
        let c = seen_scores(of_scores + 2u, down, position + 8u, mine.start, seen);
        let d = seen_scores(of_scores + 3u, down, position + 12u, mine.start, seen);
        let best_four = max(max(a, b), max(c, d));
        let own_best = max(max(best_four.x, best_four.y), max(best_four.z, best_four.w));
        let best = max(own_best, subgroupShuffleXor(own_best, 1u));
        var factor = 1.0;
        if best > largest + SLACK {
            factor = exp2(largest - best);
            largest = best;
            if first > start { is_scaled.x = 1u; }
        }
        if side == 0u { factors[row] = factor; }
        // If all positions so far are masked, `largest` is LOWEST and the weights are arbitrary. The factor of
        // the first valid score is zero and removes them. Later, masked positions contribute nothing.
        let base = largest - HEADROOM;
        let weights_a = exp2(a - base);
        let weights_b = exp2(b - base);
        let weights_c = exp2(c - base);
        let weights_d = exp2(d - base);
        sum = sum * factor + sum_of((weights_a + weights_b) + (weights_c + weights_d));
        put_parts(of_weights, weights_a, weights_b);
        put_parts(of_weights + 2u, weights_c, weights_d);
        let scales = workgroupUniformLoad(&is_scaled);
        values_$v = value_vector(run, first + STEP, item + $vu * ITEMS);
        keys_$v = key_vector(run, first + 2u * STEP, item + $vu * ITEMS);
        if scales.x != 0u {
            { coopStoreT(sums_$d, &fours[of_fours], SCORE_PITCH); workgroupBarrier(); scale(row, side); workgroupBarrier(); sums_$d = coopLoadT<coop_mat16x16<f32, C>>(&fours[of_fours], SCORE_PITCH); workgroupBarrier(); }
        }
        // Sums of values.
        let near_high = coopLoadT<coop_mat16x16<f16, A>>(&high[of_parts], PART_PITCH);
        let near_low = coopLoadT<coop_mat16x16<f16, A>>(&low[of_parts], PART_PITCH);
        let far_high = coopLoadT<coop_mat16x16<f16, A>>(&high[of_parts + 4u], PART_PITCH);
        let far_low = coopLoadT<coop_mat16x16<f16, A>>(&low[of_parts + 4u], PART_PITCH);
        { let value = coopLoadT<coop_mat16x16<f16, B>>(&tile_values[$du * 4u], VALUE_PITCH); sums_$d = coopMultiplyAdd(near_low, value, coopMultiplyAdd(near_high, value, sums_$d)); }
        { let value = coopLoadT<coop_mat16x16<f16, B>>(&tile_values[16u * VALUE_PITCH + $du * 4u], VALUE_PITCH); sums_$d = coopMultiplyAdd(far_low, value, coopMultiplyAdd(far_high, value, sums_$d)); }
    }
    shares[item] = sum;
    workgroupBarrier();
    let total = shares[2u * row] + shares[2u * row + 1u];
    let is_own = seen > 0u && row / 16u >= turn && row / 16u < turn + place.sub_groups;
    { coopStoreT(sums_$d, &fours[of_fours], SCORE_PITCH); workgroupBarrier(); if is_own { put_slice(mine, row, side, $du * 16u, total); } workgroupBarrier(); }
}

fn attend_run(place: Place, run: Run) {
    if constants.head_dim % 16u == 0u && constants.head_dim <= MAX_DIMS {
        for (var first_query = 0u; first_query < run.queries; first_query += GROUP_QUERIES) {
            for (var turn = 0u; turn < SLICES; turn += place.sub_groups) {
                attend_slices(place, run, first_query, turn);
            }
        }
    } else {
        attend_tiles(item_of(place), run);
    }
}
