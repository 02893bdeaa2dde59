// Gated heads. A group processes one head of the output.

struct Constants {
    first_group: vec3<u32>,
    rows: u32,
    word: u32,
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
    epsilon: f32,
}
var<immediate> constants: Constants;

@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> weights: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(ITEMS)
fn gated_heads(@builtin(workgroup_id) workgroup: vec3<u32>, item: Item) {
    let c = constants;
    let group = workgroup + c.first_group;
    if group.x >= count(c.word, c.rows) { return; }
    let head = group.y;
    let is_query = head < c.heads;
    let source = select(head + c.heads, 2u * head, is_query);
    let start = (group.x * 2u * (c.heads + c.kv_heads) + source) * c.head_dim;
    let to = (group.x * (c.heads + 2u * c.kv_heads) + head) * c.head_dim;
    let weight = select(c.head_dim, 0u, is_query);
    var sum = 0.0;
    for (var d = item.index; d < c.head_dim; d += ITEMS) { sum = fma(x[start + d], x[start + d], sum); }
    let scale = inverseSqrt(group_sum(item, sum) / f32(c.head_dim) + c.epsilon);
    for (var d = item.index; d < c.head_dim; d += ITEMS) {
        var value = x[start + d];
        if head < c.heads + c.kv_heads { value *= scale * weights[weight + d]; }
        out[to + d] = value;
    }
}
