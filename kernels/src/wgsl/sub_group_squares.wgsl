// Adds up the items' sums of squares for M rows of x, first within sub-groups. The items that process one
// part have together read all columns.

// Upper bound on the number of sub-groups.
const SHARES: u32 = ITEMS / PARTS;

var<workgroup> partial_squares: array<f32, M * SHARES>;

fn gather_squares(row: u32, squares: f32, place: Place) {
    var sum = squares;
    for (var mask = PARTS; mask < place.size; mask <<= 1u) { sum += subgroupShuffleXor(sum, mask); }
    let together = max(PARTS, place.size);
    if item_of(place) % together == 0u { partial_squares[row * SHARES + item_of(place) / together] = sum; }
}

// Returns the total for a row of x. The caller must execute a barrier first.
fn gathered_squares(row: u32, place: Place) -> f32 {
    var sum = 0.0;
    for (var at = 0u; at < ITEMS / max(PARTS, place.size); at++) { sum += partial_squares[row * SHARES + at]; }
    return sum;
}
