// Reductions over a group, computed by its sub-groups. Sub-groups may have any size. All items must call
// these functions together.

struct Item {
    @builtin(local_invocation_index) index: u32,
    @builtin(subgroup_invocation_id) lane: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(num_subgroups) subgroups: u32,
}

var<workgroup> scratch: array<u32, ITEMS>;

// Stores one value per sub-group in `scratch`.
fn share(item: Item, value: u32) {
    workgroupBarrier(); // Earlier reads are done.
    if item.lane == 0u { scratch[item.subgroup] = value; }
    workgroupBarrier();
}

// Returns the largest value of the group.
fn group_max(item: Item, value: u32) -> u32 {
    share(item, subgroupMax(value));
    var largest = 0u;
    for (var i = 0u; i < item.subgroups; i++) { largest = max(largest, scratch[i]); }
    return largest;
}

// Returns the sum of the group's values.
fn group_sum(item: Item, value: f32) -> f32 {
    share(item, bitcast<u32>(subgroupAdd(value)));
    var sum = 0.0;
    for (var i = 0u; i < item.subgroups; i++) { sum += bitcast<f32>(scratch[i]); }
    return sum;
}
