// Attention of decode rows over a cache: a group takes a run of blocks of 16 positions of one row, for the query heads that
// share a kv head, four at a time. Each warp takes every WARPS-th block of the run, with a softmax of its own; they are
// brought together at the end. Keys and values of the next block are under way while one is worked on.

#define WARPS (ITEMS / 32)
// Values in 16 bytes of the cache, and lanes that share a dimension of 16 positions.
#if KV_F16
#define VECTOR 8
#else
#define VECTOR 4
#endif
#define SHARING (16 / VECTOR)
// Vectors of keys, or of values, of a block that a lane takes.
#define VECTORS(d) ((d) / 2 / VECTOR)
#define MAX_DIMS 128

FN uint4 load_once(const KV *pointer) {
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(pointer));
    return v;
}

FN void vector_values(uint4 bytes, float out[VECTOR]) {
#if KV_F16
    halves(bytes.x, &out[0], &out[1]);
    halves(bytes.y, &out[2], &out[3]);
    halves(bytes.z, &out[4], &out[5]);
    halves(bytes.w, &out[6], &out[7]);
#else
    out[0] = AS_FLOAT(bytes.x);
    out[1] = AS_FLOAT(bytes.y);
    out[2] = AS_FLOAT(bytes.z);
    out[3] = AS_FLOAT(bytes.w);
#endif
}

// Keys, or values, of a block and kv head: 16 · D values that stand together.
template <uint D> FN void load_block(const KV *cache, uint block, uint kv_heads, uint kv_head, uint4 out[VECTORS(D)]) {
    const KV *from = cache + ((size_t)block * kv_heads + kv_head) * (16 * D) + ITEM % 32 * VECTOR;
    #pragma unroll
    for (uint i = 0; i < VECTORS(D); i++) out[i] = load_once(from + i * 32 * VECTOR);
}

// Scores of a block's positions with four heads; two heads of one position stay with each lane.
template <uint D> FN void block_scores(const uint4 keys[VECTORS(D)], const float4 *query, float out[2]) {
    float sums[VECTOR * 4];
    #pragma unroll
    for (uint i = 0; i < VECTOR * 4; i++) sums[i] = 0.0f;
    #pragma unroll
    for (uint i = 0; i < VECTORS(D); i++) {
        float values[VECTOR];
        vector_values(keys[i], values);
        float4 q = query[i * (32 / SHARING) + ITEM % 32 / SHARING];
        #pragma unroll
        for (uint j = 0; j < VECTOR; j++) {
            sums[j * 4] = fma(values[j], q.x, sums[j * 4]);
            sums[j * 4 + 1] = fma(values[j], q.y, sums[j * 4 + 1]);
            sums[j * 4 + 2] = fma(values[j], q.z, sums[j * 4 + 2]);
            sums[j * 4 + 3] = fma(values[j], q.w, sums[j * 4 + 3]);
        }
    }
    sum_lanes<VECTOR * 4, 2, 16, SHARING>(sums);
    out[0] = sums[0];
    out[1] = sums[1];
}

// Over the lanes that hold the same two heads.
FN float largest_of_heads(float value) {
    #pragma unroll
    for (uint bit = 16; bit > 0; bit /= 2) {
        if (bit != SHARING) value = fmax(value, __shfl_xor_sync(~0u, value, bit));
    }
    return value;
}
FN float sum_of_heads(float value) {
    #pragma unroll
    for (uint bit = 16; bit > 0; bit /= 2) {
        if (bit != SHARING) value += __shfl_xor_sync(~0u, value, bit);
    }
    return value;
}

typedef struct {
    float largest[2], sum[2]; // of the lane's two heads; sums are the lane's alone
    float acc[VECTOR][4];     // of the lane's dimensions, four heads
} Softmax;

// A score that tends to ± `cap`; no cap is zero.
FN float capped(float score, float cap) {
    return cap == 0.0f ? score : cap - 2.0f * cap / (1.0f + exp(score * (2.0f / cap)));
}

// Takes a block with visible positions from `hidden` to before `steps` in.
template <uint D>
FN void take_block(
    Softmax *state, const float score[2], const uint4 values[VECTORS(D)], uint hidden, uint steps, float4 *weights
) {
    const uint lane = ITEM % 32, pair = lane / SHARING % 2;
    const uint position = lane % SHARING * VECTOR + (lane / SHARING / 2) % VECTOR;
    float before[2] = {state->largest[0], state->largest[1]}, weight[2];
    bool used = position >= hidden && position < steps, changed = false;
    #pragma unroll
    for (uint h = 0; h < 2; h++) {
        state->largest[h] = fmax(before[h], largest_of_heads(used ? score[h] : -INFINITE));
        weight[h] = used ? exp(score[h] - state->largest[h]) : 0.0f;
        changed = changed || state->largest[h] != before[h];
    }
    if (__any_sync(~0u, changed)) {
        float correction[2], all[4];
        #pragma unroll
        for (uint h = 0; h < 2; h++) {
            correction[h] = exp(before[h] - state->largest[h]);
            state->sum[h] *= correction[h];
            all[h] = __shfl_sync(~0u, correction[h], 0);
            all[2 + h] = __shfl_sync(~0u, correction[h], SHARING);
        }
        #pragma unroll
        for (uint j = 0; j < VECTOR; j++) {
            #pragma unroll
            for (uint h = 0; h < 4; h++) state->acc[j][h] *= all[h];
        }
    }
    state->sum[0] += weight[0];
    state->sum[1] += weight[1];
    __syncwarp(); // the weights of the block before have been read
    *(float2 *)((float *)(weights + position) + pair * 2) = make_float2(weight[0], weight[1]);
    __syncwarp();
    #pragma unroll
    for (uint i = 0; i < VECTORS(D); i++) {
        uint at = (i * 32 + lane) * VECTOR / D;
        float4 w = weights[at];
        float v[VECTOR];
        // What lies before and beyond may be no number.
        vector_values(at >= hidden && at < steps ? values[i] : UINT4(0, 0, 0, 0), v);
        #pragma unroll
        for (uint j = 0; j < VECTOR; j++) {
            state->acc[j][0] = fma(v[j], w.x, state->acc[j][0]);
            state->acc[j][1] = fma(v[j], w.y, state->acc[j][1]);
            state->acc[j][2] = fma(v[j], w.z, state->acc[j][2]);
            state->acc[j][3] = fma(v[j], w.w, state->acc[j][3]);
        }
    }
}

// Brings the warps together: values of four heads, each over its sum, and for each head maximum and sum.
template <uint D>
FN void merge_warps(Softmax *state, float *space, float2 *extremes, float *values, float *sums, uint splits, uint left) {
    const uint lane = ITEM % 32, warp = ITEM / 32;
    #pragma unroll
    for (uint h = 0; h < 2; h++) {
        float sum = sum_of_heads(state->sum[h]);
        if (lane == 0 || lane == SHARING) extremes[warp * 4 + (lane ? 2 : 0) + h] = make_float2(state->largest[h], sum);
    }
    BARRIER();
    float factor[4], largest[4], total[4];
    #pragma unroll
    for (uint h = 0; h < 4; h++) {
        largest[h] = -INFINITE;
        total[h] = 0.0f;
        #pragma unroll
        for (uint w = 0; w < WARPS; w++) largest[h] = fmax(largest[h], extremes[w * 4 + h].x);
        #pragma unroll
        for (uint w = 0; w < WARPS; w++) {
            float2 e = extremes[w * 4 + h];
            if (e.y != 0.0f) total[h] += e.y * exp(e.x - largest[h]);
        }
        float2 mine = extremes[warp * 4 + h];
        factor[h] = mine.y != 0.0f ? exp(mine.x - largest[h]) : 0.0f;
    }
    #pragma unroll
    for (uint h = 0; h < 4; h++) {
        #pragma unroll
        for (uint j = 0; j < VECTOR; j++) {
            float value = state->acc[j][h];
            #pragma unroll
            for (uint bit = 16; bit >= D / VECTOR; bit /= 2) value += __shfl_xor_sync(~0u, value, bit);
            state->acc[j][h] = value * factor[h];
        }
        if (lane < D / VECTOR) {
            #pragma unroll
            for (uint j = 0; j < VECTOR; j += 4) {
                *(float4 *)(space + (warp * 4 + h) * D + lane * VECTOR + j) =
                    FLOAT4(state->acc[j][h], state->acc[j + 1][h], state->acc[j + 2][h], state->acc[j + 3][h]);
            }
        }
    }
    BARRIER();
    for (uint i = ITEM; i < 4 * D; i += ITEMS) {
        uint h = i / D;
        float value = 0.0f, all = h == 0 ? total[0] : h == 1 ? total[1] : h == 2 ? total[2] : total[3];
        #pragma unroll
        for (uint w = 0; w < WARPS; w++) value += space[w * 4 * D + i];
        if (h < left) values[(size_t)h * splits * D + i % D] = value / all;
    }
    #pragma unroll
    for (uint h = 0; h < 4; h++) {
        if (ITEM == h && h < left) *(float2 *)(sums + (size_t)h * splits * 2) = make_float2(largest[h], total[h]);
    }
    BARRIER();
}

typedef struct {
    const float *q;       // of the first head
    const KV *keys, *cached;
    const uint *table;
    uint kv_heads, kv_head, heads; // heads that share the kv head
    uint start, end;      // blocks of the run
    uint from, seen;      // the row's first visible position, and the one after its last
    float scale, cap;     // no cap is zero
    float *values, *sums; // of the first head's split
    uint splits;
} Work;

typedef struct {
    float4 query[MAX_DIMS];         // four heads of each dimension
    float4 weights[WARPS * 16];      // of four heads, for each warp's positions
    float4 values[WARPS * MAX_DIMS]; // [warps][4 heads][dimensions] of f32
    float2 extremes[WARPS * 4];
} Space;

template <uint D> FN void attend(const Work *work, Space *space) {
    const uint warp = ITEM / 32;
    AWAIT_LAST();
    for (uint head = 0; head < work->heads; head += 4) {
        uint b = work->start + warp;
        uint block = b < work->end ? work->table[b] : 0;
        uint next = b + WARPS < work->end ? work->table[b + WARPS] : 0;
        uint4 keys[VECTORS(D)];
        if (b < work->end) load_block<D>(work->keys, block, work->kv_heads, work->kv_head, keys);
        for (uint i = ITEM; i < 4 * D; i += ITEMS) {
            bool inside = head + i / D < work->heads;
            ((float *)space->query)[i % D * 4 + i / D] = inside ? work->q[(head + i / D) * D + i % D] * work->scale : 0.0f;
        }
        Softmax state;
        #pragma unroll
        for (uint h = 0; h < 2; h++) {
            state.largest[h] = -INFINITE;
            state.sum[h] = 0.0f;
        }
        #pragma unroll
        for (uint j = 0; j < VECTOR; j++) {
            #pragma unroll
            for (uint h = 0; h < 4; h++) state.acc[j][h] = 0.0f;
        }
        BARRIER();
        #pragma unroll 1
        for (; b < work->end; b += WARPS) {
            uint after = b + 2 * WARPS < work->end ? work->table[b + 2 * WARPS] : 0;
            uint4 values[VECTORS(D)];
            load_block<D>(work->cached, block, work->kv_heads, work->kv_head, values);
            float score[2];
            block_scores<D>(keys, space->query, score);
            score[0] = capped(score[0], work->cap);
            score[1] = capped(score[1], work->cap);
            if (b + WARPS < work->end) load_block<D>(work->keys, next, work->kv_heads, work->kv_head, keys);
            uint hidden = max(work->from, b * 16) - b * 16;
            take_block<D>(&state, score, values, hidden, min(16u, work->seen - b * 16), space->weights + warp * 16);
            block = next;
            next = after;
        }
        merge_warps<D>(
            &state, (float *)space->values, space->extremes, work->values + (size_t)head * work->splits * D,
            work->sums + (size_t)head * work->splits * 2, work->splits, work->heads - head
        );
    }
}

