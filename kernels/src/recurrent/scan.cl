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
    SHARED float parts[4 * ITEMS];
    uint row = GROUP(0), head = GROUP(1), part = ITEM / COLUMNS, column = GROUP(2) * COLUMNS + ITEM % COLUMNS;
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
        uint d = part * SPAN + i;
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
        if (ITEM < 3 * TILE) {
            uint t = ITEM % TILE, kind = ITEM / TILE;
            const LOCAL float *one = (kind == 1 ? k : q) + t * STRIDE, *other = (kind == 0 ? q : k) + t * STRIDE;
            float sum = 0.0f;
            for (uint d = 0; d < keys; d++) sum = fma(one[d], other[d], sum);
            dots[ITEM] = sum;
        }
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
            const LOCAL float *q_row = q + t * STRIDE + part * SPAN, *k_row = k + t * STRIDE + part * SPAN;
            float of_q = 0.0f, of_k = 0.0f;
            #pragma unroll
            for (uint i = 0; i < SPAN; i++) {
                of_q = fma(s[i], q_row[i], of_q);
                of_k = fma(s[i], k_row[i], of_k);
            }
            // The next row uses the other places, so one barrier per row suffices.
            LOCAL float *sums = parts + (t % 2) * 2 * ITEMS;
            sums[ITEM] = of_q;
            sums[ITEMS + ITEM] = of_k;
            BARRIER();
            if (t < tile) {
                of_q = 0.0f;
                of_k = 0.0f;
                for (uint p = 0; p < PARTS; p++) {
                    of_q += sums[p * COLUMNS + ITEM % COLUMNS];
                    of_k += sums[ITEMS + p * COLUMNS + ITEM % COLUMNS];
                }
                float decay = factors[t], k_scale = factors[3 * TILE + t];
                float known = is_delta ? decay * k_scale * of_k : 0.0f;
                float added = factors[TILE + t] * (v[t] - known);
                if (part == 0 && is_column) {
                    float result = fma(decay * factors[2 * TILE + t], of_q, factors[4 * TILE + t] * added);
                    out[((size_t)(row + t) * heads + head) * values + column] = fma(direct, v[t], result);
                }
                #pragma unroll
                for (uint i = 0; i < SPAN; i++) s[i] = fma(k_row[i], k_scale * added, s[i] * decay);
            }
        }
        row += tile;
        // The next tile replaces the queries and keys.
        BARRIER();
    }
    GLOBAL float *to = state + (writes ? ((size_t)slot.y * heads + head) * size : 0);
    #pragma unroll
    for (uint i = 0; i < SPAN; i++) {
        uint d = part * SPAN + i;
        if (writes && d < keys) to[(size_t)d * values + column] = s[i];
    }
}
