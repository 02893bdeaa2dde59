// Detects non-finite values by their bits, because implementations and their optimizers may assume that all
// values are finite.

const INFINITE: u32 = 0x7f800000u;
const NOT_A_NUMBER: u32 = 0x7fc00000u;

fn size_bits(x: f32) -> u32 { return bitcast<u32>(x) & 0x7fffffffu; }
fn is_nan(x: f32) -> bool { return size_bits(x) > INFINITE; }
