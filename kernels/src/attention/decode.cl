// Attention for few rows: a group takes one head of one row, 256 positions at a time.

// Items that share a dimension of the result: each takes every fourth block.
#define SLICES (ITEMS / 64)

KERNEL(ITEMS) attention_decode(
    const GLOBAL uint *RESTRICT params, const GLOBAL float *RESTRICT q, const GLOBAL KV *RESTRICT keys,
    const GLOBAL KV *RESTRICT values, GLOBAL float *RESTRICT out, uint rows, uint sequences, uint table_blocks,
    uint logit_rows, uint heads, uint kv_heads, uint head_dim, uint cache_blocks, uint scale, uint stride
) {
    BEGIN();
    SHARED float query[DIMS];
    SHARED float weights[ITEMS];
    SHARED float merged[SLICES * DIMS];
    SHARED float scratch[REDUCE_SPACE];
    SHARED uint shared;
    uint head = GROUP(0), row = GROUP(1);
    if (row >= count(params, 0, rows)) return;
    uint kv_head = head / (heads / kv_heads);
    Lists at = lists(params, rows, logit_rows);
    uint sequence = at.row_sequences[row], position = at.positions[row];
    const GLOBAL float *from = q + (size_t)row * stride + (size_t)head * head_dim;
    GLOBAL float *to = out + ((size_t)row * heads + head) * head_dim;
    bool exists = sequence < sequences && position / 16 < table_blocks;
    const GLOBAL uint *table = at.tables + (exists ? (size_t)sequence * table_blocks : 0);
    uint wanted = exists ? position / 16 + 1 : 0;
    exists = reach(&shared, table, wanted, cache_blocks) == wanted && exists;
    uint seen = exists ? position + 1 : 0;
    uint lane = ITEM % 64, slice = ITEM / 64;
    for (uint turn = 0; turn < head_dim; turn += DIMS) {
        float acc[DIMS / 64], sum = 0.0f, largest = -INFINITE;
        #pragma unroll
        for (uint i = 0; i < DIMS / 64; i++) acc[i] = 0.0f;
        for (uint first = 0; first < seen; first += ITEMS) {
            // Scores: a position for each item.
            uint mine = first + ITEM;
            bool used = mine < seen;
            float score = 0.0f;
            for (uint d0 = 0; d0 < head_dim; d0 += DIMS) {
                uint dims = min((uint)DIMS, head_dim - d0);
                BARRIER(); // all have done with what was there
                for (uint d = ITEM; d < dims; d += ITEMS) query[d] = from[d0 + d];
                BARRIER();
                if (used) {
                    size_t base = ((size_t)table[mine / 16] * kv_heads + kv_head) * head_dim * 16 + mine % 16;
                    const GLOBAL KV *key = keys + base + d0 * 16;
                    uint d = 0;
                    for (; d + 8 <= dims; d += 8) {
                        #pragma unroll
                        for (uint i = 0; i < 8; i++) score = fma(query[d + i], LOAD_KV(key, (d + i) * 16), score);
                    }
                    for (; d < dims; d++) score = fma(query[d], LOAD_KV(key, d * 16), score);
                }
            }
            score = used ? score * AS_FLOAT(scale) : -INFINITE;
            // Softmax so far.
            float before = largest;
            largest = fmax(before, group_max(scratch, score));
            float correction = exp(before - largest);
            weights[ITEM] = used ? exp(score - largest) : 0.0f;
            BARRIER();
            // Sums of values: a dimension, or a few, of every fourth block for each item.
            sum *= correction;
            #pragma unroll
            for (uint i = 0; i < DIMS / 64; i++) acc[i] *= correction;
            uint steps = min((uint)ITEMS, seen - first);
            for (uint start = slice * 16; start < steps; start += SLICES * 16) {
                size_t base = ((size_t)table[(first + start) / 16] * kv_heads + kv_head) * head_dim * 16;
                const GLOBAL KV *value = values + base + turn + lane;
                uint end = min(16u, steps - start);
                for (uint p = 0; p < end; p++) sum += weights[start + p];
                #pragma unroll
                for (uint i = 0; i < DIMS / 64; i++) {
                    if (turn + lane + i * 64 >= head_dim) continue;
                    uint p = 0;
                    for (; p + 4 <= end; p += 4) {
                        #pragma unroll
                        for (uint j = 0; j < 4; j++) {
                            acc[i] = fma(weights[start + p + j], LOAD_KV(value, (p + j) * head_dim + i * 64), acc[i]);
                        }
                    }
                    for (; p < end; p++) acc[i] = fma(weights[start + p], LOAD_KV(value, p * head_dim + i * 64), acc[i]);
                }
            }
        }
        #pragma unroll
        for (uint i = 0; i < DIMS / 64; i++) merged[slice * DIMS + i * 64 + lane] = acc[i];
        float total = group_sum(scratch, lane == 0 ? sum : 0.0f);
        for (uint d = ITEM; d < DIMS && turn + d < head_dim; d += ITEMS) {
            float value = 0.0f;
            for (uint s = 0; s < SLICES; s++) value += merged[s * DIMS + d];
            to[turn + d] = exists ? value / total : 0.0f;
        }
    }
}
