// Lists of a parameter block.

fn position_of(row: u32) -> u32 { return params[4u + constants.rows + row]; }
fn sequence_of(row: u32) -> u32 { return params[4u + 2u * constants.rows + row]; }

// Returns the index of the first word of a sequence's block table.
fn table_of(sequence: u32) -> u32 {
    return 4u + 3u * constants.rows + constants.logit_rows + sequence * constants.table_blocks;
}

// Returns the block that holds a position of a sequence, or a block beyond the cache if there is none.
fn block_of(sequence: u32, position: u32) -> u32 {
    if sequence >= constants.sequences || position / 16u >= constants.table_blocks { return constants.cache_blocks; }
    return params[table_of(sequence) + position / 16u];
}
