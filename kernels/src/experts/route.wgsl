// Finds the experts with the largest scores of each row, and computes their weights. A group processes one row. It
// finds the experts as TopK finds the largest values.

struct Constants {
    first_group: vec3<u32>,
    rows: u32,
    word: u32,
    experts: u32,
    used: u32,
    is_sigmoid: u32,
    is_normalised: u32,
    epsilon: f32,
    scale: f32,
    of_experts: u32,
    groups: u32,
    kept: u32,
    best: u32,
}
var<immediate> constants: Constants;

@group(0) @binding(1) var<storage, read> logits: array<u32>;
@group(0) @binding(2) var<storage, read> numbers: array<f32>;
@group(0) @binding(3) var<storage, read_write> route: array<u32>;

const NOT_A_NUMBER: u32 = 0x7fc00000u;
const MINUS_INFINITE: u32 = 0xff800000u;
// What the experts have.
const BIASES = 1u;
const FACTORS = 2u;

// Bits of the scores.
var<workgroup> scores: array<u32, 1024>;
// Values of the groups of experts.
var<workgroup> values: array<f32, 64>;

// Returns e^(logit − largest), or zero for −∞. The logit must not be NaN or +∞.
fn weight(bits: u32, largest: f32) -> f32 {
    let difference = bitcast<f32>(bits) - largest;
    return select(exp(max(difference, -104.0)), 0.0, (bits & ~SIGN) == INFINITE || difference < -103.9);
}

// Returns the probability of an expert, times the sum over all experts if the gate is a softmax.
fn probability(bits: u32, largest: f32) -> f32 {
    if constants.is_sigmoid == 0u { return weight(bits, largest); }
    let logit = bitcast<f32>(bits);
    return select(1.0 / (1.0 + exp(min(-logit, 88.0))), 0.0, (bits & ~SIGN) == INFINITE || logit < -87.9);
}

// Returns the value of a group of experts: its largest score, or the sum of its two largest.
fn group_value(begin: u32, size: u32) -> f32 {
    var first = bitcast<f32>(scores[begin]);
    var second = -3.4e38;
    for (var c = 1u; c < size; c++) {
        let score = bitcast<f32>(scores[begin + c]);
        second = max(second, min(first, score));
        first = max(first, score);
    }
    return select(first, first + second, constants.best == 2u);
}

@compute @workgroup_size(ITEMS)
fn expert_route(@builtin(workgroup_id) workgroup: vec3<u32>, item: Item) {
    let row = workgroup.x + constants.first_group.x;
    if row >= count(constants.word, constants.rows) { return; }
    let experts = constants.experts;
    let used = constants.used;
    let begin = row * experts;
    let to = row * 2u * used;
    var left = vec2(0u, NOWHERE);
    var bad = 0u;
    for (var c = item.index; c < experts; c += ITEMS) {
        let bits = logits[begin + c];
        if (bits & ~SIGN) > INFINITE || bits == INFINITE { bad = 1u; }
        let candidate = vec2(key_of(bits), c);
        if before(candidate, left) { left = candidate; }
    }
    bad = group_max(item, bad);
    let first = logits[begin + group_best(item, left).y];
    // The largest of all logits may be −∞.
    let fails = bad != 0u || (first & ~SIGN) >= INFINITE;
    let largest = select(bitcast<f32>(first), 0.0, fails);
    var all = 0.0;
    if !fails {
        for (var c = item.index; c < experts; c += ITEMS) { all += weight(logits[begin + c], largest); }
    }
    all = group_sum(item, all);
    let unit = select(all, 1.0, constants.is_sigmoid != 0u);
    let is_by_logit = constants.of_experts != BIASES && constants.groups == 1u;
    for (var c = item.index; c < experts; c += ITEMS) {
        var bits = bitcast<u32>(f32(experts - c));
        if !fails {
            bits = logits[begin + c];
            if !is_by_logit {
                var score = probability(bits, largest) / unit;
                if constants.of_experts == BIASES { score += numbers[c]; }
                bits = bitcast<u32>(score);
            }
        }
        scores[c] = bits;
    }
    workgroupBarrier();
    let size = experts / constants.groups;
    let has_group = constants.groups > 1u && !fails && item.index < constants.groups;
    if has_group { values[item.index] = group_value(item.index * size, size); }
    workgroupBarrier();
    if has_group {
        let value = values[item.index];
        var larger = 0u;
        for (var g = 0u; g < constants.groups; g++) {
            if values[g] > value || (values[g] == value && g < item.index) { larger++; }
        }
        for (var c = 0u; c < size && larger >= constants.kept; c++) {
            scores[item.index * size + c] = MINUS_INFINITE;
        }
    }
    workgroupBarrier();
    left = vec2(0u, NOWHERE);
    for (var c = item.index; c < experts; c += ITEMS) {
        let candidate = vec2(key_of(scores[c]), c);
        if before(candidate, left) { left = candidate; }
    }
    var chosen = 0.0;
    var own = 0u;
    for (var i = 0u; i < used; i++) {
        let best = group_best(item, left);
        let owner = best.y % ITEMS;
        if !fails { chosen += probability(logits[begin + best.y], largest); }
        if item.index == i { own = best.y; }
        var next = vec2(0u, NOWHERE);
        for (var c = owner + item.index * ITEMS; c < experts; c += ITEMS * ITEMS) {
            let candidate = vec2(key_of(scores[c]), c);
            if before(best, candidate) && before(candidate, next) { next = candidate; }
        }
        next = group_best(item, next);
        if item.index == owner { left = next; }
    }
    if item.index < used {
        let sum = select(unit, chosen + constants.epsilon * unit, constants.is_normalised != 0u);
        var value = NOT_A_NUMBER;
        if !fails {
            var factor = constants.scale;
            if constants.of_experts == FACTORS { factor *= numbers[own]; }
            value = bitcast<u32>(probability(logits[begin + own], largest) / sum * factor);
        }
        route[to + item.index] = own;
        route[to + used + item.index] = value;
    }
}
