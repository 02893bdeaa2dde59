// Access to the only row of a launch, before RoPE and KV append. Local memory holds the rotated queries, and
// the key and value as the cache stores them. The number of dimensions per row is a multiple of four.

@group(0) @binding(5) var<storage, read> frequencies: array<f32>;

const MAX_DIMS = 256u;

var<workgroup> queries: array<f32, HEADS * MAX_DIMS>;
// The new key in the type of the cache, one dimension per word, and the new value, four dimensions per
// vector.
var<workgroup> new_key: array<u32, MAX_DIMS>;
var<workgroup> new_value: array<Four, MAX_DIMS / 4u>;
// Position of the new key and value.
var<private> newest: u32;

fn q_of(at: u32) -> f32 { return queries[at]; }

fn query_of(first: u32) -> u32 { return 0u; }

fn keys_of(key: u32, d: u32, position: u32) -> Four {
    return with_value(keys[key + d * 4u], newest - position, new_key[d]);
}

fn values_of(at: u32, dim: u32, position: u32) -> Four {
    if position == newest { return new_value[dim / 4u]; }
    return values[at / 4u];
}

// Stores dimension `d` of query `head`. Index `heads` stands for the key.
fn take(head: u32, heads: u32, d: u32, value: f32) {
    if head < heads { queries[head * constants.head_dim + d] = value; } else { new_key[d] = stored(vec4(value)); }
}

// Rotates the key and the queries that start at `first_query`. All items must call this together.
fn prepare(item: u32, run: Run, position: u32, first_query: u32, heads: u32) {
    newest = position;
    let head_dim = constants.head_dim;
    let key = (constants.heads + run.kv_head) * head_dim;
    // Loads the value while the items rotate queries and key. One vector of four dimensions per item
    // suffices.
    let of_value = key + constants.kv_heads * head_dim + 4u * item;
    let brings = 4u * item < head_dim;
    var four = vec4(0.0);
    if brings { four = vec4(q[of_value], q[of_value + 1u], q[of_value + 2u], q[of_value + 3u]); }
    // Adjacent items process adjacent pairs. If there are more items than pairs, the remaining items process
    // other heads. Each item processes two heads at a time.
    let pairs = constants.rope_dims / 2u;
    let columns = max(1u, min(pairs, ITEMS));
    let lines = ITEMS / columns;
    if item < columns * lines {
        for (var i = item % columns; i < pairs; i += columns) {
            let first = select(i, 2u * i, constants.pairing == 0u);
            let second = select(i + pairs, 2u * i + 1u, constants.pairing == 0u);
            let frequency = frequencies[i];
            for (var head = item / columns; head <= heads; head += 2u * lines) {
                let next = head + lines;
                let begin = select(key, first_query + head * head_dim, head < heads);
                let begin_next = select(key, first_query + next * head_dim, next < heads);
                let pair = vec2(q[begin + first], q[begin + second]);
                let pair_next = vec2(q[begin_next + first], q[begin_next + second]);
                let turn = turned(position, frequency) * constants.magnitude;
                take(head, heads, first, pair.x * turn.y - pair.y * turn.x);
                take(head, heads, second, pair.x * turn.x + pair.y * turn.y);
                if next <= heads {
                    take(next, heads, first, pair_next.x * turn.y - pair_next.y * turn.x);
                    take(next, heads, second, pair_next.x * turn.x + pair_next.y * turn.y);
                }
            }
        }
    }
    for (var d = constants.rope_dims + item; d < head_dim; d += ITEMS) {
        for (var head = 0u; head <= heads; head++) {
            take(head, heads, d, q[select(key, first_query + head * head_dim, head < heads) + d]);
        }
    }
    if brings { new_value[item] = four_stored(four); }
    workgroupBarrier();
}

// Writes key and value to the cache if they belong to this split. No vector of positions belongs to two
// splits.
fn append(item: u32, run: Run, position: u32) {
    if run.end != position + 1u { return; }
    let first = start_of(params[run.table + position / 16u], run.kv_head) / 4u;
    let key = first + position % 16u / 4u;
    for (var d = item; d < constants.head_dim; d += ITEMS) {
        keys[key + d * 4u] = with_value(keys[key + d * 4u], position % 4u, new_key[d]);
    }
    let fours = constants.head_dim / 4u;
    for (var i = item; i < fours; i += ITEMS) { values[first + position % 16u * fours + i] = new_value[i]; }
}
