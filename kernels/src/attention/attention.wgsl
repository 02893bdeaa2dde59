// Code that the attention kernels share.

// Score of masked positions. It is lower than every valid score.
const LOWEST = -3.4e38;

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
