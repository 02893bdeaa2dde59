//! Generates random blocks of every tensor type, with mean zero and a given standard deviation.
//!
//! Floating-point values are uniform. Quants are random bits. Their standard deviation determines the mean
//! scale. The scales of a tensor differ a little from block to block, so that tests detect kernels that apply
//! the scale of another block. The block layouts are those of ggml (`block_q8_0` and so on).

use half::{bf16, f16};
use ragtag_kernels::TensorType;

/// Content with which to fill a tensor.
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

/// Pseudo-random number generator that hashes a counter.
pub struct Random(u64);

impl Random {
    /// Creates a generator for the `stream`-th independent sequence of `seed`.
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

/// Applies the finaliser of splitmix64 (Steele, Lea and Flood, 2014), in which every output bit depends on
/// every input bit.
fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// Base-2 logarithm of the number of values in a table of floating-point values.
const TABLE_BITS: u32 = 12;
/// Number of distinct scales in a tensor.
const SIZES: usize = 16;

/// Method of filling a tensor, with precomputed tables.
pub enum Fill {
    /// Ones in F32.
    Ones,
    /// Values of 2 bytes each, drawn from a table.
    Table2(Vec<[u8; 2]>),
    /// Values of 4 bytes each, drawn from a table.
    Table4(Vec<[u8; 4]>),
    /// Blocks of random quants in this tensor type, with scales that are drawn from a table.
    Blocks(TensorType, [f32; SIZES]),
}

impl Fill {
    /// Prepares the method of filling a tensor of this type with `values`.
    pub fn new(tensor_type: TensorType, values: Values) -> Self {
        let Values::Random { deviation } = values else { return Fill::Ones };
        // Values are evenly spaced from -√3·σ to √3·σ, so their standard deviation is σ.
        let table = (0..1u32 << TABLE_BITS).map(|i| {
            let position = (2 * i + 1) as f32 / (1u32 << TABLE_BITS) as f32 - 1.0;
            position * 3f32.sqrt() * deviation
        });
        match tensor_type {
            TensorType::F32 => Fill::Table4(table.map(f32::to_le_bytes).collect()),
            TensorType::F16 => Fill::Table2(table.map(|v| f16::from_f32(v).to_le_bytes()).collect()),
            TensorType::BF16 => Fill::Table2(table.map(|v| bf16::from_f32(v).to_le_bytes()).collect()),
            _ => {
                // Both signs are equally frequent, so that the mean is zero.
                let size = |i: usize| [deviation, -deviation][i % 2] * (0.75 + (i / 2) as f32 / 14.0);
                Fill::Blocks(tensor_type, std::array::from_fn(size))
            }
        }
    }

    /// Fills `out`, which consists of whole blocks of the tensor.
    pub fn blocks(&self, random: &mut Random, out: &mut [u8]) {
        match self {
            Fill::Ones => out.chunks_exact_mut(4).for_each(|v| v.copy_from_slice(&1f32.to_le_bytes())),
            Fill::Table2(table) => draw(table, random, out),
            Fill::Table4(table) => draw(table, random, out),
            Fill::Blocks(tensor_type, sizes) => {
                random.fill(out);
                for block in out.chunks_exact_mut(tensor_type.block_bytes()) {
                    let size = sizes[(random.next() % SIZES as u64) as usize];
                    tensor_type.scales().iter().for_each(|scale| scale.put_typical(block, size));
                }
            }
        }
    }
}

/// Fills `out` with values that are drawn from `table`, four per random word.
fn draw<const N: usize>(table: &[[u8; N]], random: &mut Random, out: &mut [u8]) {
    for four in out.chunks_mut(4 * N) {
        let mut word = random.next();
        for value in four.chunks_exact_mut(N) {
            value.copy_from_slice(&table[(word >> (64 - TABLE_BITS)) as usize]);
            word <<= 16;
        }
    }
}
