//! Random blocks of every tensor type, with mean zero and a given standard deviation.
//!
//! Floating-point values are uniform. Quants are random bits, and the scale follows from the standard
//! deviation of these bits. Scales vary a little from block to block, to expose kernels that confuse them.
//! The block layouts are those of ggml (`block_q8_0` and so on).

use half::{bf16, f16};
use ragtag_kernels::TensorType;

/// Content of a tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Values {
    /// Ones in F32.
    Ones,
    /// Uniform noise with mean zero.
    Random {
        /// Standard deviation.
        deviation: f32,
    },
}

/// Random number generator that hashes a counter.
pub struct Random(u64);

impl Random {
    /// Creates the generator of the `stream`-th sequence of a seed.
    pub fn new(seed: u64, stream: u64) -> Self {
        // Two rounds separate the sequences of neighbouring seeds and streams.
        Random(mix(mix(seed).wrapping_add(stream)))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        for part in bytes.chunks_mut(8) {
            part.copy_from_slice(&self.next().to_le_bytes()[..part.len()]);
        }
    }
}

/// Applies the finaliser of splitmix64 (Steele, Lea and Flood, 2014). Every output bit depends on every input
/// bit.
fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// Log2 of the table length for a floating-point type.
const TABLE_BITS: u32 = 12;
/// Number of scales for the blocks of a tensor.
const SCALES: usize = 16;

/// Function that fills a block with random quants and this scale.
type FillBlock = fn(&mut Random, &mut [u8], f16);

/// Method of filling a tensor.
pub enum Fill {
    /// Ones in F32.
    Ones,
    /// Values of 2 bytes, drawn from a table.
    Table2(Vec<[u8; 2]>),
    /// Values of 4 bytes, drawn from a table.
    Table4(Vec<[u8; 4]>),
    /// Blocks of quants: a function that fills one block, and the scales to choose from.
    Blocks(FillBlock, TensorType, [f16; SCALES]),
}

impl Fill {
    /// Creates the fill for a tensor of this type.
    pub fn new(tensor_type: TensorType, values: Values) -> Self {
        let Values::Random { deviation } = values else { return Fill::Ones };
        // Values are evenly spaced from -√3·σ to √3·σ, so their standard deviation is σ.
        let table = (0..1u32 << TABLE_BITS).map(|i| {
            let position = (2 * i + 1) as f32 / (1u32 << TABLE_BITS) as f32 - 1.0;
            position * 3f32.sqrt() * deviation
        });
        let (block, quanta_deviation): (FillBlock, f32) = match tensor_type {
            TensorType::F32 => return Fill::Table4(table.map(f32::to_le_bytes).collect()),
            TensorType::F16 => return Fill::Table2(table.map(|v| f16::from_f32(v).to_le_bytes()).collect()),
            TensorType::BF16 => {
                return Fill::Table2(table.map(|v| bf16::from_f32(v).to_le_bytes()).collect());
            }
            TensorType::Q8_0 => (q8_0, 73.6),
            TensorType::Q4_0 => (q4_0, 4.18),
            TensorType::Q4_1 => (q4_1, 4.61),
            TensorType::Q5_0 => (q5_0, 8.8),
            TensorType::Q5_1 => (q5_1, 9.23),
            TensorType::Q4_K => (q4_k, 4.61 * 48.4),
            TensorType::Q5_K => (q5_k, 9.23 * 48.4),
            TensorType::Q6_K => (q6_k, 18.5 * 74.6),
            TensorType::TQ1_0 => (tq1_0, 0.816),
            TensorType::TQ2_0 => (tq2_0, 0.707),
        };
        let scale = |i: usize| f16::from_f32(deviation / quanta_deviation * (0.75 + i as f32 / 30.0));
        Fill::Blocks(block, tensor_type, std::array::from_fn(scale))
    }

    /// Fills whole blocks of a tensor.
    pub fn blocks(&self, random: &mut Random, out: &mut [u8]) {
        match self {
            Fill::Ones => out.chunks_exact_mut(4).for_each(|v| v.copy_from_slice(&1f32.to_le_bytes())),
            Fill::Table2(table) => draw(table, random, out),
            Fill::Table4(table) => draw(table, random, out),
            Fill::Blocks(fill, tensor_type, scales) => {
                for block in out.chunks_exact_mut(tensor_type.block_bytes()) {
                    let scale = scales[(random.next() % SCALES as u64) as usize];
                    fill(random, block, scale);
                }
            }
        }
    }
}

/// Draws values from a table, four per random word.
fn draw<const N: usize>(table: &[[u8; N]], random: &mut Random, out: &mut [u8]) {
    for four in out.chunks_mut(4 * N) {
        let mut word = random.next();
        for value in four.chunks_exact_mut(N) {
            value.copy_from_slice(&table[(word >> (64 - TABLE_BITS)) as usize]);
            word <<= 16;
        }
    }
}

/// Fills a block of Q8_0: the scale, then 32 × i8. The value -128 does not occur, as in real files.
fn q8_0(random: &mut Random, block: &mut [u8], scale: f16) {
    random.fill(&mut block[2..]);
    block[2..].iter_mut().for_each(|q| *q = q.cast_signed().max(-127).cast_unsigned());
    block[..2].copy_from_slice(&scale.to_le_bytes());
}

/// Fills a block of Q4_0: the scale, then 32 quants of 4 bits, which represent their value minus 8. Replaces
/// 0 (-8) with 8 (0), so that the mean is zero.
fn q4_0(random: &mut Random, block: &mut [u8], scale: f16) {
    random.fill(&mut block[2..]);
    for byte in &mut block[2..] {
        let filled = *byte | *byte >> 1;
        let nonzero = (filled | filled >> 2) & 0x11;
        *byte |= (nonzero ^ 0x11) << 3;
    }
    block[..2].copy_from_slice(&scale.to_le_bytes());
}

/// Writes a scale and the product of the scale and `factor`.
fn scale_and(block: &mut [u8], scale: f16, factor: f32) {
    block[..2].copy_from_slice(&scale.to_le_bytes());
    block[2..4].copy_from_slice(&f16::from_f32(scale.to_f32() * factor).to_le_bytes());
}

/// Fills a block of Q4_1: the scale, the minimum, then 32 quants of 4 bits. The minimum is the negated
/// midpoint of the quants, so that the mean is zero.
fn q4_1(random: &mut Random, block: &mut [u8], scale: f16) {
    scale_and(block, scale, -7.5);
    random.fill(&mut block[4..]);
}

/// Fills a block of Q5_0: the scale, 32 high bits, then 32 × 4 low bits. A quant represents its 5-bit value
/// minus 16. Replaces 0 (-16) with 16 (0), so that the mean is zero.
fn q5_0(random: &mut Random, block: &mut [u8], scale: f16) {
    random.fill(&mut block[2..]);
    let (high, low) = block[2..].split_at_mut(4);
    for i in 0..32 {
        let nibble = low[i % 16] >> (i / 16 * 4) & 15;
        high[i / 8] |= u8::from(nibble == 0) << (i % 8);
    }
    block[..2].copy_from_slice(&scale.to_le_bytes());
}

/// Fills a block of Q5_1: the scale, the minimum, 32 high bits, then 32 × 4 low bits. The mean is zero for
/// the same reason as in [`q4_1`].
fn q5_1(random: &mut Random, block: &mut [u8], scale: f16) {
    scale_and(block, scale, -15.5);
    random.fill(&mut block[4..]);
}

/// Fills a block of Q4_K: the scale, the scale of the minima, 8 pairs of 6-bit scale and minimum, then 256
/// quants of 4 bits. The scale of the minima is the midpoint of the quants times the scale, so that the mean
/// is zero.
fn q4_k(random: &mut Random, block: &mut [u8], scale: f16) {
    scale_and(block, scale, 7.5);
    k_scales(random, &mut block[4..16]);
    random.fill(&mut block[16..]);
}

/// Fills a block of Q5_K. Its layout is that of Q4_K, with 256 high bits before the 256 × 4 low bits.
fn q5_k(random: &mut Random, block: &mut [u8], scale: f16) {
    scale_and(block, scale, 15.5);
    k_scales(random, &mut block[4..16]);
    random.fill(&mut block[16..]);
}

/// Writes the sub-scales and minima of Q4_K and Q5_K. The minimum of each sub-block equals its scale.
fn k_scales(random: &mut Random, packed: &mut [u8]) {
    // Sub-scales are between 32 and 63, because the highest of the six bits is set.
    let subscale = random.next().to_le_bytes().map(|byte| byte & 31 | 32);
    for i in 0..4 {
        let (low, high) = (subscale[i], subscale[i + 4]);
        packed[i] = low | (high >> 4) << 6;
        packed[4 + i] = low | (high >> 4) << 6;
        packed[8 + i] = (high & 15) | (high & 15) << 4;
    }
}

/// Fills a block of Q6_K: 128 bytes of low bits, 64 bytes of high bits, 16 × i8 scales, then the scale.
/// Sub-scales have random signs, so that the mean is zero.
fn q6_k(random: &mut Random, block: &mut [u8], scale: f16) {
    random.fill(&mut block[..208]);
    for subscale in &mut block[192..208] {
        let size = (*subscale & 127).max(32).cast_signed();
        *subscale = if *subscale & 128 == 0 { size } else { -size }.cast_unsigned();
    }
    block[208..].copy_from_slice(&scale.to_le_bytes());
}

/// Fills a block of TQ1_0: 52 bytes with five base-3 digits each, then the scale. A digit represents its
/// value minus 1. A byte is a number below 243, times 256/243, rounded up.
fn tq1_0(random: &mut Random, block: &mut [u8], scale: f16) {
    for four in block[..52].chunks_exact_mut(4) {
        let mut word = random.next();
        for byte in four {
            let number = (u32::from(word as u16) * 243) >> 16;
            *byte = (number * 256).div_ceil(243) as u8;
            word >>= 16;
        }
    }
    block[52..].copy_from_slice(&scale.to_le_bytes());
}

/// Fills a block of TQ2_0: 256 quants of 2 bits, which represent their value minus 1, then the scale.
/// Replaces 3, which must not occur, with 1 (0).
fn tq2_0(random: &mut Random, block: &mut [u8], scale: f16) {
    random.fill(&mut block[..64]);
    for byte in &mut block[..64] {
        let threes = *byte & *byte >> 1 & 0x55;
        *byte ^= threes << 1;
    }
    block[64..].copy_from_slice(&scale.to_le_bytes());
}
