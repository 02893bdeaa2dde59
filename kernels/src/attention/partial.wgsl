// First launch of split attention, for few rows over a long cache. A group processes one split of a row's
// positions, one kv head, and the query heads that share it, four at a time. For each head, it writes the
// mean of the split's values, weighted by their softmax, and the numbers that the merge needs.
//
// Another source provides the access to queries, keys and values, and the steps before and after. There is
// one such source for rotated and appended rows, and one for a row before RoPE and KV append.

struct Constants {
    first_group: vec3<u32>,
    rows: u32,
    sequences: u32,
    table_blocks: u32,
    logit_rows: u32,
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
    cache_blocks: u32,
    scale: f32,
    stride: u32,
    window: u32,
    cap: f32,
    splits: u32,
    word: u32,
}
var<immediate> constants: Constants;

@group(0) @binding(1) var<storage, read> q: array<f32>;
@group(0) @binding(4) var<storage, read_write> partials: array<f32>;

// Number of positions per step, number of sets of four positions per step, and maximum number of query heads
// that are processed together.
const STEP = 64u;
const QUADS = STEP / 4u;
const HEADS = 4u;
// Maximum number of dimensions of the means that one pass computes. Longer heads take several passes.
const DIMS = 128u;
const HALF = ITEMS / 2u;

// Partial scores of a step, per share of the dimensions and per head. Later, the means of half of the items,
// per head.
var<workgroup> space: array<vec4<f32>, HEADS * HALF>;
// Per head and four positions: the weights in `weights`, and the largest score or the sum of the weights in
// `quad_of`. `quad_of` stores four results per vector.
var<workgroup> weights: array<vec4<f32>, HEADS * QUADS>;
var<workgroup> quad_of: array<vec4<f32>, HEADS * QUADS / 4u>;
// Per head: the factor that rescales earlier sums. At the end, the sum of the weights.
var<workgroup> corrections: array<f32, HEADS>;

// A split: its block table, its first position, the position after its last, the kv head of the group, and
// the first position of the window.
struct Run {
    table: u32,
    start: u32,
    end: u32,
    kv_head: u32,
    visible: u32,
}

// Partial scores of four positions for the query that starts at `query`, over dimensions `share`, `share` +
// `shares`, ….
fn scores(run: Run, position: u32, query: u32, share: u32, shares: u32) -> vec4<f32> {
    var sum = vec4(0.0);
    if position >= run.end { return sum; }
    let key = (start_of(params[run.table + position / 16u], run.kv_head) + position % 16u) / 4u;
    var d = share;
    for (; d + 3u * shares < constants.head_dim; d += 4u * shares) {
        // Issues all loads together to hide memory latency.
        let a = keys_of(key, d, position);
        let b = keys_of(key, d + shares, position);
        let c = keys_of(key, d + 2u * shares, position);
        let e = keys_of(key, d + 3u * shares, position);
        sum += q_of(query + d) * widened(a) + q_of(query + d + shares) * widened(b);
        sum += q_of(query + d + 2u * shares) * widened(c) + q_of(query + d + 3u * shares) * widened(e);
    }
    for (; d < constants.head_dim; d += shares) { sum += q_of(query + d) * widened(keys_of(key, d, position)); }
    return sum;
}

// Four dimensions of the value at `position`, or zeros if `position` is not in the window or not below `end`.
fn value_of(run: Run, end: u32, position: u32, dim: u32) -> Four {
    if position >= end || position < run.visible { return Four(); }
    let at = start_of(params[run.table + position / 16u], run.kv_head) + position % 16u * constants.head_dim + dim;
    return values_of(at, dim, position);
}

// One item's part of the means of four heads.
struct Means {
    a: vec4<f32>,
    b: vec4<f32>,
    c: vec4<f32>,
    d: vec4<f32>,
}

fn corrected(means: Means, heads: u32) -> Means {
    var out = means;
    out.a *= corrections[0];
    if heads > 1u { out.b *= corrections[1]; }
    if heads > 2u {
        out.c *= corrections[2];
        out.d *= corrections[3];
    }
    return out;
}

// Adds the value at position `p` of the step, times its weight for each head.
fn with_values(means: Means, heads: u32, p: u32, four: Four) -> Means {
    if p >= STEP { return means; }
    let value = widened(four);
    var out = means;
    out.a += weights[p / 4u][p % 4u] * value;
    if heads > 1u { out.b += weights[QUADS + p / 4u][p % 4u] * value; }
    if heads > 2u {
        out.c += weights[2u * QUADS + p / 4u][p % 4u] * value;
        out.d += weights[3u * QUADS + p / 4u][p % 4u] * value;
    }
    return out;
}

// Halves the number of slots repeatedly by adding the means in the upper half to those in the lower half. At
// the end, slot 0 holds the sums. All items must call this together.
fn gathered(means: Means, heads: u32, slots: u32, slot: u32, quad: u32, quads: u32) -> Means {
    var out = means;
    var left = slots;
    while left > 1u {
        let kept = (left + 1u) / 2u;
        if slot >= kept && slot < left {
            let at = (slot - kept) * quads + quad;
            space[at] = out.a;
            if heads > 1u { space[HALF + at] = out.b; }
            if heads > 2u {
                space[2u * HALF + at] = out.c;
                space[3u * HALF + at] = out.d;
            }
        }
        workgroupBarrier();
        if slot < left - kept {
            let at = slot * quads + quad;
            out.a += space[at];
            if heads > 1u { out.b += space[HALF + at]; }
            if heads > 2u {
                out.c += space[2u * HALF + at];
                out.d += space[3u * HALF + at];
            }
        }
        workgroupBarrier();
        left = kept;
    }
    return out;
}

// Writes four dimensions of a mean.
fn put_mean(at: u32, dim: u32, mean: vec4<f32>) {
    for (var i = 0u; i < 4u; i++) {
        if dim + i < constants.head_dim { partials[at * constants.head_dim + dim + i] = mean[i]; }
    }
}

@compute @workgroup_size(ITEMS)
fn attention_partial(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) item: u32) {
    let group = workgroup + constants.first_group;
    let split = group.x;
    let kv_head = group.y;
    let row = group.z;
    if row >= count(constants.word, constants.rows) { return; }
    let sharing = constants.heads / constants.kv_heads;
    let head_dim = constants.head_dim;
    let sequence = sequence_of(row);
    let position = position_of(row);
    let has_table = sequence < constants.sequences && position / 16u < constants.table_blocks;
    let table = table_of(row);
    let blocks = select(0u, position / 16u + 1u, has_table);
    let exists = reach(item, table, blocks) == blocks && has_table;
    let visible = window_start(position + 1u);
    let skipped = select(0u, visible / 16u, exists);
    let run_length = (blocks - skipped + constants.splits - 1u) / constants.splits * 16u;
    let start = skipped * 16u + split * run_length;
    let end_of_run = select(0u, min(position + 1u, start + run_length), exists);
    let run = Run(table, start, end_of_run, kv_head, visible);
    let sums = constants.rows * constants.heads * constants.splits * head_dim;
    let first_of_row = row * constants.heads + kv_head * sharing;
    if run.start >= run.end {
        for (var h = item; h < sharing; h += ITEMS) {
            let to = sums + ((first_of_row + h) * constants.splits + split) * 2u;
            partials[to] = LOWEST;
            partials[to + 1u] = 0.0;
        }
        return;
    }
    for (var first_head = 0u; first_head < sharing; first_head += HEADS) {
        let left = min(HEADS, sharing - first_head);
        let heads = select(left, 4u, left == 3u);
        let first_query = row * constants.stride + (kv_head * sharing + first_head) * head_dim;
        prepare(item, run, position, first_query, left);
        let shares = ITEMS / QUADS / heads;
        // For the scores, an item processes a part of the dimensions of one head, and four positions of one
        // block. Adjacent items have adjacent keys. For the softmax, only some of the items are active, and
        // each processes one head and four positions.
        let part = item / 4u % 16u;
        let score_head = part / shares;
        let score_quad = item / 64u * 4u + item % 4u;
        let query = query_of(first_query) + min(score_head, left - 1u) * head_dim;
        let head = item / QUADS;
        let quad = item % QUADS;
        let softens = head < heads;
        for (var turn = 0u; turn < head_dim; turn += DIMS) {
            // For the values, an item processes four dimensions of some positions.
            let dim_quads = (min(DIMS, head_dim - turn) + 3u) / 4u;
            let slots = ITEMS / dim_quads;
            let slot = item / dim_quads;
            let dim = turn + item % dim_quads * 4u;
            var means = Means();
            var sum = 0.0;
            var largest = LOWEST;
            for (var first = run.start; first < run.end; first += STEP) {
                // Loads the values while the scores are computed.
                let end = min(run.end, first + STEP);
                let at = first + slot;
                let v0 = value_of(run, end, at, dim);
                let v1 = value_of(run, end, at + slots, dim);
                let v2 = value_of(run, end, at + 2u * slots, dim);
                let v3 = value_of(run, end, at + 3u * slots, dim);
                let v4 = value_of(run, end, at + 4u * slots, dim);
                let v5 = value_of(run, end, at + 5u * slots, dim);
                let v6 = value_of(run, end, at + 6u * slots, dim);
                let v7 = value_of(run, end, at + 7u * slots, dim);
                let score = scores(run, first + score_quad * 4u, query, part % shares, shares);
                space[(part % shares * heads + score_head) * QUADS + score_quad] = score;
                workgroupBarrier();
                // Running softmax.
                var four = vec4(0.0);
                if softens {
                    for (var i = 0u; i < shares; i++) { four += space[(i * heads + head) * QUADS + quad]; }
                    let at_position = vec4(first + quad * 4u) + vec4(0u, 1u, 2u, 3u);
                    let is_seen = (at_position >= vec4(visible)) & (at_position < vec4(run.end));
                    four = select(vec4(LOWEST), capped(four * constants.scale), is_seen);
                    quad_of[item / 4u][item % 4u] = max(max(four.x, four.y), max(four.z, four.w));
                }
                workgroupBarrier();
                if softens {
                    let before = largest;
                    for (var i = 0u; i < QUADS / 4u; i++) {
                        let scored = quad_of[head * (QUADS / 4u) + i];
                        largest = max(largest, max(max(scored.x, scored.y), max(scored.z, scored.w)));
                    }
                    let correction = exp(before - largest);
                    four = exp(four - largest);
                    sum = sum * correction + (four.x + four.y) + (four.z + four.w);
                    weights[item] = four;
                    if quad == 0u { corrections[head] = correction; }
                }
                workgroupBarrier();
                // Sums of values.
                means = corrected(means, heads);
                means = with_values(means, heads, slot, v0);
                means = with_values(means, heads, slot + slots, v1);
                means = with_values(means, heads, slot + 2u * slots, v2);
                means = with_values(means, heads, slot + 3u * slots, v3);
                means = with_values(means, heads, slot + 4u * slots, v4);
                means = with_values(means, heads, slot + 5u * slots, v5);
                means = with_values(means, heads, slot + 6u * slots, v6);
                means = with_values(means, heads, slot + 7u * slots, v7);
            }
            // Sums of weights, then means.
            let to = (first_of_row + first_head) * constants.splits + split;
            if softens { quad_of[item / 4u][item % 4u] = sum; }
            workgroupBarrier();
            if softens && quad == 0u {
                var four = vec4(0.0);
                for (var i = 0u; i < QUADS / 4u; i++) { four += quad_of[head * (QUADS / 4u) + i]; }
                let total = (four.x + four.y) + (four.z + four.w);
                corrections[head] = total;
                if head < left {
                    partials[sums + (to + head * constants.splits) * 2u] = largest;
                    partials[sums + (to + head * constants.splits) * 2u + 1u] = total;
                }
            }
            workgroupBarrier();
            means = gathered(means, heads, min(slots, STEP), slot, item % dim_quads, dim_quads);
            if slot == 0u {
                put_mean(to, dim, means.a / corrections[0]);
                if left > 1u { put_mean(to + constants.splits, dim, means.b / corrections[1]); }
                if left > 2u { put_mean(to + 2u * constants.splits, dim, means.c / corrections[2]); }
                if left > 3u { put_mean(to + 3u * constants.splits, dim, means.d / corrections[3]); }
            }
            workgroupBarrier();
        }
    }
    append(item, run, position);
}
