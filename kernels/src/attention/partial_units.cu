// Attention of decode rows over a cache of f16, with matrix units: a group takes a run of blocks of 16 positions of one row,
// for the query heads that share a kv head, four at a time. Each warp takes every WARPS-th block of the run, with a softmax of
// its own; they are brought together at the end. Keys and values of a warp's next block are under way while it works on one.
//
// mma.m16n8k16 takes f16 and sums in f32. Queries, and the weights of positions, are f32: each goes in as the sum of two f16, so
// that the eight columns are four heads twice, and nothing is lost but what f32 would lose. A lane is g = lane / 4, t = lane % 4.
// What the fragments' rows and depths stand for is a matter of choice, and chosen so that lanes load what stands together:
//   scores  rows g and g + 8: positions 2g and 2g + 1; depths 2t, 2t + 1, 2t + 8, 2t + 9: dimensions t, t + 4, t + 8, t + 12
//   values  rows g and g + 8 of tile m: dimensions 8g + 2m and 8g + 2m + 1; depths: positions of the same numbers
// Columns 2h and 2h + 1 are head h. So a lane holds the scores of two positions, and results, of one head: head t.

#define WARPS (ITEMS / 32)
#define MAX_DIMS 128

FN uint load_word(const KV *pointer) {
    uint v;
    asm volatile("ld.global.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(pointer));
    return v;
}
FN uint4 load_vector(const KV *pointer) {
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(pointer));
    return v;
}

FN void multiply(uint a0, uint a1, uint a2, uint a3, uint b0, uint b1, float sum[4]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// The low halves of two words, and the high ones.
FN uint low_halves(uint a, uint b) { return __byte_perm(a, b, 0x5410); }
FN uint high_halves(uint a, uint b) { return __byte_perm(a, b, 0x7632); }

// Two values as f16, and what is left of them.
FN void split(float a, float b, uint *high, uint *low) {
    ushort ha = float_to_half(a), hb = float_to_half(b);
    *high = (uint)ha | (uint)hb << 16;
    *low = (uint)float_to_half(a - half_to_float(ha)) | (uint)float_to_half(b - half_to_float(hb)) << 16;
}

// What a group works on.
typedef struct {
    const float *q;              // of the first head
    const KV *keys, *cached;
    const uint *table;
    uint kv_heads, kv_head, heads; // heads that share the kv head
    uint start, end;             // blocks of the run
    uint from, seen;             // the row's first visible position, and the one after its last
    float scale, cap;            // no cap is zero
    float *values, *sums;        // of the first head's split
    uint splits;
} Work;

typedef struct {
    float values[WARPS * 4 * MAX_DIMS]; // [warps][4 heads][dimensions]
    float2 extremes[WARPS * 4];          // largest score and sum
} Space;

// Four heads of the row as columns of a fragment, 16 dimensions after the other, and the factor that was taken out of head t: it
// leaves values below 2, so that any f32 goes into two f16.
template <uint D> FN float load_query(const Work *work, uint head, uint out[D / 16][2]) {
    uint g = ITEM % 32 / 4, t = ITEM % 4;
    bool there = head + g / 2 < work->heads;
    const float *q = work->q + (size_t)(head + g / 2) * D + t;
    float values[D / 16][4], largest = 0.0f;
    #pragma unroll
    for (uint j = 0; j < D / 16; j++) {
        #pragma unroll
        for (uint s = 0; s < 4; s++) {
            values[j][s] = there ? q[j * 16 + s * 4] : 0.0f;
            largest = fmax(largest, AS_FLOAT(AS_UINT(values[j][s]) & 0x7fffffffu));
        }
    }
    largest = fmax(largest, __shfl_xor_sync(~0u, largest, 1));
    largest = fmax(largest, __shfl_xor_sync(~0u, largest, 2));
    // The exponent of the largest, if it and its inverse are plain numbers.
    uint exponent = AS_UINT(largest) >> 23;
    bool plain = exponent > 0 && exponent < 254;
    float factor = plain ? AS_FLOAT(exponent << 23) : 1.0f, inverse = plain ? AS_FLOAT((254 - exponent) << 23) : 1.0f;
    #pragma unroll
    for (uint j = 0; j < D / 16; j++) {
        #pragma unroll
        for (uint i = 0; i < 2; i++) {
            uint high, low;
            split(values[j][2 * i] * inverse, values[j][2 * i + 1] * inverse, &high, &low);
            out[j][i] = g % 2 ? low : high;
        }
    }
    return __shfl_sync(~0u, factor, t * 8);
}

template <uint D> FN void load_keys(const Work *work, uint block, uint out[D / 4]) {
    const KV *from = work->keys + ((size_t)block * work->kv_heads + work->kv_head) * (16 * D);
    from += ITEM % 4 * 16 + ITEM % 32 / 4 * 2;
    #pragma unroll
    for (uint i = 0; i < D / 4; i++) out[i] = load_word(from + i * 64);
}

template <uint D> FN void load_values(const Work *work, uint block, uint4 out[D / 16]) {
    const KV *from = work->cached + ((size_t)block * work->kv_heads + work->kv_head) * (16 * D);
    from += ITEM % 4 * 2 * D + ITEM % 32 / 4 * 8;
    #pragma unroll
    for (uint i = 0; i < D / 64; i++) {
        #pragma unroll
        for (uint s = 0; s < 4; s++) out[i * 4 + s] = load_vector(from + (s % 2 + s / 2 * 8) * D + i * 64);
    }
}

// Scores of the lane's two positions.
template <uint D> FN void block_scores(const uint keys[D / 4], const uint query[D / 16][2], float out[2]) {
    float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    #pragma unroll
    for (uint j = 0; j < D / 16; j++) {
        const uint *k = keys + j * 4;
        multiply(
            low_halves(k[0], k[1]), high_halves(k[0], k[1]), low_halves(k[2], k[3]), high_halves(k[2], k[3]), query[j][0],
            query[j][1], sums
        );
    }
    out[0] = sums[0] + sums[1];
    out[1] = sums[2] + sums[3];
}

// Takes the values of a block in, with the weights of the lane's two positions.
template <uint D> FN void add_values(const uint4 values[D / 16], const float weight[2], float acc[D / 16][4]) {
    uint g = ITEM % 32 / 4, t = ITEM % 4, high, low;
    split(weight[0], weight[1], &high, &low);
    // Of column g: head g / 2, positions 2t, 2t + 1 and those 8 on.
    uint first = t * 4 + g / 2, high0 = __shfl_sync(~0u, high, first), low0 = __shfl_sync(~0u, low, first);
    uint high1 = __shfl_sync(~0u, high, first + 16), low1 = __shfl_sync(~0u, low, first + 16);
    uint b0 = g % 2 ? low0 : high0, b1 = g % 2 ? low1 : high1;
    #pragma unroll
    for (uint i = 0; i < D / 64; i++) {
        const uint4 *v = values + i * 4;
        const uint words[4][4] = {
            {v[0].x, v[1].x, v[2].x, v[3].x}, {v[0].y, v[1].y, v[2].y, v[3].y}, {v[0].z, v[1].z, v[2].z, v[3].z},
            {v[0].w, v[1].w, v[2].w, v[3].w}
        };
        #pragma unroll
        for (uint m = 0; m < 4; m++) {
            const uint *w = words[m];
            multiply(
                low_halves(w[0], w[1]), high_halves(w[0], w[1]), low_halves(w[2], w[3]), high_halves(w[2], w[3]), b0, b1,
                acc[i * 4 + m]
            );
        }
    }
}

// A score that tends to ± `cap`; no cap is zero.
FN float capped(float score, float cap) {
    return cap == 0.0f ? score : cap - 2.0f * cap / (1.0f + exp(score * (2.0f / cap)));
}

// Over the lanes of a head.
FN float largest_of_head(float value) {
    #pragma unroll
    for (uint bit = 16; bit > 2; bit /= 2) value = fmax(value, __shfl_xor_sync(~0u, value, bit));
    return value;
}
FN float sum_of_head(float value) {
    #pragma unroll
    for (uint bit = 16; bit > 2; bit /= 2) value += __shfl_xor_sync(~0u, value, bit);
    return value;
}

// Brings the warps together: values of four heads, each over its sum, and for each head maximum and sum.
template <uint D>
FN void merge_warps(const Work *work, uint head, Space *space, float largest, float sum, const float acc[D / 16][4]) {
    const uint lane = ITEM % 32, warp = ITEM / 32, g = lane / 4, t = lane % 4;
    sum = sum_of_head(sum);
    if (g == 0) space->extremes[warp * 4 + t] = make_float2(largest, sum);
    #pragma unroll
    for (uint i = 0; i < D / 16; i++) {
        *(float2 *)(space->values + (warp * 4 + t) * D + i / 4 * 64 + g * 8 + i % 4 * 2) =
            make_float2(acc[i][0] + acc[i][1], acc[i][2] + acc[i][3]);
    }
    BARRIER();
    for (uint i = ITEM; i < 4 * D; i += ITEMS) {
        uint h = i / D, d = i % D;
        float all = -INFINITE, total = 0.0f, value = 0.0f;
        #pragma unroll
        for (uint w = 0; w < WARPS; w++) all = fmax(all, space->extremes[w * 4 + h].x);
        #pragma unroll
        for (uint w = 0; w < WARPS; w++) {
            float2 e = space->extremes[w * 4 + h];
            if (e.y == 0.0f) continue; // a warp without blocks
            float factor = exp(e.x - all);
            total = fma(e.y, factor, total);
            value = fma(space->values[(w * 4 + h) * D + d], factor, value);
        }
        if (head + h >= work->heads) continue;
        work->values[(size_t)(head + h) * work->splits * D + d] = value / total;
        if (d == 0) *(float2 *)(work->sums + (size_t)(head + h) * work->splits * 2) = make_float2(all, total);
    }
    BARRIER();
}

template <uint D> FN void attend(const Work *work, Space *space) {
    const uint warp = ITEM / 32, g = ITEM % 32 / 4;
    const uint *table = work->table;
    for (uint head = 0; head < work->heads; head += 4) {
        uint b = work->start + warp, query[D / 16][2], keys[D / 4];
        uint4 values[D / 16];
        uint block = b < work->end ? table[b] : 0, next = b + WARPS < work->end ? table[b + WARPS] : 0;
        if (head == 0) AWAIT_LAST();
        if (b < work->end) {
            load_keys<D>(work, block, keys);
            load_values<D>(work, block, values);
        }
        float scale = load_query<D>(work, head, query) * work->scale;
        float largest = -INFINITE, sum = 0.0f, acc[D / 16][4];
        #pragma unroll
        for (uint i = 0; i < D / 16; i++) acc[i][0] = acc[i][1] = acc[i][2] = acc[i][3] = 0.0f;
        #pragma unroll 1
        for (; b < work->end; b += WARPS) {
            bool more = b + WARPS < work->end;
            uint steps = min(16u, work->seen - b * 16), after = b + 2 * WARPS < work->end ? table[b + 2 * WARPS] : 0;
            float score[2], weight[2], before = largest;
            block_scores<D>(keys, query, score);
            if (more) load_keys<D>(work, next, keys);
            uint hidden = max(work->from, b * 16) - b * 16;
            bool used[2] = {2 * g >= hidden && 2 * g < steps, 2 * g + 1 >= hidden && 2 * g + 1 < steps};
            score[0] = used[0] ? capped(score[0] * scale, work->cap) : -INFINITE;
            score[1] = used[1] ? capped(score[1] * scale, work->cap) : -INFINITE;
            largest = fmax(before, largest_of_head(fmax(score[0], score[1])));
            weight[0] = used[0] ? exp(score[0] - largest) : 0.0f;
            weight[1] = used[1] ? exp(score[1] - largest) : 0.0f;
            if (__any_sync(~0u, largest != before)) {
                float correction = exp(before - largest);
                sum *= correction;
                #pragma unroll
                for (uint i = 0; i < D / 16; i++) {
                    #pragma unroll
                    for (uint j = 0; j < 4; j++) acc[i][j] *= correction;
                }
            }
            sum += weight[0] + weight[1];
            if (hidden || steps < 16) { // what lies before and beyond may be no number
                #pragma unroll
                for (uint i = 0; i < D / 16; i++) {
                    uint position = ITEM % 4 * 2 + i % 2 + i % 4 / 2 * 8;
                    if (position < hidden || position >= steps) values[i] = UINT4(0, 0, 0, 0);
                }
            }
            add_values<D>(values, weight, acc);
            if (more) load_values<D>(work, next, values);
            next = after;
        }
        merge_warps<D>(work, head, space, largest, sum, acc);
    }
}
