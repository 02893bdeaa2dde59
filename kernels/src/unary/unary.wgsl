// A function of each value: an item writes a word, of one value or two. Infinities, NaN and large arguments have their limits.

struct Constants {
    first_group: vec3<u32>,
    function: u32, kind: u32, count: u32,
}
var<immediate> constants: Constants;

@group(0) @binding(0) var<storage, read> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> out: array<u32>;

fn sigmoid_of(x: f32) -> f32 { return 1.0 / (1.0 + exp(-clamp(x, -88.0, 88.0))); }

fn tanh_of(x: f32) -> f32 {
    let square = x * x;
    if square < 0.06 {
        let series = fma(square, fma(square, fma(square, 0.021869488, -0.053968254), 0.13333333), -0.33333333);
        return fma(x * square, series, x);
    }
    let rest = exp(-2.0 * min(abs(x), 40.0));
    return sign(x) * (1.0 - rest) / (1.0 + rest);
}

// The normal distribution's: Abramowitz and Stegun, 7.1.26.
fn normal_of(x: f32) -> f32 {
    let z = abs(x) * 0.70710678;
    let t = 1.0 / fma(z, 0.3275911, 1.0);
    let series = fma(t, fma(t, fma(t, fma(t, 1.061405429, -1.453152027), 1.421413741), -0.284496736), 0.254829592);
    let tail = 0.5 * t * series * exp(-z * z);
    return select(1.0 - tail, tail, x < 0.0);
}

// The bits of a function's limit.
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
        case 2u: {
            if x < -88.0 { return 0u; }
            return bitcast<u32>(sigmoid_of(x));
        }
        case 3u: { return bitcast<u32>(tanh_of(clamp(x, -40.0, 40.0))); }
        case 4u: {
            if x > 88.722839 { return INFINITE; }
            if x < -104.0 { return 0u; }
            return bitcast<u32>(exp(x));
        }
        case 5u: {
            if size == 0u { return 0x80000000u | INFINITE; }
            if negative { return NOT_A_NUMBER; }
            return bitcast<u32>(log(x));
        }
        case 6u: {
            if size == 0u { return bits; }
            if negative { return NOT_A_NUMBER; }
            return bitcast<u32>(sqrt(x));
        }
        default: {}
    }
    // What follows tends to zero, and to the argument.
    if x < -88.0 { return 0u; }
    if x > 88.0 { return bits; }
    switch function {
        case 9u: { return bitcast<u32>(x * sigmoid_of(x)); }
        case 10u: { return bitcast<u32>(x * normal_of(x)); }
        default: {
            let inner = 0.7978845608 * fma(0.044715 * x * x, x, x);
            return bitcast<u32>(x * (0.5 + 0.5 * tanh_of(clamp(inner, -40.0, 40.0))));
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
