// Products for few rows of x. A group takes LINES rows of weights and reads them once for M rows of x. PARTS
// is the number of fours of rows per group. Items with equal numbers modulo PARTS share the columns of the
// same four rows of weights.
//
// Other texts define the treatment of sums and of x (plain, normed), and which sums form a column of y
// (each_row, gated_rows).

// Rows of weights per group.
const LINES: u32 = 4u * PARTS;

@compute @workgroup_size(ITEMS)
fn matmul_gemv(place: Place) {
    let group = place.workgroup.x + constants.first_group.x;
    let used = count(constants.word, constants.rows);
    // With a capacity of one row, no item waits for the count, which matters only when the row is written.
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
