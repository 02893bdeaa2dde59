// xIELU with the numbers of a layer. A group computes a part of a row.

struct Constants {
    first_group: vec3<u32>,
    rows: u32,
    word: u32,
    width: u32,
}
var<immediate> constants: Constants;

@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> numbers: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

fn softplus(x: f32) -> f32 { return max(x, 0.0) + log(1.0 + exp(-abs(x))); }

// Returns e^x − 1 − x for negative x. A series avoids the cancellation at small x.
fn exp_rest(x: f32) -> f32 {
    if abs(x) > 0.125 { return exp(max(x, -88.0)) - 1.0 - x; }
    return x * x * fma(x, fma(x, fma(x, 8.3333333e-3, 4.1666667e-2), 0.16666667), 0.5);
}

@compute @workgroup_size(ITEMS)
fn xielu(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) item: u32) {
    let group = workgroup + constants.first_group;
    if group.x >= count(constants.word, constants.rows) { return; }
    let row = group.x * constants.width;
    let beta = numbers[2];
    let positive = softplus(numbers[0]);
    let negative = beta + softplus(numbers[1]);
    for (var i = 0u; i < 4u; i++) {
        let column = (group.y * 4u + i) * ITEMS + item;
        if column < constants.width {
            let value = x[row + column];
            let least = select(numbers[3], value, value < numbers[3]);
            var curve = negative * (exp_rest(least) + (least - value));
            if value > 0.0 { curve = positive * value * value; }
            out[row + column] = fma(beta, value, curve);
        }
    }
}
