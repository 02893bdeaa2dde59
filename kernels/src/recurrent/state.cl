// The slots from which and to which the state of a row's sequence goes. A slot beyond all others stands for none.
FN uint2 slots_of(Lists at, uint row, uint sequences, uint table_blocks) {
    uint word = at.row_sequences[row] < sequences ? table_of(at, row, sequences, table_blocks)[0] : 0xffffffffu;
    return UINT2(word & 0xffffu, word >> 16);
}
