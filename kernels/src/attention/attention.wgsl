// Code that the attention kernels share.

// Score of masked positions. It is lower than every valid score.
const LOWEST = -3.4e38;

// First position that a query attends to, if it sees `seen` positions without a window. The highest bit of a
// window says that it is the size of chunks.
fn window_start(seen: u32) -> u32 {
    var window = constants.window;
    if window > 0x80000000u && window != 0xffffffffu { window = (seen - 1u) % (window & 0x7fffffffu) + 1u; }
    return seen - min(seen, window);
}

// Scores that tend to ± the cap. There is no cap if it is zero.
fn capped(scores: vec4<f32>) -> vec4<f32> {
    let cap = constants.cap;
    if cap == 0.0 { return scores; }
    return cap - 2.0 * cap / (1.0 + exp(min(scores * (2.0 / cap), vec4(80.0))));
}

var<workgroup> reached: array<atomic<u32>, 4>;

// Returns the number of leading blocks that exist, among the first `wanted` blocks of the table at word
// `table`. All items must call this together.
fn reach(item: u32, table: u32, wanted: u32) -> u32 {
    workgroupBarrier(); // Earlier reads are done.
    if item == 0u { atomicStore(&reached[0], wanted); }
    workgroupBarrier();
    for (var i = item; i < wanted; i += ITEMS) {
        if params[table + i] >= constants.cache_blocks {
            atomicMin(&reached[0], i);
            break;
        }
    }
    workgroupBarrier();
    return atomicLoad(&reached[0]);
}

// Index of the first value of a kv head in a block of the cache.
fn start_of(block: u32, kv_head: u32) -> u32 { return (block * constants.kv_heads + kv_head) * constants.head_dim * 16u; }
