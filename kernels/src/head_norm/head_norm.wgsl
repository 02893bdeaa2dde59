// RMS norm of query and key heads, in place. A group processes one head of a row.

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

@group(0) @binding(1) var<storage, read_write> qkv: array<f32>;
@group(0) @binding(2) var<storage, read> weights: array<f32>;

@compute @workgroup_size(ITEMS)
fn head_norm(@builtin(workgroup_id) workgroup: vec3<u32>, item: Item) {
    let group = workgroup + constants.first_group;
    if group.x >= count(constants.word, constants.rows) { return; }
    let head_dim = constants.head_dim;
    let head = (group.x * (constants.heads + 2u * constants.kv_heads) + group.y) * head_dim;
    let weight = select(head_dim, 0u, group.y < constants.heads);
    var sum = 0.0;
    for (var d = item.index; d < head_dim; d += ITEMS) { sum += qkv[head + d] * qkv[head + d]; }
    let scale = inverseSqrt(group_sum(item, sum) / f32(head_dim) + constants.epsilon);
    for (var d = item.index; d < head_dim; d += ITEMS) {
        qkv[head + d] = qkv[head + d] * scale * weights[weight + d];
    }
}
