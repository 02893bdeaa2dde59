// Values of four indices, one per byte, in a table of signed bytes. TABLE_0 holds the values of indices 0 to
// 3, and so on.

// Looks up one index in each of four words. The index and the result start at bit `shift`.
fn value_at(indices: vec4<u32>, shift: u32) -> vec4<u32> {
    let index = indices >> vec4<u32>(shift);
    let is_second = (index & vec4<u32>(4u)) != vec4<u32>();
    let low = select(vec4<u32>(TABLE_0), vec4<u32>(TABLE_4), is_second);
    let high = select(vec4<u32>(TABLE_8), vec4<u32>(TABLE_12), is_second);
    let four = select(low, high, (index & vec4<u32>(8u)) != vec4<u32>());
    return ((four >> (index % vec4<u32>(4u) * 8u)) & vec4<u32>(255u)) << vec4<u32>(shift);
}

// Looks up the four indices in each of four words, one per byte.
fn values_of_indices(indices: vec4<u32>) -> vec4<u32> {
    return value_at(indices, 0u) | value_at(indices, 8u) | value_at(indices, 16u) | value_at(indices, 24u);
}

fn pair_words(group: u32, blocks: u32, block: u32, pair: u32, part: u32) -> Pair {
    let words = nibbles(group, block, pair, part);
    return Pair(values_of_indices(words.low), values_of_indices(words.high));
}
