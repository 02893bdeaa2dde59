// Int8 activations. Eight items process a block of 32 columns together, and each item writes whole words.

// Offsets of the scales and sums within a row, and stride of rows, in bytes.
fn scales_offset(width: u32) -> u32 { return (width + 63u) & ~63u; }
fn sums_offset(width: u32) -> u32 { return scales_offset(width) + width / 32u * 4u; }
fn row_bytes(width: u32) -> u32 { return (sums_offset(width) + width / 32u * 8u + 63u) & ~63u; }

// Returns the number of columns of a row that a kernel writes.
fn padded(width: u32) -> u32 { return width; }

// Largest value and sum of each item.
var<workgroup> largest_of: array<u32, ITEMS>;
var<workgroup> sum_of: array<i32, ITEMS>;

// Quantizes the item's four values, which start at column `column` of a row, and writes them. All items of
// the group must call this together. Items without columns pass `column >= width`.
fn put(item: u32, values: vec4<f32>, row: u32, column: u32, width: u32) {
    // Absolute values order like their bits, and NaN is above all numbers.
    let sizes = bitcast<vec4<u32>>(values) & vec4(0x7fffffffu);
    var largest = max(max(sizes.x, sizes.y), max(sizes.z, sizes.w));
    workgroupBarrier(); // The sums of the previous call have been read.
    largest_of[item] = largest;
    workgroupBarrier();
    let block = item & ~7u;
    for (var i = 0u; i < 8u; i++) { largest = max(largest, largest_of[block + i]); }
    let scale = bitcast<f32>(largest);
    let inverse = select(127.0 / scale, 0.0, largest == 0u);
    let quanta = clamp(vec4<i32>(round(values * inverse)), vec4(-127), vec4(127));
    sum_of[item] = quanta.x + quanta.y + quanta.z + quanta.w;
    workgroupBarrier();
    if column < width {
        let at = row * (row_bytes(width) / 4u);
        out[at + column / 4u] = pack4xI8(quanta);
        if item % 8u == 0u {
            let bits = select(0x7fc00000u, bitcast<u32>(scale / 127.0), largest < 0x7f800000u);
            out[at + scales_offset(width) / 4u + column / 32u] = bits;
        }
        if item % 4u == 0u {
            let sum = sum_of[item] + sum_of[item + 1u] + sum_of[item + 2u] + sum_of[item + 3u];
            out[at + sums_offset(width) / 4u + column / 16u] = bitcast<u32>(sum);
        }
    }
}
