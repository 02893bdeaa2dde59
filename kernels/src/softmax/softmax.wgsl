// Softmax of each row. A group processes one row.

struct Constants {
    first_group: vec3<u32>,
    rows: u32,
    word: u32,
    width: u32,
}
var<immediate> constants: Constants;

@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read_write> out: array<u32>;

const NOT_A_NUMBER = 0x7fc00000u;

@compute @workgroup_size(ITEMS)
fn softmax(@builtin(workgroup_id) workgroup: vec3<u32>, item: Item) {
    let row = workgroup.x + constants.first_group.x;
    if row >= count(constants.word, constants.rows) { return; }
    let width = constants.width;
    let begin = row * width;
    var highest = 0u;
    for (var c = item.index; c < width; c += ITEMS) {
        let key = key_of(x[begin + c]);
        highest = max(highest, select(key, NOWHERE, key == 0u)); // NaN is above all numbers.
    }
    highest = group_max(item, highest);
    // If all values are −∞, the results are zero. If a row contains NaN or +∞, its results are NaN.
    let is_too_high = highest >= key_of(INFINITE);
    if is_too_high || highest <= key_of(INFINITE | SIGN) {
        for (var c = item.index; c < width; c += ITEMS) { out[begin + c] = select(0u, NOT_A_NUMBER, is_too_high); }
        return;
    }
    let largest = bitcast<f32>(select(~highest, highest & ~SIGN, highest >= SIGN));
    var sum = 0.0;
    for (var c = item.index; c < width; c += ITEMS) { sum += exp(bitcast<f32>(x[begin + c]) - largest); }
    sum = group_sum(item, sum);
    for (var c = item.index; c < width; c += ITEMS) {
        out[begin + c] = bitcast<u32>(exp(bitcast<f32>(x[begin + c]) - largest) / sum);
    }
}
