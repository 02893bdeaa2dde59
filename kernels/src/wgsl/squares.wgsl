// Adds up the items' sums of squares for M rows of x through local memory. The items that process one part
// have together read all columns.

const SHARES: u32 = ITEMS / PARTS;

var<workgroup> partial_squares: array<f32, M * SHARES>;

fn gather_squares(row: u32, squares: f32, place: Place) {
    if place.item % PARTS == 0u { partial_squares[row * SHARES + place.item / PARTS] = squares; }
}

// Returns the total for a row of x. The caller must execute a barrier first.
fn gathered_squares(row: u32, place: Place) -> f32 {
    var sum = 0.0;
    for (var at = 0u; at < SHARES; at++) { sum += partial_squares[row * SHARES + at]; }
    return sum;
}
