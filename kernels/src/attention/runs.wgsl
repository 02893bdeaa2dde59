// Attention for many rows. A group processes one kv head of some rows, run by run. The result of a query does
// not depend on other queries of the run.

struct Constants {
    first_group: vec3<u32>,
    rows: u32,
    sequences: u32,
    table_blocks: u32,
    logit_rows: u32,
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
    cache_blocks: u32,
    scale: f32,
    stride: u32,
    window: u32,
    cap: f32,
}
var<immediate> constants: Constants;

@group(0) @binding(1) var<storage, read> q: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;

// Row and head of a query. It attends to positions from `start` to before `seen`.
struct Query {
    row: u32,
    head: u32,
    start: u32,
    seen: u32,
}

// A run: rows of one sequence that attend only to existing positions. The fields are the first row, the
// number of queries, the first and the last position that any query attends to, the block table, and the kv
// head of the group.
struct Run {
    row: u32,
    queries: u32,
    start: u32,
    last: u32,
    table: u32,
    kv_head: u32,
}

// Returns query `i` of a run. Queries are ordered by row, then by head.
fn query_of(run: Run, i: u32) -> Query {
    let sharing = constants.heads / constants.kv_heads;
    let at = min(i, run.queries - 1u);
    let row = run.row + at / sharing;
    let seen = position_of(row) + 1u;
    return Query(row, run.kv_head * sharing + at % sharing, window_start(seen), seen);
}

fn put_result(query: Query, dim: u32, values: vec4<f32>) {
    let to = (query.row * constants.heads + query.head) * constants.head_dim;
    for (var i = 0u; i < 4u; i++) {
        if dim + i < constants.head_dim { out[to + dim + i] = values[i]; }
    }
}

@compute @workgroup_size(ITEMS)
fn attention_tiled(@builtin(workgroup_id) workgroup: vec3<u32>, place: Place) {
    let item = item_of(place);
    let group = workgroup + constants.first_group;
    let sharing = constants.heads / constants.kv_heads;
    let tile = max(1u, GROUP_QUERIES / sharing);
    let end = min(count(0u, constants.rows), (group.x + 1u) * tile);
    // Split attention computes the first rows, if there are any of that kind.
    for (var row = max(count(2u, constants.rows), group.x * tile); row < end;) {
        // Finds the longest run that starts at `row`.
        let sequence = sequence_of(row);
        let exists = sequence < constants.sequences;
        let table = table_of(row);
        var wanted = 0u;
        for (var r = row; exists && r < end && sequence_of(r) == sequence; r++) {
            wanted = max(wanted, min(position_of(r) / 16u + 1u, constants.table_blocks));
        }
        let reached_blocks = reach(item, table, wanted);
        var next = row;
        var start = 0xffffffffu;
        var last = 0u;
        while next < end && sequence_of(next) == sequence && position_of(next) / 16u < reached_blocks {
            last = max(last, position_of(next));
            start = min(start, window_start(position_of(next) + 1u));
            next++;
        }
        if next == row {
            let to = (row * constants.heads + group.y * sharing) * constants.head_dim;
            for (var i = item; i < sharing * constants.head_dim; i += ITEMS) { out[to + i] = 0.0; }
        }
        attend_run(place, Run(row, (next - row) * sharing, start, last, table, group.y));
        row = max(next, row + 1u);
    }
}
