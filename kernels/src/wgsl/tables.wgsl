// Lists of a parameter block.

fn position_of(row: u32) -> u32 { return params[4u + constants.rows + row]; }
fn sequence_of(row: u32) -> u32 { return params[4u + 2u * constants.rows + row]; }

// First word of a sequence's table.
fn table_of(sequence: u32) -> u32 {
    return 4u + 3u * constants.rows + constants.logit_rows + sequence * constants.table_blocks;
}

// Block of a sequence's position; one beyond the cache if there is none.
fn block_of(sequence: u32, position: u32) -> u32 {
    if sequence >= constants.sequences || position / 16u >= constants.table_blocks { return constants.cache_blocks; }
    return params[table_of(sequence) + position / 16u];
}
