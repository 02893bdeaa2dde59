// Applies an operation to pairs of values. Each input has its own strides. An item writes a word of one or
// two values.

struct Constants {
    first_group: vec3<u32>,
    operation: u32, kind: u32,
    size_0: u32, size_1: u32, size_2: u32, size_3: u32, size_4: u32, size_5: u32,
    a_0: u32, a_1: u32, a_2: u32, a_3: u32, a_4: u32, a_5: u32,
    b_0: u32, b_1: u32, b_2: u32, b_3: u32, b_4: u32, b_5: u32,
}
var<immediate> constants: Constants;

@group(0) @binding(0) var<storage, read> a: array<u32>;
@group(0) @binding(1) var<storage, read> b: array<u32>;
@group(0) @binding(2) var<storage, read_write> out: array<u32>;

// Returns the indices in a and b at step `i`.
fn places(i: u32) -> vec2<u32> {
    let c = constants;
    var at = i % c.size_5 * vec2(c.a_5, c.b_5);
    if i < c.size_5 { return at; }
    var rest = i / c.size_5;
    at += rest % c.size_4 * vec2(c.a_4, c.b_4);
    rest /= c.size_4;
    at += rest % c.size_3 * vec2(c.a_3, c.b_3);
    rest /= c.size_3;
    at += rest % c.size_2 * vec2(c.a_2, c.b_2);
    rest /= c.size_2;
    at += rest % c.size_1 * vec2(c.a_1, c.b_1);
    rest /= c.size_1;
    return at + rest * vec2(c.a_0, c.b_0);
}

fn operation_of(operation: u32, a: f32, b: f32) -> f32 {
    switch operation {
        case 0u: { return a + b; }
        case 1u: { return a - b; }
        case 2u: { return a * b; }
        case 3u: { return a / b; }
        case 4u: { return select(b, a, is_nan(a) || (a > b && !is_nan(b))); }
        default: { return select(b, a, is_nan(a) || (a < b && !is_nan(b))); }
    }
}

@compute @workgroup_size(ITEMS)
fn binary(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) item: u32) {
    let c = constants;
    let count = c.size_0 * c.size_1 * c.size_2 * c.size_3 * c.size_4 * c.size_5;
    let word = (workgroup.x + c.first_group.x) * ITEMS + item;
    let start = word * in_a_word(c.kind);
    if start >= count { return; }
    var both = 0u;
    for (var i = 0u; i < in_a_word(c.kind) && start + i < count; i++) {
        let at = places(start + i);
        let left = value_in(a[word_of(c.kind, at.x)], c.kind, at.x);
        let right = value_in(b[word_of(c.kind, at.y)], c.kind, at.y);
        both |= element_of(c.kind, operation_of(c.operation, left, right)) << (16u * i);
    }
    out[word] = both;
}
