//! The operator graph of a model: a petgraph graph whose nodes are operators and whose edges are tensors.
//!
//! A node has one output. The micro-batch determines the number of rows of the output. The builder infers the
//! width of the output when it adds the node.

use crate::arch::rope::Rope;
use crate::stack::Stack;
use petgraph::Direction;
use petgraph::stable_graph::{NodeIndex, StableDiGraph};
use petgraph::visit::EdgeRef;
use ragtag_kernels::Activations;
use ragtag_kernels::head_norm::Form;
use ragtag_kernels::silu_mul::Gate;
use ragtag_kernels::unary::Function;
use serde::Serialize;
use std::fmt;
use std::ops::Range;

/// Head counts and head size of an attention operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Heads {
    /// Number of query heads.
    pub queries: u32,
    /// Number of key heads, which is also the number of value heads.
    pub kv: u32,
    /// Values per head.
    pub dimensions: u32,
}

impl Heads {
    /// Returns the number of elements in one row of queries.
    pub(crate) fn query_width(&self) -> u32 {
        self.queries * self.dimensions
    }

    /// Returns the number of elements in one row of keys. A row of values has the same length.
    pub(crate) fn kv_width(&self) -> u32 {
        self.kv * self.dimensions
    }
}

/// Change of a norm's weights: each weight w becomes scale · (w + offset).
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Affine {
    /// Factor of the sum.
    pub scale: f32,
    /// Number that is added to the weight.
    pub offset: f32,
}

impl Affine {
    /// No change.
    pub const IDENTITY: Self = Self { scale: 1.0, offset: 0.0 };

    /// Returns the changed weight.
    pub(crate) fn of(self, weight: f32) -> f32 {
        self.scale * (weight + self.offset)
    }
}

/// Rules for the scores of an attention operator.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Scores {
    /// Factor by which the scores are multiplied.
    pub scale: f32,
    /// Number of positions to which a token attends, including its own. `None` stands for all positions.
    pub window: Option<u32>,
    /// Cap of the multiplied scores: a score s becomes cap · tanh(s / cap).
    pub cap: Option<f32>,
}

/// An RMS norm that is fused into a matrix product.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Norm {
    /// Name of the norm's weight tensor.
    pub weight: String,
    /// Constant that is added to the mean square.
    pub epsilon: f32,
}

/// Operation of a node on its inputs.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operator {
    /// Embedding rows, selected from a table by the token ids of the micro-batch. The operator has no input, unless
    /// the rows of a table are looked up before.
    Embed {
        /// Name of the embedding tensor.
        table: String,
    },
    /// Rows of an embedding table whose length is not a multiple of 32, with unused rows before them. The embedding
    /// then has this input. The operator has no input.
    Lookup {
        /// Name of the embedding tensor.
        table: String,
    },
    /// Rows of the input that need logits.
    Gather,
    /// RMS norm of the input, multiplied by a weight.
    RmsNorm {
        /// Name of the norm's weight tensor.
        weight: String,
        /// Constant that is added to the mean square.
        epsilon: f32,
        /// Change of the weights.
        affine: Affine,
        /// Type of the output.
        output: Activations,
    },
    /// Layer norm of the input, multiplied by a weight, plus a bias.
    LayerNorm {
        /// Name of the tensor of the weight, and of the bias if there is one.
        weights: Vec<String>,
        /// Constant that is added to the variance.
        epsilon: f32,
        /// Change of the weights. The biases remain as they are.
        affine: Affine,
    },
    /// Product of all values and a number, or a number for each run of columns.
    Scale {
        /// The number and the length of each run, which together are all columns.
        factors: Vec<(f32, u32)>,
    },
    /// A function of each value.
    Unary {
        /// The function.
        function: Function,
    },
    /// Conversion of the input to int8 or f16 activations.
    Quantize {
        /// Type of the output.
        output: Activations,
    },
    /// Quantized weights, dequantized to an f16 matrix for one product. The operator has no input. The number
    /// of rows is that of the weights, not of the micro-batch.
    Widen {
        /// Weights to dequantize.
        weights: Stack,
        /// Rows of the dequantized matrix.
        rows: u32,
    },
    /// Product of the first input and the weights, written to columns of the output.
    ///
    /// The second input, if any, provides the previous contents of the output: columns that other products
    /// wrote, or values to which this product is added. The third input, if any, is the dequantized weights.
    /// If `norm` is set, the product first applies that RMS norm to its input. If `gated` is set, it also
    /// applies [`Operator::SiluMul`] with SiLU to its result.
    MatMul {
        /// The weights.
        weights: Stack,
        /// Type of the first input.
        activations: Activations,
        /// First column that the product writes.
        column: u32,
        /// Whether the product is added to the previous contents.
        accumulate: bool,
        /// RMS norm of the first input, if the device has kernels that fuse the norm into the product.
        norm: Option<Norm>,
        /// Whether the output is SiLU of the first half of the product's columns, multiplied by the second
        /// half.
        gated: bool,
    },
    /// Bias vectors, concatenated in every row of the output. The products that share this output then add
    /// their results to it. The operator has no input.
    Bias {
        /// Names of the bias tensors, in the order of their columns.
        weights: Vec<String>,
    },
    /// Norm of each query head and each key head, multiplied by weights. Overwrites the input, which holds
    /// queries, keys and values side by side.
    HeadNorm {
        /// Heads of the input.
        heads: Heads,
        /// Names of the weight tensors for queries and for keys, in this order.
        weights: [String; 2],
        /// Constant that is added to the mean square, or to the variance.
        epsilon: f32,
        /// Number that is added to the weights.
        offset: f32,
        /// Form of the norm.
        form: Form,
    },
    /// Rotates the input's queries in place, and appends the rotated keys and the values to the KV cache of a
    /// layer. The input holds queries, keys and values side by side.
    RopeAppend {
        /// Layer that owns the cache.
        layer: u32,
        /// Heads of the input.
        heads: Heads,
        /// Parameters of the rotation.
        rope: Rope,
    },
    /// Causal attention over the KV cache. The first columns of each input row are the queries.
    Attention {
        /// Layer that owns the cache.
        layer: u32,
        /// Heads of the input.
        heads: Heads,
        /// Rules for the scores.
        scores: Scores,
    },
    /// First step of split attention. Computes one partial result for each split of the cached positions.
    AttentionPartial {
        /// Layer that owns the cache.
        layer: u32,
        /// Heads of the input.
        heads: Heads,
        /// Rules for the scores.
        scores: Scores,
        /// Number of splits.
        splits: u32,
        /// Parameters of the [`Operator::RopeAppend`] that is fused into this operator, if any.
        appends: Option<Rope>,
    },
    /// Second step of split attention. Combines the partial results of an [`Operator::AttentionPartial`].
    AttentionMerge {
        /// Heads of the attention.
        heads: Heads,
        /// Number of splits.
        splits: u32,
        /// Type of the output.
        output: Activations,
    },
    /// A function of the first half of each input row, multiplied by the second half of the row.
    SiluMul {
        /// The function.
        function: Gate,
        /// Type of the output.
        output: Activations,
    },
    /// Sum of the two inputs, which overwrites the first input.
    Add,
}

impl Operator {
    /// Returns the name of the operation, without parameters.
    pub fn name(&self) -> &'static str {
        match self {
            Operator::Embed { .. } => "embed",
            Operator::Lookup { .. } => "lookup",
            Operator::Gather => "gather",
            Operator::RmsNorm { .. } => "rms-norm",
            Operator::Quantize { .. } => "quantize",
            Operator::Widen { .. } => "widen",
            Operator::MatMul { .. } => "matmul",
            Operator::Bias { .. } => "bias",
            Operator::HeadNorm { .. } => "head-norm",
            Operator::RopeAppend { .. } => "rope-append",
            Operator::Attention { .. } => "attention",
            Operator::AttentionPartial { .. } => "attention-partial",
            Operator::AttentionMerge { .. } => "attention-merge",
            Operator::SiluMul { .. } => "silu-mul",
            Operator::Add => "add",
            Operator::LayerNorm { .. } => "layer-norm",
            Operator::Scale { .. } => "scale",
            Operator::Unary { .. } => "unary",
        }
    }

    /// Returns the names of the weight tensors that the operator reads, except the weight of a fused norm.
    pub fn tensors(&self) -> &[String] {
        match self {
            Operator::Embed { table: name }
            | Operator::Lookup { table: name }
            | Operator::RmsNorm { weight: name, .. } => std::slice::from_ref(name),
            Operator::MatMul { weights, .. } | Operator::Widen { weights, .. } => &weights.tensors,
            Operator::Bias { weights } | Operator::LayerNorm { weights, .. } => weights,
            Operator::HeadNorm { weights, .. } => weights,
            _ => &[],
        }
    }
}

/// Rows of a tensor: one per token of the micro-batch, or one per token that needs logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rows {
    /// All tokens of the micro-batch.
    Tokens,
    /// Tokens of the micro-batch that need logits.
    Logits,
}

/// A node of the operator graph.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Node {
    /// Operation that the node performs.
    pub operator: Operator,
    /// Segment that the node belongs to.
    pub segment: usize,
    /// Row count of the output.
    pub rows: Rows,
    /// Elements per row of the output.
    pub width: u32,
    /// Position in program order. A node that a pass inserts has the same first number as the preceding node.
    pub order: (u32, u32),
}

/// Edge of the graph. The number says which input of the target node the edge provides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Input(pub u8);

/// Graph of a model's operators.
#[derive(Clone, Debug, Default)]
pub struct OperatorGraph {
    graph: StableDiGraph<Node, Input>,
}

impl OperatorGraph {
    /// Adds a node and connects its inputs, which must already be in the graph. Returns the node's index.
    pub(crate) fn add(&mut self, node: Node, inputs: &[NodeIndex]) -> NodeIndex {
        let index = self.graph.add_node(node);
        for (i, &input) in inputs.iter().enumerate() {
            self.graph.add_edge(input, index, Input(i as u8));
        }
        index
    }

    /// Returns a node.
    pub fn node(&self, index: NodeIndex) -> &Node {
        &self.graph[index]
    }

    pub(crate) fn node_mut(&mut self, index: NodeIndex) -> &mut Node {
        &mut self.graph[index]
    }

    /// Removes a node and its edges.
    pub(crate) fn remove(&mut self, index: NodeIndex) {
        self.graph.remove_node(index);
    }

    /// Replaces the segment number of every node with the result of `segment` for that number.
    pub(crate) fn renumber(&mut self, segment: impl Fn(usize) -> usize) {
        self.graph.node_weights_mut().for_each(|node| node.segment = segment(node.segment));
    }

    /// Replaces input `input` of `target` with the output of `source`.
    pub(crate) fn connect(&mut self, source: NodeIndex, target: NodeIndex, input: u8) {
        let old = self
            .graph
            .edges_directed(target, Direction::Incoming)
            .find(|e| e.weight().0 == input)
            .map(|e| e.id());
        if let Some(old) = old {
            self.graph.remove_edge(old);
        }
        self.graph.add_edge(source, target, Input(input));
    }

    /// Returns the nodes that provide the inputs of a node, in the order of the inputs.
    pub fn inputs(&self, index: NodeIndex) -> Vec<NodeIndex> {
        let mut inputs: Vec<_> = self
            .graph
            .edges_directed(index, Direction::Incoming)
            .map(|e| (e.weight().0, e.source()))
            .collect();
        inputs.sort_unstable();
        inputs.into_iter().map(|(_, source)| source).collect()
    }

    /// Returns the node that provides input `number` of a node, or `None` if there is no such input.
    pub fn input(&self, index: NodeIndex, number: u8) -> Option<NodeIndex> {
        let mut edges = self.graph.edges_directed(index, Direction::Incoming);
        edges.find(|e| e.weight().0 == number).map(|e| e.source())
    }

    /// Returns the nodes that read the output of a node, in program order. Each node is paired with the index
    /// of the input that reads the output.
    pub fn consumers(&self, index: NodeIndex) -> Vec<(NodeIndex, u8)> {
        let mut consumers: Vec<_> = self
            .graph
            .edges_directed(index, Direction::Outgoing)
            .map(|e| (e.target(), e.weight().0))
            .collect();
        consumers.sort_unstable_by_key(|&(target, input)| (self.graph[target].order, input));
        consumers
    }

    /// Returns all nodes in program order, which is a topological order.
    pub fn ordered(&self) -> Vec<NodeIndex> {
        let mut nodes: Vec<_> = self.graph.node_indices().collect();
        nodes.sort_unstable_by_key(|&n| self.graph[n].order);
        nodes
    }

    /// Checks what passes and the compiler rely on: each node has the inputs of its operator, which come before
    /// it in program order and are not in a later segment.
    pub(crate) fn check(&self) {
        for (index, node) in self.graph.node_indices().map(|index| (index, &self.graph[index])) {
            let edges = self.graph.edges_directed(index, Direction::Incoming);
            let mut numbers: Vec<u8> = edges.map(|e| e.weight().0).collect();
            numbers.sort_unstable();
            let is_complete = match &node.operator {
                Operator::Embed { .. } => matches!(numbers[..], [] | [0]),
                Operator::Lookup { .. } | Operator::Widen { .. } | Operator::Bias { .. } => {
                    numbers.is_empty()
                }
                Operator::Add => numbers == [0, 1],
                Operator::MatMul { accumulate: true, .. } => matches!(numbers[..], [0, 1] | [0, 1, 2]),
                Operator::MatMul { .. } => matches!(numbers[..], [0] | [0, 1] | [0, 2] | [0, 1, 2]),
                _ => numbers == [0],
            };
            assert!(is_complete, "inputs {numbers:?} of {node:?}");
            for input in self.inputs(index).into_iter().map(|input| &self.graph[input]) {
                let is_before = input.order < node.order && input.segment <= node.segment;
                assert!(is_before, "{node:?} reads a later node: {input:?}");
            }
        }
    }

    /// Returns the nodes of `segments` in program order.
    pub(crate) fn within(&self, segments: &Range<usize>) -> Vec<NodeIndex> {
        let nodes = self.ordered().into_iter();
        nodes.filter(|n| segments.contains(&self.graph[*n].segment)).collect()
    }

    /// Returns the nodes of each segment, in program order, for `count` segments.
    pub(crate) fn by_segment(&self, count: usize) -> Vec<Vec<NodeIndex>> {
        let mut segments = vec![Vec::new(); count];
        for node in self.ordered() {
            segments[self.graph[node].segment].push(node);
        }
        segments
    }

    /// Returns the graph in the DOT language of Graphviz, with one cluster per segment.
    pub fn dot(&self, segment_names: &[String]) -> String {
        use fmt::Write;
        let mut out =
            String::from("digraph model {\n  rankdir=TB;\n  node [shape=box, fontname=\"monospace\"];\n");
        let nodes = self.ordered();
        for (segment, name) in segment_names.iter().enumerate() {
            // Writing to a String cannot fail.
            let _ = writeln!(out, "  subgraph cluster_{segment} {{\n    label={name:?};");
            for &n in nodes.iter().filter(|&&n| self.graph[n].segment == segment) {
                let node = &self.graph[n];
                let mut label = node.operator.name().to_string();
                node.operator.tensors().iter().for_each(|tensor| label += &format!("\n{tensor}"));
                let _ = writeln!(out, "    n{} [label={label:?}];", n.index());
            }
            out.push_str("  }\n");
        }
        for &n in &nodes {
            for (target, _) in self.consumers(n) {
                let width = self.graph[n].width;
                let _ = writeln!(out, "  n{} -> n{} [label=\"{width}\"];", n.index(), target.index());
            }
        }
        out.push_str("}\n");
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a graph in which a sum reads the outputs of an embedding in segment 1.
    fn sum(inputs: usize, segment: usize) -> OperatorGraph {
        let mut graph = OperatorGraph::default();
        let node = |operator, segment, order| Node { operator, segment, rows: Rows::Tokens, width: 8, order };
        let x = graph.add(node(Operator::Embed { table: "table".into() }, 1, (1, 0)), &[]);
        graph.add(node(Operator::Add, segment, (2, 0)), &vec![x; inputs]);
        graph
    }

    #[test]
    fn a_sum_has_two_inputs() {
        sum(2, 1).check();
    }

    #[test]
    #[should_panic(expected = "inputs [0]")]
    fn rejects_a_missing_input() {
        sum(1, 1).check();
    }

    #[test]
    #[should_panic(expected = "reads a later node")]
    fn rejects_an_input_from_a_later_segment() {
        sum(2, 0).check();
    }
}
