// Attention over dense keys and values: a group takes 16 queries of one kv head, 64 positions at a time.

// Queries at once, positions at once, dimensions of values at once, dimensions of keys at once.
#define QUERIES 16
#define POSITIONS 64
#define DIMS 128
#define CHUNK 16
// Floats from the weights of one position to those of the next, and from one dimension of keys to the next.
#define WEIGHTS (QUERIES + 4)
#define KEYS (POSITIONS + 1)
// Below all scores. What a row does not see is UNSEEN.
#define LEAST -3.0e38f
#define UNSEEN -3.3e38f

// What a row sees beside the prefix.
typedef struct {
    int first;
    int end;
} Span;

FN Span span_of(uint row, uint m, uint n, uint causal, uint window) {
    int at = (int)row + (int)n - (int)m, wide = (int)min(window, 1u << 30);
    Span span;
    span.first = window ? at - wide + 1 : 0;
    span.end = causal ? at + 1 : window ? at + wide : (int)n;
    return span;
}

FN bool sees(Span span, uint prefix, uint position) {
    return position < prefix || ((int)position >= span.first && (int)position < span.end);
}

// The first step from `first` on of which a row of the tile may see a position.
FN uint next_step(uint first, uint stop, uint prefix, int begin, int end) {
    while (first < stop && first >= prefix && ((int)(first + POSITIONS) <= begin || (int)first >= end)) first += POSITIONS;
    return first;
}

// cap · tanh(score / cap).
FN float capped(float score, float cap) {
    return cap == 0.0f ? score : cap * tanh_of(score / cap);
}

KERNEL(ITEMS) attention_dense(
    const GLOBAL ELEMENT *RESTRICT q, const GLOBAL ELEMENT *RESTRICT k, const GLOBAL ELEMENT *RESTRICT v,
    GLOBAL float *RESTRICT out, uint batch, uint heads, uint kv_heads, uint m, uint n, uint d, uint q_batch, uint q_head,
    uint q_row, uint k_batch, uint k_head, uint k_row, uint v_batch, uint v_head, uint v_row, uint out_batch,
    uint out_head, uint out_row, uint scale, uint cap, uint causal, uint window, uint prefix
) {
    BEGIN();
    SHARED float query[CHUNK * QUERIES] ALIGNED;
    SHARED float keys[CHUNK * KEYS];
    SHARED float weights[POSITIONS * WEIGHTS] ALIGNED;
    SHARED float partial[QUERIES * 17];
    SHARED float corrections[QUERIES];
    uint sharing = heads / kv_heads, queries = m * sharing, tiles = (queries + QUERIES - 1) / QUERIES;
    uint first_query = GROUP(0) % tiles * QUERIES, kv_head = GROUP(0) / tiles % kv_heads;
    size_t sequence = GROUP(0) / tiles / kv_heads;
    k += sequence * k_batch + (size_t)kv_head * k_head;
    v += sequence * v_batch + (size_t)kv_head * v_head;
    uint last_query = min(first_query + QUERIES, queries) - 1;
    // What any row of the tile sees.
    int begin = span_of(first_query / sharing, m, n, causal, window).first;
    int end = span_of(last_query / sharing, m, n, causal, window).end;
    uint stop = min(max(prefix, (uint)max(end, 0)), n);
    // As positions' items: position `lane` of a step for queries `quad` and three more. As queries' and softmax's items: query
    // `ITEM / 16`. As values' items: dimensions `lane`, `lane` + 64, … of the same four queries.
    uint lane = ITEM % 64, quad = ITEM / 64 * 4;
    uint mine = min(first_query + ITEM / 16, last_query);
    const GLOBAL ELEMENT *from = q + sequence * q_batch + (size_t)(kv_head * sharing + mine % sharing) * q_head
        + (size_t)(mine / sharing) * q_row;
    Span spans[4];
    #pragma unroll
    for (uint i = 0; i < 4; i++) {
        spans[i] = span_of(min(first_query + quad + i, last_query) / sharing, m, n, causal, window);
    }
    for (uint turn = 0; turn < d; turn += DIMS) {
        float acc[4][DIMS / 64], sum = 0.0f, largest = LEAST;
        #pragma unroll
        for (uint i = 0; i < 4; i++) {
            #pragma unroll
            for (uint j = 0; j < DIMS / 64; j++) acc[i][j] = 0.0f;
        }
        uint first = next_step(0, stop, prefix, begin, end);
        for (; first < stop; first = next_step(first + POSITIONS, stop, prefix, begin, end)) {
            // Scores.
            float scores[4] = {0.0f, 0.0f, 0.0f, 0.0f};
            for (uint d0 = 0; d0 < d; d0 += CHUNK) {
                BARRIER(); // all have done with what was there
                uint dim = d0 + ITEM % CHUNK;
                query[ITEM % CHUNK * QUERIES + ITEM / CHUNK] = dim < d ? LOAD_ELEMENT(from, dim) : 0.0f;
                for (uint i = ITEM / CHUNK; i < POSITIONS; i += ITEMS / CHUNK) {
                    bool exists = dim < d && first + i < n;
                    keys[ITEM % CHUNK * KEYS + i] = exists ? LOAD_ELEMENT(k, (size_t)(first + i) * k_row + dim) : 0.0f;
                }
                BARRIER();
                #pragma unroll
                for (uint c = 0; c < CHUNK; c++) {
                    float4 factors = LOAD_LOCALF4(query + c * QUERIES + quad);
                    float key = keys[c * KEYS + lane];
                    scores[0] = fma(factors.x, key, scores[0]);
                    scores[1] = fma(factors.y, key, scores[1]);
                    scores[2] = fma(factors.z, key, scores[2]);
                    scores[3] = fma(factors.w, key, scores[3]);
                }
            }
            #pragma unroll
            for (uint i = 0; i < 4; i++) {
                bool seen = first + lane < n && sees(spans[i], prefix, first + lane);
                weights[lane * WEIGHTS + quad + i] =
                    seen ? capped(scores[i] * AS_FLOAT(scale), AS_FLOAT(cap)) : UNSEEN;
            }
            BARRIER();
            // Softmax so far: 16 items a query, four positions each.
            LOCAL float *four = weights + ITEM % 16 * 4 * WEIGHTS + ITEM / 16;
            float before = largest, best = LEAST;
            for (uint i = 0; i < 4; i++) best = fmax(best, four[i * WEIGHTS]);
            partial[ITEM / 16 * 17 + ITEM % 16] = best;
            BARRIER();
            for (uint i = 0; i < 16; i++) largest = fmax(largest, partial[ITEM / 16 * 17 + i]);
            float correction = exp(before - largest);
            sum *= correction;
            for (uint i = 0; i < 4; i++) {
                float score = four[i * WEIGHTS], weight = score < LEAST ? 0.0f : exp(score - largest);
                four[i * WEIGHTS] = weight;
                sum += weight;
            }
            if (ITEM % 16 == 0) corrections[ITEM / 16] = correction;
            BARRIER();
            // Sums of values. What has no weight may hold anything.
            #pragma unroll
            for (uint i = 0; i < 4; i++) {
                #pragma unroll
                for (uint j = 0; j < DIMS / 64; j++) acc[i][j] *= corrections[quad + i];
            }
            for (uint position = 0; position < min((uint)POSITIONS, n - first); position++) {
                float4 w = LOAD_LOCALF4(weights + position * WEIGHTS + quad);
                if (w.x == 0.0f && w.y == 0.0f && w.z == 0.0f && w.w == 0.0f) continue;
                const GLOBAL ELEMENT *value = v + (size_t)(first + position) * v_row + turn;
                #pragma unroll
                for (uint j = 0; j < DIMS / 64; j++) {
                    if (turn + lane + j * 64 >= d) continue;
                    float x = LOAD_ELEMENT(value, lane + j * 64);
                    if (w.x != 0.0f) acc[0][j] = fma(w.x, x, acc[0][j]);
                    if (w.y != 0.0f) acc[1][j] = fma(w.y, x, acc[1][j]);
                    if (w.z != 0.0f) acc[2][j] = fma(w.z, x, acc[2][j]);
                    if (w.w != 0.0f) acc[3][j] = fma(w.w, x, acc[3][j]);
                }
            }
        }
        // The sums of weights, then the result.
        BARRIER();
        partial[ITEM / 16 * 17 + ITEM % 16] = sum;
        BARRIER();
        #pragma unroll
        for (uint i = 0; i < 4; i++) {
            uint place = first_query + quad + i;
            if (place > last_query) continue;
            float total = 0.0f;
            for (uint s = 0; s < 16; s++) total += partial[(quad + i) * 17 + s];
            GLOBAL float *to = out + sequence * out_batch + (size_t)(kv_head * sharing + place % sharing) * out_head
                + (size_t)(place / sharing) * out_row;
            #pragma unroll
            for (uint j = 0; j < DIMS / 64; j++) {
                uint dim = turn + lane + j * 64;
                if (dim < d) to[dim] = total == 0.0f ? 0.0f : acc[i][j] / total;
            }
        }
        BARRIER();
    }
}
