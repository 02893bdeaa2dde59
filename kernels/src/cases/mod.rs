//! Conformance cases: seeded random inputs for every kernel, with the results that the kernel's reference
//! computes.
//!
//! This module does not depend on devices. The caller copies a case's bindings to the device, launches the
//! kernel, copies the bindings back, and calls [`Case::check`].

mod check;
mod elements;
mod random;

pub(crate) use check::{Build, untouched_after};
pub use check::{Case, Content, Expected};
pub(crate) use elements::{Stored, row_starts};
pub(crate) use random::Random;

use crate::kernel::Kernel;
use crate::layout::Layout;
use crate::params::{LOGIT_ROWS, ParamsShape, ROWS};

/// Returns the cases of `kernel`. They have odd shapes, capacities beyond the counts, and poisoned outputs.
/// Weights are in `layout`, or in the layout of the CPU if `layout` is `None`.
pub fn cases(kernel: Kernel, layout: Option<Layout>, seed: u64) -> Vec<Case> {
    let layout = layout.or(kernel.layout(|_| Layout::Rows16)).unwrap_or(Layout::Rows16);
    match kernel {
        Kernel::Embed(tensor_type) => crate::embed::cases(tensor_type, layout, seed),
        Kernel::Gather => crate::gather::cases(seed),
        Kernel::RmsNorm(activations) => crate::rms_norm::cases(activations, seed),
        Kernel::Quantize(activations) => crate::quantize::cases(activations, seed),
        Kernel::MatMul(tensor_type, activations) => {
            crate::matmul::cases(tensor_type, layout, activations, seed)
        }
        Kernel::NormMatMul(tensor_type) | Kernel::GatedMatMul(tensor_type) => {
            crate::matmul::normed::cases(kernel, tensor_type, layout, seed)
        }
        Kernel::Widen(tensor_type) => crate::widen::cases(tensor_type, seed),
        Kernel::HeadNorm => crate::head_norm::cases(seed),
        Kernel::RopeAppend(kv_type) => crate::rope_append::cases(kv_type, seed),
        Kernel::Attention(kv_type) => crate::attention::cases(kv_type, seed),
        Kernel::AttentionPartial(kv_type) => crate::attention::partial::cases(kv_type, seed),
        Kernel::AppendAttention(kv_type) => crate::attention::append::cases(kv_type, seed),
        Kernel::AttentionMerge(activations) => crate::attention::merge::cases(activations, seed),
        Kernel::SiluMul(activations) => crate::silu_mul::cases(activations, seed),
        Kernel::Add => crate::add::cases(seed),
        Kernel::Softmax => crate::softmax::cases(seed),
        Kernel::ArgMax => crate::arg_max::cases(seed),
        Kernel::TopK => crate::top_k::cases(seed),
        Kernel::Gemm(element) => crate::gemm::cases(element, seed),
        Kernel::AttentionDense(element) => crate::attention_dense::cases(element, seed),
        Kernel::Conv2d(element) => crate::conv2d::cases(element, seed),
        Kernel::Copy => crate::copy::cases(seed),
        Kernel::GatherRows => crate::gather_rows::cases(seed),
        Kernel::Unary => crate::unary::cases(seed),
        Kernel::Binary => crate::binary::cases(seed),
        Kernel::Reduce => crate::reduce::cases(seed),
        Kernel::SoftmaxAxis => crate::softmax_axis::cases(seed),
        Kernel::LayerNorm => crate::layer_norm::cases(seed),
        Kernel::Rope => crate::rope::cases(seed),
        Kernel::DecodeBlocks | Kernel::EncodeBlocks => crate::file_blocks::cases(kernel, seed),
    }
}

/// Returns a case of random shape. `layout` has the same meaning as in [`cases`]. The case depends only on
/// `seed`, which is part of its label.
pub fn random_case(kernel: Kernel, layout: Option<Layout>, seed: u64) -> Case {
    let layout = layout.or(kernel.layout(|_| Layout::Rows16)).unwrap_or(Layout::Rows16);
    let case = random_shape(kernel, layout, &mut Random::new(seed));
    Case { label: format!("{}, seed {seed}", case.label), ..case }
}

fn random_shape(kernel: Kernel, layout: Layout, random: &mut Random) -> Case {
    match kernel {
        Kernel::Embed(tensor_type) => crate::embed::random_case(tensor_type, layout, random),
        Kernel::Gather => crate::gather::random_case(random),
        Kernel::RmsNorm(activations) => crate::rms_norm::random_case(activations, random),
        Kernel::Quantize(activations) => crate::quantize::random_case(activations, random),
        Kernel::MatMul(tensor_type, activations) => {
            crate::matmul::random_case(tensor_type, layout, activations, random)
        }
        Kernel::NormMatMul(tensor_type) | Kernel::GatedMatMul(tensor_type) => {
            crate::matmul::normed::random_case(kernel, tensor_type, layout, random)
        }
        Kernel::Widen(tensor_type) => crate::widen::random_case(tensor_type, random),
        Kernel::HeadNorm => crate::head_norm::random_case(random),
        Kernel::RopeAppend(kv_type) => crate::rope_append::random_case(kv_type, random),
        Kernel::Attention(kv_type) => crate::attention::random_case(kv_type, random),
        Kernel::AttentionPartial(kv_type) => crate::attention::partial::random_case(kv_type, random),
        Kernel::AppendAttention(kv_type) => crate::attention::append::random_case(kv_type, random),
        Kernel::AttentionMerge(activations) => crate::attention::merge::random_case(activations, random),
        Kernel::SiluMul(activations) => crate::silu_mul::random_case(activations, random),
        Kernel::Add => crate::add::random_case(random),
        Kernel::Softmax => crate::softmax::random_case(random),
        Kernel::ArgMax => crate::arg_max::random_case(random),
        Kernel::TopK => crate::top_k::random_case(random),
        Kernel::Copy => crate::copy::random_case(random),
        Kernel::GatherRows => crate::gather_rows::random_case(random),
        Kernel::Unary => crate::unary::random_case(random),
        Kernel::Binary => crate::binary::random_case(random),
        Kernel::Reduce => crate::reduce::random_case(random),
        Kernel::SoftmaxAxis => crate::softmax_axis::random_case(random),
        Kernel::LayerNorm => crate::layer_norm::random_case(random),
        Kernel::Rope => crate::rope::random_case(random),
        Kernel::DecodeBlocks | Kernel::EncodeBlocks => crate::file_blocks::random_case(kernel, random),
        Kernel::Gemm(element) => crate::gemm::random_case(element, random),
        Kernel::AttentionDense(element) => crate::attention_dense::random_case(element, random),
        Kernel::Conv2d(element) => crate::conv2d::random_case(element, random),
    }
}

/// Number of work groups that exceeds the limit of some devices for one dimension of a launch.
pub(crate) const MANY: usize = 65_537;

/// Row capacity and used rows of a case for a kernel that processes rows.
#[derive(Clone, Copy)]
pub(crate) struct RowShape {
    pub capacity: usize,
    pub rows: usize,
    pub count_word: u32,
}

const fn rows(capacity: usize, rows: usize, count_word: u32) -> RowShape {
    RowShape { capacity, rows, count_word }
}

/// Shapes with one row, no row, full and partial capacities, and either count word. In some of them, the row
/// count in the parameters exceeds the capacity.
pub(crate) const ROW_SHAPES: [RowShape; 6] = [
    rows(1, 1, ROWS),
    rows(2, 2, LOGIT_ROWS),
    rows(17, 7, ROWS),
    rows(33, 33, ROWS),
    rows(4, 0, ROWS),
    rows(8, 3, LOGIT_ROWS),
];

impl RowShape {
    /// Returns a shape with a capacity of up to `most` rows. In at least half of the cases, all rows are in
    /// use.
    pub fn random(random: &mut Random, most: usize) -> Self {
        let capacity = 1 + random.below(most);
        let used = if random.below(2) == 0 { capacity } else { random.below(capacity + 1) };
        rows(capacity, used, [ROWS, LOGIT_ROWS][random.below(2)])
    }

    /// Returns a description of the shape for messages.
    pub fn label(&self, width: usize) -> String {
        format!("{} of {} rows (word {}) × {width}", self.rows, self.capacity, self.count_word)
    }

    /// Returns the header of the parameter block. If all rows are in use, the row count in the header is the
    /// capacity plus one.
    pub fn header(&self) -> [u32; 4] {
        let mut words = [99; 4];
        words[self.count_word as usize] =
            if self.rows == self.capacity { self.rows + 1 } else { self.rows } as u32;
        words
    }
}

/// Contents of a parameter block.
pub(crate) struct Params {
    pub shape: ParamsShape,
    pub tokens: Vec<u32>,
    pub positions: Vec<u32>,
    pub row_sequences: Vec<u32>,
    pub logit_rows: Vec<u32>,
    pub tables: Vec<Vec<u32>>,
}

impl Params {
    /// Creates an empty block with capacities `shape`.
    pub fn new(shape: ParamsShape) -> Self {
        let empty = Vec::new;
        Self {
            shape,
            tokens: empty(),
            positions: empty(),
            row_sequences: empty(),
            logit_rows: empty(),
            tables: vec![],
        }
    }

    /// Returns the block as words. Its row count is the length of the longest list of rows. Unused words are
    /// poisoned.
    pub fn words(&self) -> Vec<u32> {
        let mut words = vec![u32::MAX; self.shape.words()];
        let rows = self.tokens.len().max(self.positions.len()).max(self.row_sequences.len());
        words[0] = rows as u32;
        words[1] = self.logit_rows.len() as u32;
        words[2] = self.tables.len() as u32;
        words[3] = 0;
        let mut put = |at: usize, list: &[u32]| words[at..at + list.len()].copy_from_slice(list);
        put(self.shape.tokens(), &self.tokens);
        put(self.shape.positions(), &self.positions);
        put(self.shape.row_sequences(), &self.row_sequences);
        put(self.shape.logit_rows(), &self.logit_rows);
        for (i, table) in self.tables.iter().enumerate() {
            put(self.shape.tables() + i * self.shape.table_blocks as usize, table);
        }
        words
    }
}
