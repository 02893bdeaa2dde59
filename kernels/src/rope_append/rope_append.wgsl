// Rotates queries in place, and appends rotated keys and values to the cache. A group processes one kv head
// of a row and the query heads that share it.

@compute @workgroup_size(ITEMS)
fn rope_append(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) item: u32) {
    let group = workgroup + constants.first_group;
    let row = group.x;
    let kv_head = group.y;
    if row >= count(0u, constants.rows) { return; }
    let sharing = constants.heads / constants.kv_heads;
    let head_dim = constants.head_dim;
    let position = position_of(row);
    let slot = position % 16u;
    let block = block_of(row, position);
    let exists = block < constants.cache_blocks;
    let cached = (block * constants.kv_heads + kv_head) * head_dim * 16u;
    let joint = row * (constants.heads + 2u * constants.kv_heads) * head_dim;
    let query = joint + kv_head * sharing * head_dim;
    let key = joint + (constants.heads + kv_head) * head_dim;
    let value = key + constants.kv_heads * head_dim;
    // Adjacent items process adjacent pairs. If there are more items than pairs, the remaining items process
    // other heads: first the queries, then the key.
    let pairs = constants.rope_dims / 2u;
    let columns = max(1u, min(pairs, ITEMS));
    let lines = ITEMS / columns;
    let table = min(sequence_of(row), constants.tables - 1u) * pairs;
    if item < columns * lines {
        for (var i = item % columns; i < pairs; i += columns) {
            let turn = turned(position, frequencies[table + i]) * constants.magnitude;
            let first = select(i, 2u * i, constants.pairing == 0u);
            let second = select(i + pairs, 2u * i + 1u, constants.pairing == 0u);
            for (var head = item / columns; head <= sharing; head += lines) {
                let is_query = head < sharing;
                let begin = select(key, query + head * head_dim, is_query);
                let pair = vec2(qkv[begin + first], qkv[begin + second]);
                let a = pair.x * turn.y - pair.y * turn.x;
                let b = pair.x * turn.x + pair.y * turn.y;
                if is_query {
                    qkv[begin + first] = a;
                    qkv[begin + second] = b;
                } else if exists {
                    put_key(cached + first * 16u + slot, a);
                    put_key(cached + second * 16u + slot, b);
                }
            }
        }
    }
    if !exists { return; }
    for (var d = constants.rope_dims + item; d < head_dim; d += ITEMS) {
        put_key(cached + d * 16u + slot, qkv[key + d]);
    }
    for (var d = item; d < head_dim; d += ITEMS) { put_value(cached + slot * head_dim + d, qkv[value + d]); }
}
