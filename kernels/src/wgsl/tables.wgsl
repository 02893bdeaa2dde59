// Lists of a parameter block.

fn position_of(row: u32) -> u32 { return params[4u + constants.rows + row]; }
fn sequence_of(row: u32) -> u32 { return params[4u + 2u * constants.rows + row]; }

// Returns the index of the first word of the block table of a row's sequence. If the sequence exists, `table_blocks`
// words from there on are in the parameter block.
fn table_of(row: u32) -> u32 {
    let starts = 4u + 3u * constants.rows + constants.logit_rows;
    let last = (constants.sequences - 1u) * constants.table_blocks;
    return starts + constants.rows + min(params[starts + row], last);
}

// Returns the block that holds a position of a row's sequence, or a block beyond the cache if there is none.
fn block_of(row: u32, position: u32) -> u32 {
    let exists = sequence_of(row) < constants.sequences && position / 16u < constants.table_blocks;
    if !exists { return constants.cache_blocks; }
    return params[table_of(row) + position / 16u];
}
