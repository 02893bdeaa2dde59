// Reductions over a group, on any device. All items must call them together.

struct Item {
    @builtin(local_invocation_index) index: u32,
}

var<workgroup> scratch: array<u32, ITEMS + 16u>;

// Returns the largest value of the group.
fn group_max(item: Item, value: u32) -> u32 {
    scratch[item.index] = value;
    workgroupBarrier();
    if item.index < 16u {
        var largest = value;
        for (var i = item.index + 16u; i < ITEMS; i += 16u) { largest = max(largest, scratch[i]); }
        scratch[ITEMS + item.index] = largest;
    }
    workgroupBarrier();
    var largest = 0u;
    for (var i = ITEMS; i < ITEMS + 16u; i++) { largest = max(largest, scratch[i]); }
    return largest;
}

// Returns the sum of the group's values.
fn group_sum(item: Item, value: f32) -> f32 {
    scratch[item.index] = bitcast<u32>(value);
    workgroupBarrier();
    if item.index < 16u {
        var sum = value;
        for (var i = item.index + 16u; i < ITEMS; i += 16u) { sum += bitcast<f32>(scratch[i]); }
        scratch[ITEMS + item.index] = bitcast<u32>(sum);
    }
    workgroupBarrier();
    var sum = 0.0;
    for (var i = ITEMS; i < ITEMS + 16u; i++) { sum += bitcast<f32>(scratch[i]); }
    return sum;
}
