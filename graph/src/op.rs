//! The operator graph: what a model computes, as a petgraph graph whose nodes are operators and whose edges are tensors.
//!
//! A node has one output. Its rows are counted by the micro-batch; its width is inferred when the node is added.

use crate::stack::Stack;
use petgraph::Direction;
use petgraph::stable_graph::{NodeIndex, StableDiGraph};
use petgraph::visit::EdgeRef;
use ragtag_kernels::Activations;
use serde::Serialize;
use std::fmt;

/// Which pairs of dimensions a rotary embedding turns together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RopePairing {
    /// Dimensions 2i and 2i + 1.
    Interleaved,
    /// Dimensions i and i + half.
    Halves,
}

/// An RMS norm that a product takes in.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Norm {
    /// The weight.
    pub weight: String,
    /// Added to the mean square.
    pub epsilon: f32,
}

/// What a node computes from its inputs, in order.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operator {
    /// Rows of a table, chosen by the micro-batch's token ids. No input.
    Embed {
        /// The table.
        table: String,
    },
    /// The rows of the input of which logits are wanted.
    Gather,
    /// RMS norm of the input, times a weight.
    RmsNorm {
        /// The weight.
        weight: String,
        /// Added to the mean square.
        epsilon: f32,
        /// Form of the output.
        output: Activations,
    },
    /// The input as int8 or f16 activations.
    Quantize {
        /// Form of the output.
        output: Activations,
    },
    /// Quantised weights as an f16 matrix, for one product. No input; its rows are the matrix's, whatever the micro-batch.
    Widen {
        /// The weights.
        weights: Stack,
        /// Rows of the matrix.
        rows: u32,
    },
    /// The first input times weights, into columns of the output. A second input, if there is one, is what the output's
    /// bytes held before: other columns of a joint tensor, or what the product is added to. A third stands for the weights
    /// where they are widened. With a norm it stands for that [`Operator::RmsNorm`] as well, and gated for the
    /// [`Operator::SiluMul`] behind it, of what its own output would be.
    MatMul {
        /// The weights.
        weights: Stack,
        /// Form of the first input.
        activations: Activations,
        /// The first column that it writes.
        column: u32,
        /// Whether it is added to what was there.
        accumulate: bool,
        /// The norm that its first input goes through on its way, on devices that have kernels for both.
        norm: Option<Norm>,
        /// Whether its output is SiLU of its first half of columns times the second.
        gated: bool,
    },
    /// Rotary position embedding of the input's queries, in place, and of its keys on their way into the cache of a layer,
    /// where the values go as well. The input has queries, keys and values side by side.
    RopeAppend {
        /// The layer.
        layer: u32,
        /// Which dimensions turn together.
        pairing: RopePairing,
    },
    /// Causal attention of the queries, which stand first in the input's rows, over the cache.
    Attention {
        /// The layer.
        layer: u32,
    },
    /// The same, of runs of positions: what each run's share of it is.
    AttentionPartial {
        /// The layer.
        layer: u32,
        /// Runs.
        splits: u32,
        /// Whether it does what a [`Operator::RopeAppend`] of this pairing would have done to its input.
        appends: Option<RopePairing>,
    },
    /// Brings together what an [`Operator::AttentionPartial`] left of its runs.
    AttentionMerge {
        /// Runs.
        splits: u32,
        /// Form of the output.
        output: Activations,
    },
    /// SiLU of the first half of each of the input's rows times the second.
    SiluMul {
        /// Form of the output.
        output: Activations,
    },
    /// First input plus second; the first is overwritten with the sum.
    Add,
}

impl Operator {
    /// The operator's name without its parameters.
    pub fn name(&self) -> &'static str {
        match self {
            Operator::Embed { .. } => "embed",
            Operator::Gather => "gather",
            Operator::RmsNorm { .. } => "rms-norm",
            Operator::Quantize { .. } => "quantize",
            Operator::Widen { .. } => "widen",
            Operator::MatMul { .. } => "matmul",
            Operator::RopeAppend { .. } => "rope-append",
            Operator::Attention { .. } => "attention",
            Operator::AttentionPartial { .. } => "attention-partial",
            Operator::AttentionMerge { .. } => "attention-merge",
            Operator::SiluMul { .. } => "silu-mul",
            Operator::Add => "add",
        }
    }

    /// The same without what tells one block from another: names of tensors, and the number of the layer.
    pub(crate) fn nameless(&self) -> Self {
        let mut nameless = self.clone();
        match &mut nameless {
            Operator::Embed { table: name } | Operator::RmsNorm { weight: name, .. } => name.clear(),
            Operator::MatMul { weights, norm, .. } => {
                weights.tensors.clear();
                norm.iter_mut().for_each(|norm| norm.weight.clear());
            }
            Operator::Widen { weights, .. } => weights.tensors.clear(),
            Operator::RopeAppend { layer, .. }
            | Operator::Attention { layer }
            | Operator::AttentionPartial { layer, .. } => *layer = 0,
            Operator::Gather
            | Operator::Quantize { .. }
            | Operator::AttentionMerge { .. }
            | Operator::SiluMul { .. }
            | Operator::Add => {}
        }
        nameless
    }

    /// The weight tensors that it reads, but for that of a product's norm.
    pub fn tensors(&self) -> &[String] {
        match self {
            Operator::Embed { table: name } | Operator::RmsNorm { weight: name, .. } => {
                std::slice::from_ref(name)
            }
            Operator::MatMul { weights, .. } | Operator::Widen { weights, .. } => &weights.tensors,
            _ => &[],
        }
    }
}

/// Which count of the micro-batch a tensor's rows follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rows {
    /// All tokens.
    Tokens,
    /// The tokens of which logits are wanted.
    Logits,
}

/// A node of the operator graph.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Node {
    /// What it computes.
    pub operator: Operator,
    /// The segment that it belongs to.
    pub segment: usize,
    /// Rows of its output.
    pub rows: Rows,
    /// Values in a row of its output.
    pub width: u32,
    /// Place in program order; nodes that passes insert come right after what they follow.
    pub order: (u32, u32),
}

/// An edge: which input of its target it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Input(pub u8);

/// The graph and the reading that everybody needs of it.
#[derive(Clone, Debug, Default)]
pub struct OperatorGraph {
    graph: StableDiGraph<Node, Input>,
}

impl OperatorGraph {
    /// Adds a node behind its inputs.
    pub(crate) fn add(&mut self, node: Node, inputs: &[NodeIndex]) -> NodeIndex {
        let index = self.graph.add_node(node);
        for (i, &input) in inputs.iter().enumerate() {
            self.graph.add_edge(input, index, Input(i as u8));
        }
        index
    }

    /// A node.
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

    /// Gives every node the segment that `segment` makes of its own.
    pub(crate) fn renumber(&mut self, segment: impl Fn(usize) -> usize) {
        self.graph.node_weights_mut().for_each(|node| node.segment = segment(node.segment));
    }

    /// Makes `source` input number `input` of `target`, in place of what was.
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

    /// The inputs of a node, in order.
    pub fn inputs(&self, index: NodeIndex) -> Vec<NodeIndex> {
        let mut inputs: Vec<_> = self
            .graph
            .edges_directed(index, Direction::Incoming)
            .map(|e| (e.weight().0, e.source()))
            .collect();
        inputs.sort_unstable();
        inputs.into_iter().map(|(_, source)| source).collect()
    }

    /// The input of a node that has this number, if there is one.
    pub fn input(&self, index: NodeIndex, number: u8) -> Option<NodeIndex> {
        let mut edges = self.graph.edges_directed(index, Direction::Incoming);
        edges.find(|e| e.weight().0 == number).map(|e| e.source())
    }

    /// Who reads the output of a node, and as which input; in program order.
    pub fn consumers(&self, index: NodeIndex) -> Vec<(NodeIndex, u8)> {
        let mut consumers: Vec<_> = self
            .graph
            .edges_directed(index, Direction::Outgoing)
            .map(|e| (e.target(), e.weight().0))
            .collect();
        consumers.sort_unstable_by_key(|&(target, input)| (self.graph[target].order, input));
        consumers
    }

    /// All nodes in program order, which is a topological order.
    pub fn ordered(&self) -> Vec<NodeIndex> {
        let mut nodes: Vec<_> = self.graph.node_indices().collect();
        nodes.sort_unstable_by_key(|&n| self.graph[n].order);
        debug_assert!(
            nodes.iter().all(|&n| self.inputs(n).iter().all(|&i| self.graph[i].order < self.graph[n].order))
        );
        nodes
    }

    /// The nodes of each of `count` segments, in program order.
    pub(crate) fn by_segment(&self, count: usize) -> Vec<Vec<NodeIndex>> {
        let mut segments = vec![Vec::new(); count];
        for node in self.ordered() {
            segments[self.graph[node].segment].push(node);
        }
        segments
    }

    /// The graph in Graphviz's language, one cluster a segment.
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
