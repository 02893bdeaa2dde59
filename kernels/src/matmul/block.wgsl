// Loads a block of 32 columns of four rows of quantised weights, for products of few rows of x.

struct Block {
    pairs: array<Pair, 4>,
    scales: Scales,
}

fn load_block(group: u32, blocks: u32, block: u32, part: u32) -> Block {
    return Block(
        array<Pair, 4>(
            pair_words(group, blocks, block, 0u, part),
            pair_words(group, blocks, block, 1u, part),
            pair_words(group, blocks, block, 2u, part),
            pair_words(group, blocks, block, 3u, part)
        ),
        block_scales(group, blocks, block, part)
    );
}
