// Products for few rows of x: a group takes LINES rows of weights and reads them once for M rows of x. Its items share the
// columns: those whose numbers are equal modulo PARTS, the fours of rows that a group has, make sums of the same four rows of weights.
//
// Another text says what becomes of sums and of x (plain, normed), and what of the rows' sums is a column of y (each_row,
// gated_rows).

// Rows of weights of a group.
const LINES: u32 = 4u * PARTS;

@compute @workgroup_size(ITEMS)
fn matmul_gemv(place: Place) {
    let group = place.workgroup.x + constants.first_group.x;
    let used = count(constants.word, constants.rows);
    // With room for one row only, nothing waits for the count: it matters when the row is written.
    let rows = select(used, 1u, constants.rows == 1u);
    for (var start = 0u; start < rows; start += M) {
        let sums = row_sums(group, item_of(place), start, rows - start);
        share($mu, sums[$m], place);
        workgroupBarrier();
        let line = item_of(place) % COLUMNS;
        let slot = item_of(place) / COLUMNS;
        let column = group * COLUMNS + line;
        if slot < M && start + slot < used && column < columns() {
            put(start + slot, column, value_of(slot, line, place));
        }
        workgroupBarrier();
    }
}
