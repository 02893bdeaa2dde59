// State scan: a group takes a block of columns of one head, and the rows of one sequence. Four items share a column, and each
// has SPAN values of it in registers. They take the rows in tiles of TILE rows, whose queries and keys are in local memory.
//
// The products of a tile's queries and keys with each other, and with the state before the tile, determine its results: with
// d(t, i), the product of the decays of the rows after i up to t, the state after row t is
// d(t, −1) · S + Σ d(t, i) · k(i) ⊗ u(i) for all i ≤ t. So the items exchange their sums once per tile.

#define DELTA 1
#define TILED 2
#define LOGARITHM 4
#define VECTOR 8
#define PARTS 4
#define COLUMNS (ITEMS / PARTS)
// An item loads one of the dimensions of a tile's rows.
#define SPAN (ITEMS / PARTS)
// Values per row of a tile. The distance between two rows avoids conflicts between the items that sum them.
#define STRIDE (PARTS * SPAN + 4)
// Pairs of rows of a tile, and the products that such a pair can have: key · key, query · key, and query · query.
#define PAIRS (TILE * TILE)
#define KINDS 3

// ln(1 + e^x). That of a small number is this number.
FN float softplus(float x) { return x > 20.0f ? x : x < -9.0f ? exp(x) : log(1.0f + exp(x)); }

// Dot product of an item's values of two vectors in local memory.
FN float part_dot(const LOCAL float *a, const LOCAL float *b) {
    float4 sum = FLOAT4(0.0f, 0.0f, 0.0f, 0.0f);
    #pragma unroll
    for (uint i = 0; i < SPAN; i += 4) {
        float4 x = LOAD_LOCALF4(a + i), y = LOAD_LOCALF4(b + i);
        sum.x = fma(x.x, y.x, sum.x);
        sum.y = fma(x.y, y.y, sum.y);
        sum.z = fma(x.z, y.z, sum.z);
        sum.w = fma(x.w, y.w, sum.w);
    }
    return (sum.x + sum.y) + (sum.z + sum.w);
}

// Dot product of an item's values of a column and of a vector in local memory.
FN float column_dot(const PRIVATE float *s, const LOCAL float *vector) {
    float4 sum = FLOAT4(0.0f, 0.0f, 0.0f, 0.0f);
    #pragma unroll
    for (uint i = 0; i < SPAN; i += 4) {
        float4 x = LOAD_LOCALF4(vector + i);
        sum.x = fma(x.x, s[i], sum.x);
        sum.y = fma(x.y, s[i + 1], sum.y);
        sum.z = fma(x.z, s[i + 2], sum.z);
        sum.w = fma(x.w, s[i + 3], sum.w);
    }
    return (sum.x + sum.y) + (sum.z + sum.w);
}

// Sum of the parts of a product or of a column.
FN float whole(const LOCAL float *parts, uint stride) {
    return (parts[0] + parts[stride]) + (parts[2 * stride] + parts[3 * stride]);
}

// Loads an item's dimension of the queries and keys of a tile's rows. What does not exist is zero.
FN void load_tile(
    const GLOBAL float *x, uint row, uint end, uint pitch, uint first, uint keys, uint q_at, uint k_at,
    PRIVATE float *query, PRIVATE float *key
) {
    #pragma unroll
    for (uint t = 0; t < TILE; t++) {
        bool exists = row + t < end && ITEM < keys;
        const GLOBAL float *from = x + (exists ? (size_t)(row + t) * pitch + first + ITEM : 0);
        query[t] = exists ? from[q_at] : 0.0f;
        key[t] = exists ? from[k_at] : 0.0f;
    }
}

// Loads a column's values of a tile's rows.
FN void load_values(
    const GLOBAL float *x, uint row, uint end, uint pitch, uint at, bool is_column, PRIVATE float *v
) {
    #pragma unroll
    for (uint t = 0; t < TILE; t++) v[t] = row + t < end && is_column ? x[(size_t)(row + t) * pitch + at] : 0.0f;
}

KERNEL(ITEMS) state_scan(
    const GLOBAL uint *RESTRICT params, const GLOBAL float *RESTRICT x, const GLOBAL float *RESTRICT gates,
    const GLOBAL float *RESTRICT weights, GLOBAL float *state, GLOBAL float *RESTRICT out,
    uint rows, uint sequences, uint table_blocks, uint logit_rows, uint heads, uint key_heads, uint keys, uint values,
    uint pitch, uint q_at, uint k_at, uint v_at, uint gate_pitch, uint a_at, uint b_at, uint gate_stride, uint flags, uint slots
) {
    BEGIN();
    SHARED float q[TILE * STRIDE] ALIGNED;
    SHARED float k[TILE * STRIDE] ALIGNED;
    // Parts of the products of pairs, and of the columns' products with each key and each query.
    SHARED float dots[KINDS * PAIRS * PARTS];
    SHARED float sums[2 * TILE * ITEMS];
    // Of each row of a tile.
    SHARED float decays[TILE], strengths[TILE];
    // Decays of the dimensions of the keys, if these have their own. A tile then has one row.
    SHARED float fades[ITEMS] ALIGNED;
    // Factors of the state before the tile in the product with a row's key and query, and in the state after the tile.
    SHARED float far_k[TILE], far_q[TILE], far_end[1];
    // Factors of what a row adds in a later row's products, and in the state after the tile.
    SHARED float near_k[PAIRS], near_q[PAIRS], near_end[TILE];
    SHARED uint run[2];
    uint sequence = GROUP(0), head = GROUP(1), part = ITEM / COLUMNS, column = GROUP(2) * COLUMNS + ITEM % COLUMNS;
    uint used = count(params, 0, rows);
    Lists at = lists(params, rows, logit_rows);
    if (ITEM < 2) run[ITEM] = 0;
    BARRIER();
    for (uint i = ITEM; i < used; i += ITEMS) {
        if (at.row_sequences[i] != sequence) continue;
        if (i == 0 || at.row_sequences[i - 1] != sequence) run[0] = i;
        if (i + 1 == used || at.row_sequences[i + 1] != sequence) run[1] = i + 1;
    }
    BARRIER();
    uint row = run[0], end = run[1];
    bool is_column = column < values;
    uint2 slot = slots_of(at, row, sequences, table_blocks);
    size_t size = (size_t)keys * values;
    bool reads = end > row && is_column && at.positions[row] > 0 && slot.x < slots;
    bool writes = end > row && is_column && slot.y < slots;
    const GLOBAL float *old = state + (reads ? ((size_t)slot.x * heads + head) * size : 0);
    uint sharing = heads / key_heads, key_head = flags & TILED ? head % key_heads : head / sharing;
    bool is_delta = (flags & DELTA) != 0, is_vector = (flags & VECTOR) != 0;
    uint gate = head / sharing * gate_stride + head % sharing;
    float s[SPAN];
    #pragma unroll
    for (uint i = 0; i < SPAN; i++) {
        uint d = SPAN * part + i;
        s[i] = reads && d < keys ? old[(size_t)d * values + column] : 0.0f;
    }
    float a = flags & LOGARITHM ? -exp(weights[head]) : weights[head], bias = weights[heads + head];
    float direct = is_delta ? 0.0f : weights[2 * heads + head];
    // Tiles start at multiples of TILE, wherever the run starts.
    uint position = at.positions[row] - row;
    float query[TILE], key[TILE], v[TILE];
    load_tile(x, row, end, pitch, key_head * keys, keys, q_at, k_at, query, key);
    load_values(x, row, end, pitch, v_at + head * values + column, is_column, v);
    while (row < end) {
        uint tile = is_vector ? 1 : min(end - row, TILE - (position + row) % TILE);
        #pragma unroll
        for (uint t = 0; t < TILE; t++) {
            q[t * STRIDE + ITEM] = query[t];
            k[t * STRIDE + ITEM] = key[t];
        }
        if (is_vector) {
            uint own = ITEM < keys ? head * keys + ITEM : 0;
            fades[ITEM] = exp(a * softplus(gates[(size_t)row * gate_pitch + a_at + own] + weights[heads + own]));
        }
        if (ITEM < tile) {
            const GLOBAL float *of_row = gates + (size_t)(row + ITEM) * gate_pitch + gate;
            float delta = is_vector ? 0.0f : softplus(of_row[a_at] + bias);
            decays[ITEM] = exp(a * delta);
            strengths[ITEM] = is_delta ? 1.0f / (1.0f + exp(-of_row[b_at])) : delta;
        }
        BARRIER();
        // The next tile's rows arrive meanwhile.
        float next_v[TILE];
        load_tile(x, row + tile, end, pitch, key_head * keys, keys, q_at, k_at, query, key);
        load_values(x, row + tile, end, pitch, v_at + head * values + column, is_column, next_v);
        #pragma unroll
        for (uint i = 0; i < SPAN; i++) s[i] = is_vector ? s[i] * fades[SPAN * part + i] : s[i];
        // The items of a part take the products of all pairs.
        for (uint i = ITEM % COLUMNS; i < KINDS * PAIRS; i += COLUMNS) {
            uint kind = i / PAIRS, later = i / TILE % TILE, earlier = i % TILE;
            bool counts = later < tile && (kind == 2 ? earlier == later : earlier <= later);
            if (!counts) continue;
            const LOCAL float *one = kind == 0 ? k : q, *other = kind == 2 ? q : k;
            dots[i * PARTS + part] = part_dot(one + later * STRIDE + SPAN * part, other + earlier * STRIDE + SPAN * part);
        }
        #pragma unroll
        for (uint t = 0; t < TILE; t++) {
            if (t < tile) {
                sums[t * ITEMS + ITEM] = column_dot(s, k + t * STRIDE + SPAN * part);
                sums[(TILE + t) * ITEMS + ITEM] = column_dot(s, q + t * STRIDE + SPAN * part);
            }
        }
        BARRIER();
        uint later = ITEM / TILE, earlier = ITEM % TILE;
        if (later < tile && earlier <= later) {
            const LOCAL float *of_pair = dots + ITEM * PARTS;
            float k_scale = 1.0f, q_scale = 1.0f, earlier_scale = 1.0f, decay = 1.0f;
            if (is_delta) {
                k_scale = 1.0f / sqrt(whole(dots + later * (TILE + 1) * PARTS, 1) + 1e-6f);
                earlier_scale = 1.0f / sqrt(whole(dots + earlier * (TILE + 1) * PARTS, 1) + 1e-6f);
                q_scale = whole(dots + (2 * PAIRS + later * (TILE + 1)) * PARTS, 1) + 1e-6f;
                q_scale = 1.0f / sqrt(q_scale * (float)keys);
            }
            for (uint t = earlier + 1; t <= later; t++) decay *= decays[t];
            near_k[ITEM] = decay * k_scale * earlier_scale * whole(of_pair, 1);
            near_q[ITEM] = decay * q_scale * earlier_scale * whole(of_pair + PAIRS * PARTS, 1);
            if (later + 1 == tile) near_end[earlier] = decay * earlier_scale;
            if (earlier == 0) {
                float far = decay * decays[0];
                far_k[later] = far * k_scale;
                far_q[later] = far * q_scale;
                if (later + 1 == tile) far_end[0] = far;
            }
        }
        BARRIER();
        float added[TILE];
        #pragma unroll
        for (uint t = 0; t < TILE; t++) {
            added[t] = 0.0f;
            if (t < tile) {
                float known = far_k[t] * whole(sums + t * ITEMS + ITEM % COLUMNS, COLUMNS);
                #pragma unroll
                for (uint i = 0; i < t; i++) known = fma(near_k[t * TILE + i], added[i], known);
                added[t] = strengths[t] * (v[t] - (is_delta ? known : 0.0f));
                // The items of a column write its results in turn.
                if (part == t % PARTS && is_column) {
                    float result = far_q[t] * whole(sums + (TILE + t) * ITEMS + ITEM % COLUMNS, COLUMNS);
                    #pragma unroll
                    for (uint i = 0; i <= t; i++) result = fma(near_q[t * TILE + i], added[i], result);
                    out[((size_t)(row + t) * heads + head) * values + column] = fma(direct, v[t], result);
                }
            }
        }
        #pragma unroll
        for (uint i = 0; i < SPAN; i++) s[i] *= far_end[0];
        #pragma unroll
        for (uint t = 0; t < TILE; t++) {
            if (t < tile) {
                float factor = near_end[t] * added[t];
                #pragma unroll
                for (uint i = 0; i < SPAN; i += 4) {
                    float4 key = LOAD_LOCALF4(k + t * STRIDE + SPAN * part + i);
                    s[i] = fma(key.x, factor, s[i]);
                    s[i + 1] = fma(key.y, factor, s[i + 1]);
                    s[i + 2] = fma(key.z, factor, s[i + 2]);
                    s[i + 3] = fma(key.w, factor, s[i + 3]);
                }
            }
        }
        #pragma unroll
        for (uint t = 0; t < TILE; t++) v[t] = next_v[t];
        row += tile;
        // The next tile replaces the queries and keys.
        BARRIER();
    }
    GLOBAL float *to = state + (writes ? ((size_t)slot.y * heads + head) * size : 0);
    #pragma unroll
    for (uint i = 0; i < SPAN; i++) {
        uint d = SPAN * part + i;
        if (writes && d < keys) to[(size_t)d * values + column] = s[i];
    }
}
