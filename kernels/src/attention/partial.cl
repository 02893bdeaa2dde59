// Attention for few rows over a long cache, the first of two launches: a group takes a run of a row's positions and one kv
// head, with the query heads that share it, which go through the run together. Of each it leaves the mean of the run's
// values, weighted by their softmax, and what the runs are brought together by.

// Positions at once, items that share the dimensions of one, query heads at once.
#define STEP 64
#define SHARERS (ITEMS / STEP)
#define HEADS 8
// Dimensions of the means that are summed at once, and how many of them are an item's. Longer heads take more than one turn.
#define MEAN_DIMS 128
#define OWN_DIMS (MEAN_DIMS / 64)
// Items that share a head's softmax.
#define SOFTENERS (ITEMS / HEADS)

// What eight query heads make of one value of a key; `factors` are theirs. Of four or fewer, the rest is left out.
FN void add_scores(const LOCAL float *factors, float key, bool many, PRIVATE float scores[HEADS]) {
    float4 f = LOAD_LOCALF4(factors);
    scores[0] = fma(f.x, key, scores[0]);
    scores[1] = fma(f.y, key, scores[1]);
    scores[2] = fma(f.z, key, scores[2]);
    scores[3] = fma(f.w, key, scores[3]);
    if (many) {
        f = LOAD_LOCALF4(factors + 4);
        scores[4] = fma(f.x, key, scores[4]);
        scores[5] = fma(f.y, key, scores[5]);
        scores[6] = fma(f.z, key, scores[6]);
        scores[7] = fma(f.w, key, scores[7]);
    }
}

KERNEL(ITEMS) attention_partial(
    const GLOBAL uint *RESTRICT params, const GLOBAL float *RESTRICT q, const GLOBAL KV *RESTRICT keys,
    const GLOBAL KV *RESTRICT values, GLOBAL float *RESTRICT partials, uint rows, uint sequences, uint table_blocks,
    uint logit_rows, uint heads, uint kv_heads, uint head_dim, uint cache_blocks, uint scale, uint stride, uint window,
    uint cap, uint splits, uint word
) {
    BEGIN();
    SHARED float query[DIMS * HEADS] ALIGNED;
    SHARED float scratch[SHARERS * STEP * HEADS]; // as large as the means of four heads
    SHARED float weights[STEP * HEADS] ALIGNED;
    SHARED float softening[HEADS * (SOFTENERS + 1)];
    SHARED float corrections[HEADS];
    SHARED uint shared;
    uint split = GROUP(0), kv_head = GROUP(1), row = GROUP(2), group = heads / kv_heads;
    if (row >= count(params, word, rows)) return;
    Lists at = lists(params, rows, logit_rows);
    uint sequence = at.row_sequences[row], position = at.positions[row];
    bool exists = sequence < sequences && position / 16 < table_blocks;
    const GLOBAL uint *table = table_of(at, row, sequences, table_blocks);
    uint blocks = exists ? position / 16 + 1 : 0;
    exists = reach(&shared, table, blocks, cache_blocks) == blocks && exists;
    uint visible = window_start(position + 1, window), skipped = exists ? visible / 16 : 0;
    uint run = (blocks - skipped + splits - 1) / splits * 16;
    uint start = skipped * 16 + split * run, end = exists ? min(position + 1, start + run) : 0;
    GLOBAL float *sums = partials + (size_t)rows * heads * splits * head_dim;
    if (start >= end) {
        for (uint h = ITEM; h < group; h += ITEMS) {
            GLOBAL float *to = sums + (((size_t)row * heads + kv_head * group + h) * splits + split) * 2;
            to[0] = -INFINITE;
            to[1] = 0.0f;
        }
        return;
    }
    // As scores' items: position `lane` of a step, a part of the dimensions. As softmax's items: a head, two positions. As
    // values' items: dimensions `lane`, `lane` + 64, … over one block of a step.
    uint lane = ITEM % STEP, part = ITEM / STEP, head = ITEM / SOFTENERS, pair = ITEM % SOFTENERS;
    for (uint first_head = 0; first_head < group; first_head += HEADS) {
        uint left = min((uint)HEADS, group - first_head);
        bool many = left > 4;
        size_t at_head = (size_t)row * heads + kv_head * group + first_head;
        const GLOBAL float *from = q + (size_t)row * stride + ((size_t)kv_head * group + first_head) * head_dim;
        for (uint turn = 0; turn < head_dim; turn += MEAN_DIMS) {
            float acc[HEADS][OWN_DIMS], sum = 0.0f, largest = -INFINITE;
            #pragma unroll
            for (uint h = 0; h < HEADS; h++) {
                #pragma unroll
                for (uint i = 0; i < OWN_DIMS; i++) acc[h][i] = 0.0f;
            }
            for (uint first = start; first < end; first += STEP) {
                // Scores.
                float scores[HEADS];
                #pragma unroll
                for (uint h = 0; h < HEADS; h++) scores[h] = 0.0f;
                uint mine = first + lane;
                for (uint d0 = 0; d0 < head_dim; d0 += DIMS) {
                    uint dims = min((uint)DIMS, head_dim - d0);
                    // Short heads stay where they are from step to step.
                    if (first == start || head_dim > DIMS) {
                        BARRIER(); // all have done with what was there
                        for (uint i = ITEM; i < dims * HEADS; i += ITEMS) {
                            query[i] = i % HEADS < left ? from[(size_t)(i % HEADS) * head_dim + d0 + i / HEADS] : 0.0f;
                        }
                        BARRIER();
                    }
                    uint share = (dims + SHARERS - 1) / SHARERS, d = part * share, stop = min(dims, d + share);
                    if (mine < end) {
                        size_t base = ((size_t)table[mine / 16] * kv_heads + kv_head) * head_dim * 16;
                        Keys key = KEYS_AT(keys, base, head_dim, d0, mine % 16);
                        for (; d + 8 <= stop; d += 8) {
                            float loaded[8];
                            #pragma unroll
                            for (uint i = 0; i < 8; i++) loaded[i] = LOAD_KEY(key, d + i);
                            #pragma unroll
                            for (uint i = 0; i < 8; i++) add_scores(query + (d + i) * HEADS, loaded[i], many, scores);
                        }
                        for (; d < stop; d++) add_scores(query + d * HEADS, LOAD_KEY(key, d), many, scores);
                    }
                }
                #pragma unroll
                for (uint h = 0; h < HEADS; h++) scratch[(part * HEADS + h) * STEP + lane] = scores[h];
                BARRIER();
                // Softmax so far.
                float pair_scores[STEP / SOFTENERS], best = -INFINITE;
                #pragma unroll
                for (uint i = 0; i < STEP / SOFTENERS; i++) {
                    uint p = pair + i * SOFTENERS;
                    float score = 0.0f;
                    for (uint s = 0; s < SHARERS; s++) score += scratch[(s * HEADS + head) * STEP + p];
                    bool is_seen = first + p >= visible && first + p < end;
                    pair_scores[i] = is_seen ? capped(score * AS_FLOAT(scale), AS_FLOAT(cap)) : -INFINITE;
                    best = fmax(best, pair_scores[i]);
                }
                softening[head * (SOFTENERS + 1) + pair] = best;
                BARRIER();
                float before = largest;
                #pragma unroll 4 // all at once would take the registers of a second group
                for (uint i = 0; i < SOFTENERS; i++) largest = fmax(largest, softening[head * (SOFTENERS + 1) + i]);
                float correction = exp(before - largest);
                sum *= correction;
                #pragma unroll
                for (uint i = 0; i < STEP / SOFTENERS; i++) {
                    float weight = exp(pair_scores[i] - largest);
                    weights[(pair + i * SOFTENERS) * HEADS + head] = weight;
                    sum += weight;
                }
                if (pair == 0) corrections[head] = correction;
                BARRIER();
                // Sums of values.
                #pragma unroll
                for (uint h = 0; h < HEADS; h++) {
                    #pragma unroll
                    for (uint i = 0; i < OWN_DIMS; i++) acc[h][i] *= corrections[h];
                }
                uint block = first + part * 16, slots = block < end ? min(16u, end - block) : 0;
                size_t base = slots ? ((size_t)table[block / 16] * kv_heads + kv_head) * head_dim * 16 : 0;
                Values value = VALUES_AT(values, base, head_dim, 0, turn, lane);
                const LOCAL float *weight = weights + part * 16 * HEADS;
                // What lies before the window may be no number.
                uint hidden = visible > block ? min(16u, visible - block) : 0;
                #pragma unroll 4
                for (uint slot = hidden; slot < slots; slot++) {
                    float4 a = LOAD_LOCALF4(weight + slot * HEADS), b = FLOAT4(0.0f, 0.0f, 0.0f, 0.0f);
                    if (many) b = LOAD_LOCALF4(weight + slot * HEADS + 4);
                    #pragma unroll
                    for (uint i = 0; i < OWN_DIMS; i++) {
                        if (turn + lane + i * 64 >= head_dim) continue;
                        float v = LOAD_VALUE(value, head_dim, slot, i * 64);
                        acc[0][i] = fma(a.x, v, acc[0][i]);
                        acc[1][i] = fma(a.y, v, acc[1][i]);
                        acc[2][i] = fma(a.z, v, acc[2][i]);
                        acc[3][i] = fma(a.w, v, acc[3][i]);
                        if (many) {
                            acc[4][i] = fma(b.x, v, acc[4][i]);
                            acc[5][i] = fma(b.y, v, acc[5][i]);
                            acc[6][i] = fma(b.z, v, acc[6][i]);
                            acc[7][i] = fma(b.w, v, acc[7][i]);
                        }
                    }
                }
            }
            // The sums of weights, then the means, four heads at a time.
            BARRIER();
            softening[head * (SOFTENERS + 1) + pair] = sum;
            if (pair == 0) corrections[head] = largest;
            #pragma unroll
            for (uint h = 0; h < HEADS; h += 4) {
                BARRIER();
                #pragma unroll
                for (uint j = 0; j < 4; j++) {
                    #pragma unroll
                    for (uint i = 0; i < OWN_DIMS; i++) {
                        scratch[(j * SHARERS + part) * MEAN_DIMS + i * 64 + lane] = acc[h + j][i];
                    }
                }
                BARRIER();
                for (uint j = ITEM / MEAN_DIMS; j < 4; j += ITEMS / MEAN_DIMS) {
                    if (h + j >= left) continue;
                    float total = 0.0f;
                    #pragma unroll 4
                    for (uint i = 0; i < SOFTENERS; i++) total += softening[(h + j) * (SOFTENERS + 1) + i];
                    uint d = ITEM % MEAN_DIMS;
                    float mean = 0.0f;
                    for (uint s = 0; s < SHARERS; s++) mean += scratch[(j * SHARERS + s) * MEAN_DIMS + d];
                    if (turn + d < head_dim) {
                        partials[((at_head + h + j) * splits + split) * head_dim + turn + d] = mean / total;
                    }
                    if (d == 0) {
                        GLOBAL float *to = sums + ((at_head + h + j) * splits + split) * 2;
                        to[0] = corrections[h + j];
                        to[1] = total;
                    }
                }
            }
        }
    }
}
