// File blocks, by the number of their type in files.

fn values_of(kind: u32) -> u32 { return select(256u, 32u, kind < 10u); }

fn bytes_of(kind: u32) -> u32 {
    switch kind {
        case 2u: { return 18u; }
        case 3u: { return 20u; }
        case 6u: { return 22u; }
        case 7u: { return 24u; }
        case 8u: { return 34u; }
        case 12u: { return 144u; }
        case 13u: { return 176u; }
        case 14u: { return 210u; }
        case 34u: { return 54u; }
        default: { return 66u; }
    }
}

fn half_value(bits: u32) -> f32 { return bitcast<f32>(f32_of_half(bits)); }
