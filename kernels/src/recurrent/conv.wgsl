// Causal convolution. A group processes a block of columns of a row, and an item processes one column.

struct Constants {
    first_group: vec3<u32>,
    rows: u32,
    sequences: u32,
    table_blocks: u32,
    logit_rows: u32,
    columns: u32,
    pitch: u32,
    start: u32,
    before: u32,
    after: u32,
    taps: u32,
    silu: u32,
    has_biases: u32,
    // Number of slots.
    cache_blocks: u32,
    mode: u32,
}
var<immediate> constants: Constants;

@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> weights: array<f32>;
@group(0) @binding(3) var<storage, read_write> state: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;

const NONE = 0xffffffffu;
const ONLY_ROWS = 0u;
const ONLY_STATES = 1u;

// Returns the input of a column `back` rows before the row that begins at `own`. Of these rows, `run` belong to the run.
fn input_of(own: u32, old: u32, has_state: bool, back: u32, run: u32) -> f32 {
    let c = constants;
    if back > run {
        if !has_state { return 0.0; }
        return state[old + (c.taps - 1u + run - back) * c.columns];
    }
    let at = own - back * c.pitch;
    if c.before == NONE { return x[at + c.start]; }
    return x[at + c.start] * x[at + c.before];
}

@compute @workgroup_size(ITEMS)
fn causal_conv(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) item: u32) {
    let c = constants;
    let group = workgroup + c.first_group;
    let row = group.x;
    let column = group.y * ITEMS + item;
    let used = count(0u, c.rows);
    if row >= used || column >= c.columns { return; }
    let slot = slots_of(row);
    let sequence = sequence_of(row);
    var run = 0u;
    while run + 1u < c.taps && run < row {
        if sequence_of(row - run - 1u) != sequence { break; }
        run++;
    }
    let has_state = position_of(row) > run && slot.x < c.cache_blocks;
    let size = (c.taps - 1u) * c.columns;
    let old = select(0u, slot.x * size, has_state) + column;
    let own = row * c.pitch + column;
    if c.mode != ONLY_STATES {
        var sum = 0.0;
        if c.has_biases > 0u { sum = weights[c.columns * c.taps + column]; }
        for (var t = 0u; t < c.taps; t++) {
            sum = fma(weights[column * c.taps + t], input_of(own, old, has_state, c.taps - 1u - t, run), sum);
        }
        if c.silu > 0u { sum = sum / (1.0 + exp(-sum)); }
        if c.after != NONE { sum *= x[own + c.after]; }
        out[row * c.columns + column] = sum;
    }
    var is_last = row + 1u == used;
    if !is_last { is_last = sequence_of(row + 1u) != sequence; }
    if c.mode == ONLY_ROWS || !is_last || slot.y >= c.cache_blocks { return; }
    // A step reads only what later steps write, if both slots are the same.
    let to = slot.y * size + column;
    for (var t = 0u; t + 1u < c.taps; t++) {
        state[to + t * c.columns] = input_of(own, old, has_state, c.taps - 2u - t, run);
    }
}
