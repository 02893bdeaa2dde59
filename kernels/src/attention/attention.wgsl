// What both forms of attention share.

// Less than any score that is a number: what positions have that are not seen.
const LOWEST = -3.4e38;

var<workgroup> reached: array<atomic<u32>, 4>;

// How many blocks of the table that begins at word `table` exist one after the other, among the first `wanted`; all items
// come here together.
fn reach(item: u32, table: u32, wanted: u32) -> u32 {
    workgroupBarrier(); // whoever read it before has done so
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

// The first value that a block of the cache has of a kv head.
fn start_of(block: u32, kv_head: u32) -> u32 { return (block * constants.kv_heads + kv_head) * constants.head_dim * 16u; }
