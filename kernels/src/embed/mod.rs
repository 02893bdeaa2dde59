//! Embed: looks up rows of a table of weights by token id.
//!
//! | binding | |
//! | --- | --- |
//! | 0 | parameters; the kernel reads them up to the token ids |
//! | 1 | table: `[vocabulary, width]` in the variant's [layout](crate::layout) |
//! | 2 | out: f32 `[rows, width]`, written |
//!
//! The constants are the row capacity, the vocabulary size, the width, and the first token. Row i of out is
//! row `tokens[i] - first token` of the table. If the table has no such row, the result depends on the first
//! token: if it is 0, the kernel sets row i to zero, and otherwise it leaves the row unchanged. A large table
//! can therefore be bound in several parts, starting with the part that has the lowest tokens. A launch has
//! one group per row.
//!
//! The table has the same layout as the weights of products, so that memory holds tied weights only once. In
//! `Rows16`, reading a row costs a few microseconds more per token, because the row is interleaved with the
//! other rows of its group.

use crate::abi::{HEADER_BYTES, IMPOSSIBLE, array, words};
use crate::blocks::{TensorType, dequantise};
use crate::cases::{Build, Case, Params, Random};
use crate::kernel::{Kernel, Spec};
use crate::layout::{Layout, Resident};
use crate::params::ParamsShape;
use crate::types::each_type;
use ragtag_hal::{Access, EntryAbi};

macro_rules! abis {
    ($($name:ident)*) => {
        /// Returns the binary interface for a table of `tensor_type` in `layout`.
        pub fn abi(tensor_type: TensorType, layout: Layout) -> &'static EntryAbi {
            match (tensor_type, layout) {
                $((TensorType::$name, Layout::Rows16) => abi!($name, Rows16),
                (TensorType::$name, Layout::RowMajor) => abi!($name, RowMajor),)*
            }
        }
    };
}

macro_rules! abi {
    ($name:ident, $layout:ident) => {{
        static ABI: EntryAbi = EntryAbi {
            name: concat!("embed_", stringify!($name), "_", stringify!($layout)),
            bindings: &[Access::Read, Access::Read, Access::Write],
            constants: 4,
            extents: |constants, out| extents(TensorType::$name, Layout::$layout, constants, out),
        };
        &ABI
    }};
}
each_type!(abis);

fn extents(tensor_type: TensorType, layout: Layout, constants: &[u32], out: &mut [u64]) {
    let [rows, vocabulary, width, _] = array(constants);
    let table = Resident::new(tensor_type, layout, vocabulary.into(), width.into());
    let table = table.map_or(IMPOSSIBLE, |r| r.bytes());
    out.copy_from_slice(&[HEADER_BYTES + words(&[rows]), table, words(&[rows, width])]);
}

/// Returns the values of row `token` of a table in file format.
fn reference(tensor_type: TensorType, file: &[u8], width: usize, token: usize) -> Vec<f64> {
    let bytes = width / tensor_type.block_values() * tensor_type.block_bytes();
    let mut row = vec![0.0; width];
    if let Some(blocks) = file.get(token * bytes..(token + 1) * bytes) {
        dequantise(tensor_type, blocks, &mut row).expect("a row is whole blocks");
    }
    row.into_iter().map(f64::from).collect()
}

pub(crate) struct Embed(pub TensorType);

impl Spec for Embed {
    fn abi(&self, layout: Layout) -> &'static EntryAbi {
        abi(self.0, layout)
    }

    fn layout(&self, kept: &dyn Fn(TensorType) -> Layout) -> Option<Layout> {
        Some(kept(self.0))
    }

    fn cases(&self, layout: Layout, random: &mut Random) -> Vec<Case> {
        // The last shape is the second part of a table. Rows of tokens in other parts stay unchanged.
        [
            (1, vec![0], (0, 1), 256),
            (8, vec![39, 16, 15, 40, 3], (0, 40), 512),
            (3, vec![18, u32::MAX, 0], (0, 19), 768),
            (6, vec![64, 63, 83, 84, 0], (64, 20), 256),
        ]
        .map(|(capacity, tokens, part, width)| case(random, (self.0, layout), capacity, &tokens, part, width))
        .into()
    }

    /// Returns a case with one part of a table. Some tokens are before or after this part.
    fn random_case(&self, layout: Layout, random: &mut Random) -> Case {
        let capacity = 1 + random.below(20);
        let (first, vocabulary) = ([0, 64][random.below(2)], 1 + random.below(60));
        let tokens: Vec<u32> =
            (0..random.below(capacity + 1)).map(|_| random.below(first + vocabulary + 4) as u32).collect();
        let width = 256 * (1 + random.below(4));
        case(random, (self.0, layout), capacity, &tokens, (first, vocabulary), width)
    }
}

fn case(
    random: &mut Random,
    (tensor_type, layout): (TensorType, Layout),
    capacity: usize,
    tokens: &[u32],
    (first, vocabulary): (usize, usize),
    width: usize,
) -> Case {
    let layout =
        Resident::new(tensor_type, layout, vocabulary as u64, width as u64).expect("widths are whole blocks");
    let file = random.blocks(tensor_type, vocabulary * width);
    let mut table = vec![0; layout.bytes() as usize];
    layout.pack(0..layout.groups(), &file, &mut table).expect("sizes are the layout's");
    let shape = ParamsShape { rows: capacity as u32, logit_rows: 0, sequences: 0, table_blocks: 0 };
    let mut words = Params { tokens: tokens.to_vec(), ..Params::new(shape) }.words();
    words.truncate(4 + capacity);
    let row = |token: &u32| match (*token as usize).checked_sub(first) {
        Some(row) if row < vocabulary || first == 0 => {
            reference(tensor_type, &file, width, row).into_iter().map(Some).collect()
        }
        _ => vec![None; width],
    };
    let mut expected: Vec<Option<f64>> = tokens.iter().flat_map(row).collect();
    expected.resize(capacity * width, None);
    let label = format!("{tokens:?} of {vocabulary} from {first} on × {width}");
    let case = Build::new(Kernel::Embed(tensor_type), label, &[capacity, vocabulary, width, first]);
    case.words(&words).bytes(table).poison(capacity * width * 4).expect_f32(2, expected)
}
