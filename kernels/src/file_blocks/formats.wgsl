// File blocks, by the number of their type in files. Lines with `$id` are repeated for each type.

fn values_of(kind: u32) -> u32 {
    switch kind {
        case $idu: { return $valuesu; }
        default: { return 1u; }
    }
}

fn bytes_of(kind: u32) -> u32 {
    switch kind {
        case $idu: { return $bytesu; }
        default: { return 1u; }
    }
}

fn half_value(bits: u32) -> f32 { return bitcast<f32>(f32_of_half(bits)); }
