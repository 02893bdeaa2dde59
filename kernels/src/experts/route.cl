// The experts of each row with the largest scores, and their weights: one group a row. The experts are found as TopK
// finds the largest values.

#define MAX_USED 64
#define MAX_EXPERTS 1024
#define MAX_GROUPS 64
// What the experts have.
#define BIASES 1
#define FACTORS 2

// Value of a group of experts: its largest score, or the sum of its two largest.
FN float group_value(const LOCAL float *scores, uint size, uint best) {
    float first = scores[0], second = AS_FLOAT(0xff800000u);
    for (uint c = 1; c < size; c++) {
        float score = scores[c];
        second = score > first ? first : (score > second ? score : second);
        first = score > first ? score : first;
    }
    return best == 2 ? first + second : first;
}

KERNEL(ITEMS) expert_route(
    const GLOBAL uint *RESTRICT params, const GLOBAL float *RESTRICT logits, const GLOBAL float *RESTRICT numbers,
    GLOBAL uint *RESTRICT route, uint rows, uint word, uint experts, uint used, uint is_sigmoid, uint is_normalised,
    uint epsilon, uint scale, uint of_experts, uint groups, uint kept, uint best_of_group
) {
    BEGIN();
    SHARED ulong scratch[REDUCE_SPACE];
    SHARED float sums[REDUCE_SPACE];
    SHARED float scores[MAX_EXPERTS];
    SHARED float values[MAX_GROUPS];
    SHARED uint ids[MAX_USED];
    uint size = experts / groups;
    experts = used_width(params, word, rows, experts);
    used = min(used, experts);
    const GLOBAL float *from = logits + (size_t)GROUP(0) * experts;
    GLOBAL uint *to = route + (size_t)GROUP(0) * 2 * used;
    ulong left = 0;
    for (uint c = ITEM; c < experts; c += ITEMS) left = max(left, ranked(from[c], c));
    left = group_best(scratch, left);
    float largest = experts > 0 ? from[place_of(left)] : 0.0f, all = 0.0f;
    for (uint c = ITEM; c < experts; c += ITEMS) all += exp(from[c] - largest);
    all = group_sum(sums, all);
    // The sum is not a number if any probability is none.
    bool fails = isnan(all), is_by_logit = of_experts != BIASES && groups == 1;
    for (uint c = ITEM; c < experts; c += ITEMS) {
        float logit = from[c];
        float probability = is_sigmoid ? 1.0f / (1.0f + exp(-logit)) : exp(logit - largest) / all;
        float score = is_by_logit ? logit : probability;
        if (of_experts == BIASES) score += numbers[c];
        scores[c] = fails ? (float)(experts - c) : score;
    }
    BARRIER();
    bool has_groups = groups > 1 && experts > 0 && !fails;
    if (has_groups && ITEM < groups) values[ITEM] = group_value(scores + ITEM * size, size, best_of_group);
    BARRIER();
    if (has_groups && ITEM < groups) {
        float value = values[ITEM];
        uint larger = 0;
        for (uint g = 0; g < groups; g++) larger += values[g] > value || (values[g] == value && g < ITEM);
        for (uint c = 0; c < size && larger >= kept; c++) scores[ITEM * size + c] = AS_FLOAT(0xff800000u);
    }
    BARRIER();
    left = 0;
    for (uint c = ITEM; c < experts; c += ITEMS) left = max(left, ranked(scores[c], c));
    float chosen = 0.0f, unit = is_sigmoid ? 1.0f : all;
    for (uint i = 0; i < used; i++) {
        ulong best = group_best(scratch, left);
        uint id = place_of(best), owner = id % ITEMS;
        chosen += is_sigmoid ? 1.0f / (1.0f + exp(-from[id])) : exp(from[id] - largest);
        if (ITEM == 0) ids[i] = id;
        ulong next = 0;
        for (uint c = owner + ITEM * ITEMS; c < experts; c += ITEMS * ITEMS) {
            ulong rank = ranked(scores[c], c);
            if (rank < best) next = max(next, rank);
        }
        next = group_best(scratch, next);
        if (ITEM == owner) left = next;
    }
    BARRIER();
    if (ITEM < used) {
        float logit = from[ids[ITEM]];
        float probability = is_sigmoid ? 1.0f / (1.0f + exp(-logit)) : exp(logit - largest);
        float sum = is_normalised ? chosen + AS_FLOAT(epsilon) * unit : unit;
        to[ITEM] = ids[ITEM];
        float factor = AS_FLOAT(scale) * (of_experts == FACTORS ? numbers[ids[ITEM]] : 1.0f);
        to[used + ITEM] = fails ? 0x7fc00000u : AS_UINT(probability / sum * factor);
    }
}
