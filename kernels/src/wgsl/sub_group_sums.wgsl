// Adds up the items' sums for M rows of x and four rows of weights each, first within sub-groups. Few values
// then remain for local memory. Items are numbered by their order in sub-groups.

struct Place {
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(subgroup_id) sub_group: u32,
    @builtin(subgroup_size) size: u32,
    @builtin(subgroup_invocation_id) lane: u32,
}

fn item_of(place: Place) -> u32 { return place.sub_group * place.size + place.lane; }

var<workgroup> partial: array<vec4<f32>, M * ITEMS>;

fn gather(row: u32, sums: vec4<f32>, place: Place) {
    var sum = sums;
    for (var mask = PARTS; mask < place.size; mask <<= 1u) { sum += subgroupShuffleXor(sum, mask); }
    let left = min(PARTS, place.size);
    if place.lane < left { partial[row * ITEMS + place.sub_group * left + place.lane] = sum; }
}

// Returns the total for a row of x and a row of weights. The caller must execute a barrier first.
fn gathered(row: u32, line: u32, place: Place) -> f32 {
    let end = ITEMS / place.size * min(PARTS, place.size);
    var sum = 0.0;
    for (var at = line / 4u; at < end; at += PARTS) { sum += partial[row * ITEMS + at][line % 4u]; }
    return sum;
}
