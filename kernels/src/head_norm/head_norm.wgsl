// Norm of query and key heads, or of all heads, in place. A group processes one head of a row, or
// all of its queries or keys as one head.

struct Constants {
    first_group: vec3<u32>,
    rows: u32,
    word: u32,
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
    epsilon: f32,
    form: u32,
    period: u32,
}
var<immediate> constants: Constants;

const WHOLE = 1u;
const CENTRED = 2u;
const VALUES = 3u;
const GROWTH = 4u;

@group(0) @binding(1) var<storage, read_write> qkv: array<f32>;
@group(0) @binding(2) var<storage, read> weights: array<f32>;

@compute @workgroup_size(ITEMS)
fn head_norm(@builtin(workgroup_id) workgroup: vec3<u32>, item: Item) {
    let group = workgroup + constants.first_group;
    if group.x >= count(constants.word, constants.rows) { return; }
    let head_dim = constants.head_dim;
    let is_whole = constants.form == WHOLE;
    let first = select(group.y, group.y * constants.heads, is_whole);
    let dims = select(1u, select(constants.kv_heads, constants.heads, group.y == 0u), is_whole) * head_dim;
    let head = (group.x * (constants.heads + 2u * constants.kv_heads) + first) * head_dim;
    let is_value = first >= constants.heads + constants.kv_heads;
    let grows = constants.form == GROWTH;
    let is_shared = constants.form == 0u || constants.form == VALUES;
    let weight = select(first, u32(first >= constants.heads && !is_value), is_shared) * head_dim;
    var mean = 0.0;
    var squares = 0.0;
    // The first turn computes the mean, the second one the squares, without a branch around a barrier.
    for (var turn = select(select(1u, 0u, constants.form == CENTRED), 2u, grows); turn < 2u; turn++) {
        var sum = 0.0;
        for (var d = item.index; d < dims; d += ITEMS) {
            let rest = qkv[head + d] - mean;
            sum += select(rest * rest, rest, turn == 0u);
        }
        squares = group_sum(item, sum) / f32(dims);
        mean = select(mean, squares, turn == 0u);
    }
    var scale = inverseSqrt(squares + constants.epsilon);
    if grows {
        let periods = (params[4u + constants.rows + group.x] + 1u) / constants.period;
        scale = 1.0 + constants.epsilon * log(1.0 + f32(periods));
    }
    for (var d = item.index; d < dims; d += ITEMS) {
        var factor = scale;
        if !(is_value || grows) { factor *= weights[weight + d]; }
        qkv[head + d] = (qkv[head + d] - mean) * factor;
    }
}
