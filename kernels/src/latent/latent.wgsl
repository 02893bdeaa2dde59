// Queries, the key and the value of latent attention. A group processes one query head of a row, or its latent.

struct Constants {
    first_group: vec3<u32>,
    rows: u32,
    word: u32,
    heads: u32,
    plain: u32,
    rope: u32,
    rank: u32,
    epsilon: f32,
    beta: f32,
    period: u32,
}
var<immediate> constants: Constants;

@group(0) @binding(1) var<storage, read> q: array<f32>;
@group(0) @binding(2) var<storage, read> kv: array<f32>;
@group(0) @binding(3) var<storage, read> weights: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(ITEMS)
fn latent_rows(@builtin(workgroup_id) workgroup: vec3<u32>, item: Item) {
    let c = constants;
    let group = workgroup + c.first_group;
    let row = group.x;
    if row >= count(c.word, c.rows) { return; }
    let joint = c.rope + c.rank;
    let is_query = group.y < c.heads;
    // A query head has no latent.
    let normed = select(c.rank, 0u, is_query);
    let to = (row * (c.heads + 2u) + group.y) * joint;
    let latent = row * joint;
    var sum = 0.0;
    for (var d = item.index; d < normed; d += ITEMS) { sum += kv[latent + d] * kv[latent + d]; }
    let scale = inverseSqrt(group_sum(item, sum) / f32(c.rank) + c.epsilon);
    if !is_query {
        for (var d = item.index; d < c.rope; d += ITEMS) {
            let value = kv[latent + c.rank + d];
            out[to + d] = value;
            out[to + joint + d] = value;
        }
        for (var d = item.index; d < c.rank; d += ITEMS) {
            let value = kv[latent + d] * scale * weights[d];
            out[to + c.rope + d] = value;
            out[to + joint + c.rope + d] = value;
        }
        return;
    }
    var factor = 1.0;
    if c.beta != 0.0 { factor = 1.0 + c.beta * log(f32(params[4u + c.rows + row] / c.period + 1u)); }
    let head = (row * c.heads + group.y) * (c.plain + c.rope) + c.plain;
    for (var d = item.index; d < c.rope; d += ITEMS) { out[to + d] = q[head + d] * factor; }
    if c.beta == 0.0 { return; }
    for (var d = c.rope + item.index; d < joint; d += ITEMS) { out[to + d] *= factor; }
}
