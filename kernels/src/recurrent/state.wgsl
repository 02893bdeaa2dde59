// Slots of the states of sequences.

// Returns the slots from which and to which the state of a row's sequence goes. A slot beyond all others stands for none.
fn slots_of(row: u32) -> vec2<u32> {
    if sequence_of(row) >= constants.sequences { return vec2(0xffffu); }
    let word = params[table_of(row)];
    return vec2(word & 0xffffu, word >> 16u);
}
