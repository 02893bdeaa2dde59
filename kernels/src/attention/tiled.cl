// Attention for many rows: a group takes one kv head of some rows, 16 queries of one sequence at a time over 64
// positions at a time, so that neighbouring rows and the heads of a kv head read keys and values together. What is
// computed for a query is the same whatever queries are beside it.

// Queries at once, positions at once.
#define QUERIES 16
#define POSITIONS 64
// Rows of a group, by how many heads share a kv head.
#define TILE_ROWS(heads) max(1u, (uint)QUERIES / (heads))
// Floats from the weights of one position to those of the next.
#define WEIGHTS (QUERIES + 4)

// Where a query stands in the launch: its row and head; it sees positions from `from` to before `seen`.
typedef struct {
    uint row;
    uint head;
    uint from;
    uint seen;
} Query;

// Query `i` of a run of rows: row after row, each with its heads.
FN Query query_of(Lists lists, uint i, uint queries, uint first_row, uint group, uint kv_head, uint window) {
    Query query;
    query.row = first_row + min(i, queries - 1) / group;
    query.head = kv_head * group + min(i, queries - 1) % group;
    query.seen = lists.positions[query.row] + 1;
    query.from = window_start(query.seen, window);
    return query;
}

KERNEL(ITEMS) attention_tiled(
    const GLOBAL uint *RESTRICT params, const GLOBAL float *RESTRICT q, const GLOBAL KV *RESTRICT keys,
    const GLOBAL KV *RESTRICT values, GLOBAL float *RESTRICT out, uint rows, uint sequences, uint table_blocks,
    uint logit_rows, uint heads, uint kv_heads, uint head_dim, uint cache_blocks, uint scale, uint stride, uint window,
    uint cap
) {
    BEGIN();
    SHARED float query[DIMS * QUERIES] ALIGNED;
    SHARED float weights[POSITIONS * WEIGHTS] ALIGNED;
    SHARED float partial[QUERIES * 17];
    SHARED float corrections[QUERIES];
    SHARED uint shared;
    uint group = heads / kv_heads, tile = TILE_ROWS(group), kv_head = GROUP(1);
    uint end = min(count(params, 0, rows), (GROUP(0) + 1) * tile);
    Lists at = lists(params, rows, logit_rows);
    // As positions' items: position `lane` of a step for queries `set` and three more. As softmax's items: query
    // `ITEM / 16`. As values' items: dimensions `lane`, `lane` + 64, … of the same four queries.
    uint lane = ITEM % 64, set = ITEM / 64 * 4;
    // Split attention computes the first rows, if there are any of that kind.
    for (uint row = max(count(params, 2, rows), GROUP(0) * tile); row < end;) {
        // A run of rows of one sequence; all that its rows see exists.
        uint sequence = at.row_sequences[row], wanted = 0, last = 0, start = ~0u, next = row;
        bool exists = sequence < sequences;
        const GLOBAL uint *table = table_of(at, row, sequences, table_blocks);
        for (uint r = row; exists && r < end && at.row_sequences[r] == sequence; r++) {
            wanted = max(wanted, min(at.positions[r] / 16 + 1, table_blocks));
        }
        uint reached = reach(&shared, table, wanted, cache_blocks);
        while (next < end && at.row_sequences[next] == sequence && at.positions[next] / 16 < reached) {
            last = max(last, at.positions[next]);
            start = min(start, window_start(at.positions[next] + 1, window));
            next++;
        }
        if (next == row) {
            for (uint i = ITEM; i < group * head_dim; i += ITEMS) {
                out[((size_t)row * heads + kv_head * group) * head_dim + i] = 0.0f;
            }
        }
        start -= start % POSITIONS;
        uint queries = (next - row) * group;
        for (uint first_query = 0; first_query < queries; first_query += QUERIES) {
            Query mine = query_of(at, first_query + ITEM / 16, queries, row, group, kv_head, window);
            const GLOBAL float *from = q + (size_t)mine.row * stride + (size_t)mine.head * head_dim;
            for (uint turn = 0; turn < head_dim; turn += DIMS) {
                float acc[4][DIMS / 64], sum = 0.0f, largest = -INFINITE;
                uint seen[4], begin[4];
                #pragma unroll
                for (uint i = 0; i < 4; i++) {
                    Query one = query_of(at, first_query + set + i, queries, row, group, kv_head, window);
                    seen[i] = one.seen;
                    begin[i] = one.from;
                    #pragma unroll
                    for (uint j = 0; j < DIMS / 64; j++) acc[i][j] = 0.0f;
                }
                bool used = first_query + set < queries;
                for (uint first = start; first <= last; first += POSITIONS) {
                    // Scores.
                    float scores[4] = {0.0f, 0.0f, 0.0f, 0.0f};
                    for (uint d0 = 0; d0 < head_dim; d0 += DIMS) {
                        uint dims = min((uint)DIMS, head_dim - d0);
                        BARRIER(); // all have done with what was there
                        for (uint d = ITEM % 16; d < dims; d += 16) {
                            query[d * QUERIES + ITEM / 16] = from[d0 + d];
                        }
                        BARRIER();
                        if (used && first + lane <= last) {
                            uint position = first + lane;
                            size_t base = ((size_t)table[position / 16] * kv_heads + kv_head) * head_dim * 16;
                            Keys key = KEYS_AT(keys, base, head_dim, d0, position % 16);
                            for (uint d = 0; d < dims; d++) {
                                float4 factors = LOAD_LOCALF4(query + d * QUERIES + set);
                                float value = LOAD_KEY(key, d);
                                scores[0] = fma(factors.x, value, scores[0]);
                                scores[1] = fma(factors.y, value, scores[1]);
                                scores[2] = fma(factors.z, value, scores[2]);
                                scores[3] = fma(factors.w, value, scores[3]);
                            }
                        }
                    }
                    #pragma unroll
                    for (uint i = 0; i < 4; i++) {
                        bool visible = first + lane >= begin[i] && first + lane < seen[i];
                        weights[lane * WEIGHTS + set + i] =
                            visible ? capped(scores[i] * AS_FLOAT(scale), AS_FLOAT(cap)) : -INFINITE;
                    }
                    BARRIER();
                    // Softmax so far: 16 items a query, four positions each.
                    LOCAL float *four = weights + ITEM % 16 * 4 * WEIGHTS + ITEM / 16;
                    float before = largest, best = -INFINITE;
                    for (uint i = 0; i < 4; i++) best = fmax(best, four[i * WEIGHTS]);
                    partial[ITEM / 16 * 17 + ITEM % 16] = best;
                    BARRIER();
                    for (uint i = 0; i < 16; i++) largest = fmax(largest, partial[ITEM / 16 * 17 + i]);
                    // A query that has seen nothing yet: no difference of infinities.
                    float shift = largest == -INFINITE ? 0.0f : largest, correction = exp(before - shift);
                    sum *= correction;
                    for (uint i = 0; i < 4; i++) {
                        float weight = exp(four[i * WEIGHTS] - shift);
                        four[i * WEIGHTS] = weight;
                        sum += weight;
                    }
                    if (ITEM % 16 == 0) corrections[ITEM / 16] = correction;
                    BARRIER();
                    // Sums of values, of each query over what it sees.
                    if (used) {
                        #pragma unroll
                        for (uint i = 0; i < 4; i++) {
                            #pragma unroll
                            for (uint j = 0; j < DIMS / 64; j++) acc[i][j] *= corrections[set + i];
                        }
                        uint stop = min(last + 1, first + POSITIONS);
                        for (uint position = first; position < stop; position++) {
                            size_t base = ((size_t)table[position / 16] * kv_heads + kv_head) * head_dim * 16;
                            Values value = VALUES_AT(values, base, head_dim, position % 16, turn, lane);
                            float4 w = LOAD_LOCALF4(weights + (position - first) * WEIGHTS + set);
                            #pragma unroll
                            for (uint j = 0; j < DIMS / 64; j++) {
                                if (turn + lane + j * 64 >= head_dim) continue;
                                float v = LOAD_VALUE(value, head_dim, 0, j * 64);
                                if (position >= begin[0] && position < seen[0]) acc[0][j] = fma(w.x, v, acc[0][j]);
                                if (position >= begin[1] && position < seen[1]) acc[1][j] = fma(w.y, v, acc[1][j]);
                                if (position >= begin[2] && position < seen[2]) acc[2][j] = fma(w.z, v, acc[2][j]);
                                if (position >= begin[3] && position < seen[3]) acc[3][j] = fma(w.w, v, acc[3][j]);
                            }
                        }
                    }
                }
                // The sums of weights, then the result.
                partial[ITEM / 16 * 17 + ITEM % 16] = sum;
                BARRIER();
                #pragma unroll
                for (uint i = 0; i < 4; i++) {
                    if (first_query + set + i >= queries) continue;
                    float total = 0.0f;
                    for (uint s = 0; s < 16; s++) total += partial[(set + i) * 17 + s];
                    Query query_out = query_of(at, first_query + set + i, queries, row, group, kv_head, window);
                    GLOBAL float *to = out + ((size_t)query_out.row * heads + query_out.head) * head_dim;
                    #pragma unroll
                    for (uint j = 0; j < DIMS / 64; j++) {
                        uint dim = turn + lane + j * 64;
                        if (dim < head_dim) to[dim] = acc[i][j] / total;
                    }
                }
            }
        }
        row = max(next, row + 1);
    }
}
