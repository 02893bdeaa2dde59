// The same for any dimension of heads, one head at a time: a warp takes every WARPS-th position of the run, a lane every 32nd
// dimension, 256 dimensions of the result at once. Right, not fast.
FN void attend_any(const Work *work, uint head_dim, float *space, float2 *extremes) {
    const uint warp = ITEM / 32, lane = ITEM % 32;
    AWAIT_LAST();
    for (uint turn = 0; turn < work->heads * ((head_dim + 255) / 256); turn++) {
        uint head = turn % work->heads, first = turn / work->heads * 256;
        const float *q = work->q + (size_t)head * head_dim;
        float largest = -INFINITE, sum = 0.0f, acc[8] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
        for (uint p = max(work->start * 16, work->from) + warp; p < min(work->end * 16, work->seen); p += WARPS) {
            size_t base = ((size_t)work->table[p / 16] * work->kv_heads + work->kv_head) * head_dim * 16;
            float score = 0.0f;
            for (uint d = lane; d < head_dim; d += 32) score = fma(q[d], LOAD_KV(work->keys + base, d * 16 + p % 16), score);
            #pragma unroll
            for (uint bit = 16; bit > 0; bit /= 2) score += __shfl_xor_sync(~0u, score, bit);
            score = capped(score * work->scale, work->cap);
            float before = largest;
            largest = fmax(before, score);
            float correction = exp(before - largest), weight = exp(score - largest);
            sum = fma(sum, correction, weight);
            #pragma unroll
            for (uint i = 0; i < 8; i++) {
                uint d = first + i * 32 + lane;
                float value = d < head_dim ? LOAD_KV(work->cached + base, p % 16 * head_dim + d) : 0.0f;
                acc[i] = fma(acc[i], correction, weight * value);
            }
        }
        if (lane == 0) extremes[warp] = make_float2(largest, sum);
        #pragma unroll
        for (uint i = 0; i < 8; i++) space[warp * 256 + i * 32 + lane] = acc[i];
        BARRIER();
        float all = -INFINITE, total = 0.0f;
        for (uint w = 0; w < WARPS; w++) all = fmax(all, extremes[w].x);
        for (uint w = 0; w < WARPS; w++) total += extremes[w].y != 0.0f ? extremes[w].y * exp(extremes[w].x - all) : 0.0f;
        for (uint i = ITEM; i < 256 && first + i < head_dim; i += ITEMS) {
            float value = 0.0f;
            for (uint w = 0; w < WARPS; w++) {
                if (extremes[w].y != 0.0f) value = fma(space[w * 256 + i], exp(extremes[w].x - all), value);
            }
            work->values[(size_t)head * work->splits * head_dim + first + i] = value / total;
        }
        if (ITEM == 0) *(float2 *)(work->sums + (size_t)head * work->splits * 2) = make_float2(all, total);
        BARRIER();
    }
}

KERNEL(ITEMS) attention_partial(
    const GLOBAL uint *RESTRICT params, const GLOBAL float *RESTRICT q, const GLOBAL KV *RESTRICT keys,
    const GLOBAL KV *RESTRICT values, GLOBAL float *RESTRICT partials, uint rows, uint sequences, uint table_blocks,
    uint logit_rows, uint heads, uint kv_heads, uint head_dim, uint cache_blocks, uint scale, uint stride, uint window,
    uint cap, uint splits, uint word
) {
    SHARED Space space;
    LAUNCH_NEXT();
    // No launch writes parameters: they are read before the launch before has ended.
    uint split = GROUP(0), kv_head = GROUP(1), row = GROUP(2), group = heads / kv_heads;
    Lists at = lists(params, rows, logit_rows);
    uint used = count(params, word, rows), sequence = at.row_sequences[row], position = at.positions[row];
    if (row >= used) {
        AWAIT_LAST();
        return;
    }
    bool exists = sequence < sequences && position / 16 < table_blocks;
    const uint *table = table_of(at, row, sequences, table_blocks);
    uint wanted = exists ? position / 16 + 1 : 0;
    for (uint i = ITEM; i < wanted; i += ITEMS) exists = exists && table[i] < cache_blocks;
    exists = __syncthreads_and(exists);
    uint from = window_start(position + 1, window), skipped = exists ? from / 16 : 0;
    uint length = (wanted - skipped + splits - 1) / splits;
    uint start = min(skipped + split * length, wanted), end = min(start + length, wanted);
    size_t first = ((size_t)row * heads + kv_head * group) * splits + split;
    float *sums = partials + (size_t)rows * heads * splits * head_dim + first * 2;
    if (!exists || start == end) {
        AWAIT_LAST();
        for (uint h = ITEM; h < group; h += ITEMS) *(float2 *)(sums + (size_t)h * splits * 2) = make_float2(0.0f, 0.0f);
        return;
    }
    Work work = {
        q + (size_t)row * stride + (size_t)kv_head * group * head_dim, keys, values, table, kv_heads, kv_head, group,
        start, end, from, position + 1, AS_FLOAT(scale), AS_FLOAT(cap), partials + first * head_dim, sums, splits
    };
    if (head_dim == 128) attend<128>(&work, &space);
    else if (head_dim == 64) attend<64>(&work, &space);
    else attend_any(&work, head_dim, (float *)space.values, space.extremes);
}
