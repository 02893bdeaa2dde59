// Shared code. Before it, a kernel's text defines ITEMS, the work items per group.

// A count of the parameters' header, at most `capacity`.
fn count(word: u32, capacity: u32) -> u32 {
    if word < 4u { return min(params[word], capacity); }
    return 0u;
}

@group(0) @binding(0) var<storage, read> params: array<u32>;
