// Applies a function to each value. An item writes a word of one or two values. For infinities, NaN and large
// arguments, the result is the limit of the function.

struct Constants {
    first_group: vec3<u32>,
    function: u32, kind: u32, count: u32,
}
var<immediate> constants: Constants;

@group(0) @binding(0) var<storage, read> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> out: array<u32>;

fn sigmoid_of(x: f32) -> f32 { return select(1.0 / (1.0 + exp(-clamp(x, -88.0, 88.0))), 0.0, x < -88.0); }

// Natural logarithm. The built-in logarithm bounds only the absolute error. This is too inexact near 1.
fn log_of(x: f32) -> f32 {
    let apart = x - 1.0;
    if abs(apart) > 0.25 { return log(x); }
    let s = apart / (x + 1.0);
    let square = s * s;
    return 2.0 * s * fma(square, fma(square, fma(square, 0.14285714, 0.2), 0.33333333), 1.0);
}

// Normal distribution function. The approximation of e^(z²) · erfc(z) is t times a polynomial in t = 1 / (1 +
// 0.45 z). Its relative error is 2 · 10⁻⁶ over the whole tail.
fn normal_of(x: f32) -> f32 {
    let t = 1.0 / fma(abs(x), 0.45 * 0.70710678, 1.0);
    let first = fma(t, fma(t, fma(t, 0.068094056, -0.24572294), 0.21883775), 0.030539254);
    let series = fma(t, fma(t, fma(t, fma(t, first, 0.19408222), 0.2263601), 0.2539196), 0.25389025);
    let tail = 0.5 * t * series * exp(-0.5 * x * x);
    return select(1.0 - tail, tail, x < 0.0);
}

// Bits of a function's limit.
fn limit(function: u32, negative: bool) -> u32 {
    switch function {
        case 2u, 3u: {
            if !negative { return 0x3f800000u; }
            return select(0xbf800000u, 0u, function == 2u);
        }
        case 5u, 6u: { return select(INFINITE, NOT_A_NUMBER, negative); }
        default: { return select(INFINITE, 0u, negative); }
    }
}

fn function_of(function: u32, bits: u32) -> u32 {
    let size = bits & 0x7fffffffu;
    let negative = bits != size && size != 0u;
    if function == 7u { return size; }
    if function == 8u { return bits ^ 0x80000000u; }
    if size > INFINITE { return bits; }
    if size == INFINITE { return limit(function, negative); }
    let x = bitcast<f32>(bits);
    switch function {
        case 0u: { return select(bits, 0u, negative); }
        case 1u: {
            if x > 1.8446743e19 { return INFINITE; }
            return select(bitcast<u32>(x * x), 0u, negative);
        }
        case 2u: { return bitcast<u32>(sigmoid_of(x)); }
        case 3u: { return bitcast<u32>(tanh_of(clamp(x, -40.0, 40.0))); }
        case 4u: {
            if x > 88.722839 { return INFINITE; }
            if x < -104.0 { return 0u; }
            return bitcast<u32>(exp(x));
        }
        case 5u: {
            if size == 0u { return 0x80000000u | INFINITE; }
            if negative { return NOT_A_NUMBER; }
            return bitcast<u32>(log_of(x));
        }
        case 6u: {
            if size == 0u { return bits; }
            if negative { return NOT_A_NUMBER; }
            return bitcast<u32>(sqrt(x));
        }
        default: {}
    }
    // Towards −∞, the result tends to zero. Towards +∞, it tends to the argument.
    if x < -88.0 { return 0u; }
    if x > 88.0 { return bits; }
    switch function {
        case 9u: { return bitcast<u32>(x * sigmoid_of(x)); }
        case 10u: { return bitcast<u32>(x * normal_of(x)); }
        default: {
            return bitcast<u32>(x * sigmoid_of(1.5957691216 * fma(0.044715 * x * x, x, x)));
        }
    }
}

@compute @workgroup_size(ITEMS)
fn unary(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) item: u32) {
    let kind = constants.kind;
    let word = (workgroup.x + constants.first_group.x) * ITEMS + item;
    let start = word * in_a_word(kind);
    if start >= constants.count { return; }
    var both = 0u;
    for (var i = 0u; i < in_a_word(kind) && start + i < constants.count; i++) {
        let bits = convert_element(kind, 0u, element_in(x[word], kind, start + i));
        both |= convert_element(0u, kind, function_of(constants.function, bits)) << (16u * i);
    }
    out[word] = both;
}
