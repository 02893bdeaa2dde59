//! Encodes and decodes file blocks.
//!
//! Decoding:
//!
//! | binding | |
//! | --- | --- |
//! | 0 | blocks, one after the other |
//! | 1 | out: f32, written |
//!
//! Encoding:
//!
//! | binding | |
//! | --- | --- |
//! | 0 | x: f32, finite |
//! | 1 | out: blocks, one after the other, written |
//!
//! The constants of both kernels are the GGUF number of the tensor type, and the number of blocks. There are
//! fewer than 2^32 values. Blocks are adjacent, and kernels access them in 32-bit words even if their size is
//! not a multiple of four bytes. If the last block ends within a word, the rest of the word is zero. The
//! sources for GPUs consist of a shared part and a part for each type in `types`.
//!
//! [`crate::blocks`] defines the formats. A kernel may encode values as different blocks than the reference,
//! [`quantise`](crate::blocks::quantise()). Apart from ties, the relative error of its blocks may exceed that
//! of the reference's blocks by at most 1e-4.

use crate::abi::{IMPOSSIBLE, array, product, words};
use crate::blocks::{TensorType, dequantise};
use crate::cases::{Build, Case, Content, Random};
use crate::elements::{self, Operator};
use crate::kernel::{Accuracy, Kernel, Spec};
use crate::layout::Layout;
use crate::wgsl;
use ragtag_hal::{Access, EntryAbi};

/// Returns all types that files store as blocks of several values.
pub fn types() -> impl Iterator<Item = TensorType> {
    TensorType::in_gguf().filter(|tensor_type| tensor_type.block_values() > 1)
}

/// Returns the type with number `id` in GGUF files, if its blocks have several values.
pub(crate) fn type_of(id: u32) -> Option<TensorType> {
    TensorType::from_gguf_id(id).filter(|tensor_type| tensor_type.block_values() > 1)
}

/// For every type, emits a copy of each line of `text` that contains `$id`. Replaces `$id` with the type's
/// number, `$name` with its lower-case name, `$values` with its values per block, and `$bytes` with its bytes
/// per block.
pub(crate) fn repeat(text: &str) -> String {
    let line_of = |line: &str, t: TensorType| {
        line.replace("$values", &t.block_values().to_string())
            .replace("$bytes", &t.block_bytes().to_string())
            .replace("$name", &t.name().to_lowercase())
            .replace("$id", &t.gguf_id().to_string())
    };
    let lines = text.split_inclusive('\n').map(|line| match line.contains("$id") {
        true => types().map(|t| line_of(line, t)).collect(),
        false => line.to_owned(),
    });
    lines.collect()
}

/// Binary interface of the decoder.
pub static DECODE_ABI: EntryAbi = EntryAbi {
    name: "decode_blocks",
    bindings: &[Access::Read, Access::Write],
    constants: 2,
    extents: |constants, extents| extents.copy_from_slice(&sizes(constants)),
};

/// Binary interface of the encoder.
pub static ENCODE_ABI: EntryAbi = EntryAbi {
    name: "encode_blocks",
    bindings: &[Access::Read, Access::Write],
    constants: 2,
    extents: |constants, extents| {
        let [blocks, values] = sizes(constants);
        extents.copy_from_slice(&[values, blocks]);
    },
};

/// Returns the number of bytes in the blocks, rounded up to whole words, and the number of bytes in the
/// values.
fn sizes(constants: &[u32]) -> [u64; 2] {
    let [id, blocks] = array(constants);
    let Some(tensor_type) = type_of(id) else { return [IMPOSSIBLE; 2] };
    let values = tensor_type.block_values() as u32;
    if blocks.checked_mul(values).is_none() {
        return [IMPOSSIBLE; 2];
    }
    let bytes = product(&[blocks, tensor_type.block_bytes() as u32]);
    [bytes.next_multiple_of(4), words(&[blocks, values])]
}

/// Returns a grid with one work item per value.
pub(crate) fn decode_grid(constants: &[u32]) -> [u32; 3] {
    let values = type_of(constants[0]).map_or(1, TensorType::block_values);
    elements::grid(constants[1].saturating_mul(values as u32))
}

/// Returns a grid with one work item per four blocks, which are a whole number of words in every type.
pub(crate) fn encode_grid(constants: &[u32]) -> [u32; 3] {
    elements::grid(constants[1].div_ceil(4))
}

/// The two kernels.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum FileBlocks {
    Decode,
    Encode,
}

impl Spec for FileBlocks {
    fn accuracy(&self) -> Accuracy {
        match self {
            FileBlocks::Decode => Accuracy::exact(1e-6),
            // Ties may be rounded either way.
            FileBlocks::Encode => Accuracy::exact(1e-4),
        }
    }

    fn abi(&self, _: Layout) -> &'static EntryAbi {
        match self {
            FileBlocks::Decode => &DECODE_ABI,
            FileBlocks::Encode => &ENCODE_ABI,
        }
    }

    fn operator(&self) -> Option<Operator> {
        Some(match self {
            FileBlocks::Decode => Operator {
                grid: decode_grid,
                c: include_str!("decode.cl"),
                wgsl: |_| wgsl::elementwise::blocks(include_str!("decode.wgsl"), |row| row.decode_wgsl),
            },
            FileBlocks::Encode => Operator {
                grid: encode_grid,
                c: include_str!("encode.cl"),
                wgsl: |_| wgsl::elementwise::blocks(include_str!("encode.wgsl"), |row| row.encode_wgsl),
            },
        })
    }

    fn cases(&self, _: Layout, random: &mut Random) -> Vec<Case> {
        let counts = [1, 3, 8, 17].into_iter().cycle();
        types().zip(counts).map(|(tensor_type, blocks)| case(*self, random, tensor_type, blocks)).collect()
    }

    fn random_case(&self, _: Layout, random: &mut Random) -> Case {
        let tensor_type = types().nth(random.below(types().count())).unwrap_or(TensorType::Q8_0);
        let blocks = 1 + random.below(40);
        case(*self, random, tensor_type, blocks)
    }
}

fn case(codec: FileBlocks, random: &mut Random, tensor_type: TensorType, blocks: usize) -> Case {
    let count = blocks * tensor_type.block_values();
    let constants = [tensor_type.gguf_id() as usize, blocks];
    let label = format!("{blocks} blocks of {tensor_type}");
    if codec == FileBlocks::Decode {
        let mut file = random.blocks(tensor_type, count);
        let mut values = vec![0.0; count];
        dequantise(tensor_type, &file, &mut values).expect("the blocks are whole");
        file.resize(file.len().next_multiple_of(4), 0xff);
        let wanted = values.into_iter().map(|x| Some(f64::from(x))).collect();
        let case = Build::new(Kernel::DecodeBlocks, label, &constants);
        return case.bytes(file).poison(count * 4).expect_f32(1, wanted);
    }
    let mut values = random.floats(count, 2.0);
    // Blocks whose values all have one sign, are all equal, or are zero.
    for (i, block) in values.chunks_exact_mut(32).enumerate() {
        match i % 7 {
            1 => block.iter_mut().for_each(|x| *x = x.abs() + 1.0),
            2 => block.fill(-0.75),
            4 => block.fill(0.0),
            5 => block.iter_mut().skip(1).for_each(|x| *x *= 1e-3),
            _ => {}
        }
    }
    let bytes = (blocks * tensor_type.block_bytes()).next_multiple_of(4);
    let case = Build::new(Kernel::EncodeBlocks, label, &constants).floats(&values).poison(bytes);
    case.expect(1, Content::Blocks { tensor_type, values }).done()
}
