// Shared code. The source of a kernel defines ITEMS, the number of work items per group, before this code.

// Returns a count from the header of the parameters, limited to `capacity`.
fn count(word: u32, capacity: u32) -> u32 {
    if word < 4u { return min(params[word], capacity); }
    return 0u;
}

@group(0) @binding(0) var<storage, read> params: array<u32>;
