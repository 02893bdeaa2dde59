// State scan: the group of the first row of a run takes a block of columns of one head. Four items share a column, and each
// has 32 values of it in registers. They take the rows of the run in tiles, whose queries and keys are in local memory.

#define DELTA 1
#define TILED 2
#define LOGARITHM 4
#define PARTS 4
#define COLUMNS (ITEMS / PARTS)
#define SPAN 32
#define TILE 8
// Values per row of a tile. The distance between two rows avoids conflicts between the items that sum them.
#define STRIDE (PARTS * SPAN + 4)

#if defined(__CUDA_ARCH__)
// The items of a column are beside each other in a warp, and exchange their sums there. An item has every fourth four values
// of the column, so that the four items read from different banks.
#define SHARE (ITEM % PARTS)
#define COLUMN (ITEM / PARTS)
#define FIRST (4 * SHARE)
#define HOP (4 * PARTS)
FN float sum_of_parts(float value) {
    value += __shfl_xor_sync(~0u, value, 1);
    return value + __shfl_xor_sync(~0u, value, 2);
}
#else
#define SHARE (ITEM / COLUMNS)
#define COLUMN (ITEM % COLUMNS)
#define FIRST (SPAN * SHARE)
#define HOP 4
#endif
// Place in a column of value `i` of an item.
#define PLACE(i) (FIRST + (i) / 4 * HOP + (i) % 4)

// Dot product of an item's values of two vectors in local memory.
FN float part_dot(const LOCAL float *a, const LOCAL float *b) {
    float4 sum = FLOAT4(0.0f, 0.0f, 0.0f, 0.0f);
    #pragma unroll
    for (uint i = 0; i < SPAN / 4; i++) {
        float4 x = LOAD_LOCALF4(a + i * HOP), y = LOAD_LOCALF4(b + i * HOP);
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
    for (uint i = 0; i < SPAN / 4; i++) {
        float4 x = LOAD_LOCALF4(vector + i * HOP);
        sum.x = fma(x.x, s[4 * i], sum.x);
        sum.y = fma(x.y, s[4 * i + 1], sum.y);
        sum.z = fma(x.z, s[4 * i + 2], sum.z);
        sum.w = fma(x.w, s[4 * i + 3], sum.w);
    }
    return (sum.x + sum.y) + (sum.z + sum.w);
}

// Number of rows of a tile that begins at a row.
FN uint rows_of_tile(Lists at, uint row, uint used, uint sequence) {
    uint rows = 0;
    while (rows < TILE && row + rows < used && at.row_sequences[row + rows] == sequence) rows++;
    return rows;
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
    // Of each row: the sums of squares of its query and key, and their product; then what these become.
    SHARED float dots[3 * TILE];
    SHARED float factors[5 * TILE];
#if !defined(__CUDA_ARCH__)
    SHARED float parts[4 * ITEMS];
#endif
    uint row = GROUP(0), head = GROUP(1), part = SHARE, column = GROUP(2) * COLUMNS + COLUMN;
    uint used = count(params, 0, rows);
    Lists at = lists(params, rows, logit_rows);
    uint sequence = at.row_sequences[row];
    bool begins = row < used && (row == 0 || at.row_sequences[row - 1] != sequence), is_column = column < values;
    uint2 slot = slots_of(at, row, sequences, table_blocks);
    size_t size = (size_t)keys * values;
    bool reads = begins && is_column && at.positions[row] > 0 && slot.x < slots;
    bool writes = begins && is_column && slot.y < slots;
    const GLOBAL float *old = state + (reads ? ((size_t)slot.x * heads + head) * size : 0);
    uint sharing = heads / key_heads, key_head = flags & TILED ? head % key_heads : head / sharing;
    bool is_delta = (flags & DELTA) != 0;
    uint gate = head / sharing * gate_stride + head % sharing;
    float s[SPAN];
    #pragma unroll
    for (uint i = 0; i < SPAN; i++) {
        uint d = PLACE(i);
        s[i] = reads && d < keys ? old[(size_t)d * values + column] : 0.0f;
    }
    float a = flags & LOGARITHM ? -exp(weights[head]) : weights[head], bias = weights[heads + head];
    float direct = is_delta ? 0.0f : weights[2 * heads + head];
    for (uint tile = begins ? rows_of_tile(at, row, used, sequence) : 0; tile > 0;
         tile = tile == TILE ? rows_of_tile(at, row, used, sequence) : 0) {
        for (uint i = ITEM; i < TILE * PARTS * SPAN; i += ITEMS) {
            uint t = i / (PARTS * SPAN), d = i % (PARTS * SPAN);
            bool exists = t < tile && d < keys;
            const GLOBAL float *from = x + (size_t)(row + (exists ? t : 0)) * pitch + key_head * keys + (exists ? d : 0);
            q[t * STRIDE + d] = exists ? from[q_at] : 0.0f;
            k[t * STRIDE + d] = exists ? from[k_at] : 0.0f;
        }
        float v[TILE];
        #pragma unroll
        for (uint t = 0; t < TILE; t++) {
            bool exists = t < tile && is_column;
            v[t] = exists ? x[(size_t)(row + t) * pitch + v_at + head * values + column] : 0.0f;
        }
        BARRIER();
        // Places beyond the key dimension are zero.
#if defined(__CUDA_ARCH__)
        uint of_dot = ITEM / PARTS, row_of_dot = of_dot % TILE * STRIDE + FIRST;
        const LOCAL float *one = of_dot / TILE == 1 ? k : q, *other = of_dot / TILE == 0 ? q : k;
        float product = sum_of_parts(part_dot(one + row_of_dot, other + row_of_dot));
        if (part == 0 && of_dot < 3 * TILE) dots[of_dot] = product;
#else
        if (ITEM < 3 * TILE) {
            uint row_of_dot = ITEM % TILE * STRIDE;
            const LOCAL float *one = ITEM / TILE == 1 ? k : q, *other = ITEM / TILE == 0 ? q : k;
            float sum = 0.0f;
            for (uint d = 0; d < keys; d++) sum = fma(one[row_of_dot + d], other[row_of_dot + d], sum);
            dots[ITEM] = sum;
        }
#endif
        BARRIER();
        if (ITEM < tile) {
            const GLOBAL float *of_row = gates + (size_t)(row + ITEM) * gate_pitch + gate;
            float raw = of_row[a_at] + bias, delta = raw > 20.0f ? raw : log(1.0f + exp(raw));
            // A small number of an exponential is its logarithm's.
            delta = raw < -9.0f ? exp(raw) : delta;
            float strength = is_delta ? 1.0f / (1.0f + exp(-of_row[b_at])) : delta;
            float q_scale = is_delta ? 1.0f / sqrt((dots[ITEM] + 1e-6f) * (float)keys) : 1.0f;
            float k_scale = is_delta ? 1.0f / sqrt(dots[TILE + ITEM] + 1e-6f) : 1.0f;
            factors[ITEM] = exp(a * delta);
            factors[TILE + ITEM] = strength;
            factors[2 * TILE + ITEM] = q_scale;
            factors[3 * TILE + ITEM] = k_scale;
            factors[4 * TILE + ITEM] = dots[2 * TILE + ITEM] * q_scale * k_scale;
        }
        BARRIER();
        #pragma unroll
        for (uint t = 0; t < TILE; t++) {
            const LOCAL float *q_row = q + t * STRIDE + FIRST, *k_row = k + t * STRIDE + FIRST;
            float of_q = column_dot(s, q_row), of_k = column_dot(s, k_row);
#if defined(__CUDA_ARCH__)
            of_q = sum_of_parts(of_q);
            of_k = sum_of_parts(of_k);
#else
            // The next row uses the other places, so one barrier per row suffices.
            LOCAL float *sums = parts + (t % 2) * 2 * ITEMS;
            sums[ITEM] = of_q;
            sums[ITEMS + ITEM] = of_k;
            BARRIER();
            of_q = 0.0f;
            of_k = 0.0f;
            for (uint p = COLUMN; p < ITEMS; p += COLUMNS) {
                of_q += sums[p];
                of_k += sums[ITEMS + p];
            }
#endif
            if (t < tile) {
                float decay = factors[t], k_scale = factors[3 * TILE + t];
                float known = is_delta ? decay * k_scale * of_k : 0.0f;
                float added = factors[TILE + t] * (v[t] - known);
                if (part == 0 && is_column) {
                    float result = fma(decay * factors[2 * TILE + t], of_q, factors[4 * TILE + t] * added);
                    out[((size_t)(row + t) * heads + head) * values + column] = fma(direct, v[t], result);
                }
                #pragma unroll
                for (uint i = 0; i < SPAN / 4; i++) {
                    float4 key = LOAD_LOCALF4(k_row + i * HOP);
                    s[4 * i] = fma(key.x, k_scale * added, s[4 * i] * decay);
                    s[4 * i + 1] = fma(key.y, k_scale * added, s[4 * i + 1] * decay);
                    s[4 * i + 2] = fma(key.z, k_scale * added, s[4 * i + 2] * decay);
                    s[4 * i + 3] = fma(key.w, k_scale * added, s[4 * i + 3] * decay);
                }
            }
        }
        row += tile;
        // The next tile replaces the queries and keys.
        BARRIER();
    }
    GLOBAL float *to = state + (writes ? ((size_t)slot.y * heads + head) * size : 0);
    #pragma unroll
    for (uint i = 0; i < SPAN; i++) {
        uint d = PLACE(i);
        if (writes && d < keys) to[(size_t)d * values + column] = s[i];
    }
}
