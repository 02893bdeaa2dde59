// Products for few rows of x. A group reads LINES rows of weights once and multiplies them by M rows of x.
// The rows of a group form PARTS parts of four rows each. Items whose numbers are equal modulo PARTS divide
// the columns of one part among them.
//
// Other sources define how values of x and sums are processed (plain, normed), and which sums form a column
// of y (each_row, gated_rows).

// Number of weight rows per group.
const LINES: u32 = 4u * PARTS;

@compute @workgroup_size(ITEMS)
fn matmul_gemv(place: Place) {
    let group = place.workgroup.x + constants.first_group.x;
    let used = count(constants.word, constants.rows);
    // If the capacity is one row, items do not wait until the count is loaded. Only the write of the row
    // needs the count.
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
