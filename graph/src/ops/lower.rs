//! The compiler's view of an operator: the trait that each operator implements, and the data that its methods take
//! and return.

use super::kv::{CacheUse, Heads, StateUse};
use super::weight::Weight;
use crate::program::StageBuffer;
use crate::segment::ExpertReads;
use crate::weights::Weights;
use ragtag_kernels::params::ParamsShape;
use ragtag_kernels::{Activations, Kernel, KvType, TensorType};
use std::fmt;

/// Lowering of an operator: its shape, cost, storage, and launches of kernels. The defaults fit an operator that
/// writes f32 rows of the shape of its only input.
pub(crate) trait Lower: fmt::Debug {
    /// Returns the sets of inputs that the operator accepts.
    fn inputs(&self) -> &'static [&'static [u8]] {
        &[&[0]]
    }

    /// Returns the shape of the output for a first input of shape `x`. Returns `None` if the shape follows from
    /// weights, so that only the builder knows it.
    fn shape(&self, x: Shape) -> Option<Shape> {
        Some(x)
    }

    /// Returns the form of the output.
    fn output(&self) -> Output {
        Output::Rows(Activations::F32)
    }

    /// Returns the activation type of the first input, if the operator can read several.
    fn input_type(&mut self) -> Option<&mut Activations> {
        None
    }

    /// Returns the activation type of the output, if the operator can write several.
    fn output_type(&mut self) -> Option<&mut Activations> {
        None
    }

    /// Returns the input whose bytes the output reuses. A node may lack this input.
    fn overwrites(&self) -> Option<u8> {
        None
    }

    /// Returns the weights that the operator reads.
    fn weights(&self) -> Vec<Weight> {
        Vec::new()
    }

    /// Returns whether the operator can read a matrix that is split into parts.
    fn reads_parts(&self) -> bool {
        true
    }

    /// Returns the KV cache that the operator accesses.
    fn cache(&self) -> Option<CacheUse> {
        None
    }

    /// Returns the state that the operator reads and replaces.
    fn state(&self) -> Option<StateUse> {
        None
    }

    /// Returns the cost for a micro-batch. The weights are known to exist and to have a layout.
    fn cost(&self, _work: &Work<'_>) -> Cost {
        Cost::default()
    }

    /// Returns the launches, in order.
    fn calls(&self, site: &Site) -> Vec<Call>;
}

/// Rows of a tensor: one per token of the micro-batch, or one per token that needs logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// All tokens of the micro-batch.
    Tokens,
    /// Tokens of the micro-batch that need logits.
    Logits,
}

/// Shape of a node's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Row count.
    pub rows: Rows,
    /// Elements per row.
    pub width: u32,
}

/// Form of a node's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    /// Rows of activations.
    Rows(Activations),
    /// A dequantized f16 matrix with this number of rows. A stage can split the matrix into parts.
    Matrix { rows: u32 },
}

/// Inputs of an operator's cost, besides the operator.
#[derive(Clone, Copy)]
pub(crate) struct Work<'a> {
    pub weights: &'a Weights,
    pub kv: KvType,
    /// Elements per row of the output.
    pub width: u64,
    /// Rows of the output.
    pub rows: u64,
}

impl Work<'_> {
    /// Returns a cost for each column of the output: operations per row, and bytes of weights.
    pub(super) fn columns(&self, flops: u64, read_bytes: u64) -> Cost {
        let (flops, read_bytes) = (self.rows * flops * self.width, read_bytes * self.width);
        Cost { flops, read_bytes, ..Cost::default() }
    }
}

/// Cost of an operator for a micro-batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cost {
    /// Floating-point operations.
    pub flops: u64,
    /// Floating-point operations per attended position.
    pub flops_per_position: u64,
    /// Bytes of weights that are read.
    pub read_bytes: u64,
    /// Bytes of keys and values per position of a sequence.
    pub kv_bytes_per_position: u64,
    /// The part of these bytes that values take.
    pub value_bytes_per_position: u64,
    /// Number of positions to which a row with a window attends.
    pub window: Option<u32>,
    /// Whether any row attends to all positions.
    pub attends_to_all: bool,
    /// Weights of experts, which are not part of `read_bytes`.
    pub experts: Option<ExpertReads>,
}

impl std::iter::Sum for Cost {
    fn sum<I: Iterator<Item = Self>>(costs: I) -> Self {
        costs.fold(Self::default(), |a, b| Self {
            flops: a.flops + b.flops,
            flops_per_position: a.flops_per_position + b.flops_per_position,
            read_bytes: a.read_bytes + b.read_bytes,
            kv_bytes_per_position: a.kv_bytes_per_position + b.kv_bytes_per_position,
            value_bytes_per_position: a.value_bytes_per_position + b.value_bytes_per_position,
            window: a.window.or(b.window),
            attends_to_all: a.attends_to_all || b.attends_to_all,
            experts: ExpertReads::sum(a.experts, b.experts),
        })
    }
}

/// Buffer of a binding, the offset of its first byte, and its size in bytes.
pub(crate) type Argument = (StageBuffer, u64, u64);

/// Place of a node in a program.
#[derive(Debug)]
pub(crate) struct Site {
    /// Capacities of the bucket.
    pub capacities: ParamsShape,
    /// The parameter block, with the block tables of the operator's KV cache.
    pub params: Argument,
    /// Maximum number of rows of the output.
    pub rows: u32,
    /// Word of the parameter block that holds the actual number of rows.
    pub count: u32,
    pub inputs: [Option<Tensor>; 3],
    pub output: Tensor,
    /// Parts of each of the operator's weights.
    pub weights: Vec<Vec<Part>>,
    pub cache: Option<Cache>,
    pub state: Option<State>,
}

/// Rows of a node's output.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tensor {
    pub argument: Argument,
    pub width: u32,
}

/// Rows of a weight that one binding covers. A vector is a single part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub argument: Argument,
    pub tensor_type: TensorType,
    pub first_row: u32,
    pub rows: u32,
    pub columns: u32,
}

/// KV cache of a layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cache {
    pub kv: KvType,
    /// Number of cache blocks.
    pub blocks: u32,
    pub keys: Argument,
    pub values: Argument,
    /// Whether any layer of the model has KV rings, whose block tables precede the RoPE frequencies of sequences.
    pub model_has_rings: bool,
}

/// State of a layer for all sequences.
#[derive(Clone, Copy, Debug)]
pub(crate) struct State {
    pub argument: Argument,
    /// Number of slots.
    pub slots: u32,
}

/// Launch of a kernel.
#[derive(Debug)]
pub(crate) struct Call {
    pub kernel: Kernel,
    /// Arguments, in the order of the kernel's bindings.
    pub arguments: Vec<Argument>,
    pub constants: Vec<u32>,
}

impl Site {
    /// Returns the first input.
    pub fn x(&self) -> Tensor {
        self.inputs[0].expect("a first input")
    }

    /// Returns the argument of a weight that is not split.
    pub fn weight(&self, number: usize) -> Argument {
        self.weights[number][0].argument
    }

    /// Returns the leading constants of kernels that access the KV cache: capacities of the parameter block, head
    /// counts, elements per head and number of cache blocks.
    pub fn cache_constants(&self, heads: &Heads) -> Vec<u32> {
        let heads = [heads.queries, heads.kv, heads.dimensions, self.cache().blocks];
        [self.capacities(), heads].concat()
    }

    /// Returns the capacities of the parameter block, in the order of kernels that read its lists.
    pub fn capacities(&self) -> [u32; 4] {
        let p = self.capacities;
        [p.rows, p.sequences, p.table_blocks, p.logit_rows]
    }

    /// Returns the state.
    pub fn state(&self) -> State {
        self.state.expect("a state")
    }

    /// Returns the KV cache.
    pub fn cache(&self) -> Cache {
        self.cache.expect("a KV cache")
    }

    /// Returns a launch with the first input, the weights and the output. This fits kernels that compute on all
    /// rows of a bucket.
    pub fn call(&self, kernel: Kernel, constants: Vec<u32>) -> Call {
        let weights = self.weights.iter().map(|parts| parts[0].argument);
        let arguments = self.inputs[0].map(|x| x.argument).into_iter().chain(weights);
        Call { kernel, arguments: arguments.chain([self.output.argument]).collect(), constants }
    }

    /// Returns a launch that also has the parameter block, and begins its constants with the capacity in rows
    /// and the word of the actual number. This fits kernels that compute on the rows of the micro-batch.
    pub fn row_call(&self, kernel: Kernel, constants: &[u32]) -> Call {
        let mut call = self.call(kernel, [&[self.rows, self.count], constants].concat());
        call.arguments.insert(0, self.params);
        call
    }
}

impl Tensor {
    /// Returns the byte range of `count` columns, from the first row to the last.
    pub fn columns(&self, first: u32, count: u32) -> Argument {
        let (Self { argument: (buffer, offset, bytes), width }, end) = (*self, first + count);
        assert!(end <= width, "columns {first} + {count} of {width} in {buffer:?}");
        (buffer, offset + u64::from(first) * 4, bytes - u64::from(width - count) * 4)
    }
}
