// Adds up the items' sums for M rows of x and four rows of weights each, through local memory.

struct Place {
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_index) item: u32,
}

fn item_of(place: Place) -> u32 { return place.item; }

var<workgroup> partial: array<vec4<f32>, M * ITEMS>;

fn gather(row: u32, sums: vec4<f32>, place: Place) { partial[row * ITEMS + place.item] = sums; }

// Returns the total for a row of x and a row of weights. The caller must execute a barrier first.
fn gathered(row: u32, line: u32, place: Place) -> f32 {
    var sum = 0.0;
    for (var at = line / 4u; at < ITEMS; at += PARTS) { sum += partial[row * ITEMS + at][line % 4u]; }
    return sum;
}
