//! The operator graph: what a model computes, as a petgraph graph whose nodes are operators and whose edges are tensors.
//!
//! A node has one output. Its rows are counted by the micro-batch; its width is inferred when the node is added.

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
    /// The input as int8 activations.
    Quantize,
    /// The first input times a weight; a second input, if there is one, is added (and overwritten with the sum).
    MatMul {
        /// The weight, `[columns, rows]` in GGUF order.
        weight: String,
        /// Form of the first input.
        activations: Activations,
    },
    /// Rotary position embedding.
    Rope {
        /// Heads in a row.
        heads: u32,
        /// Which dimensions turn together.
        pairing: RopePairing,
    },
    /// Appends keys (first input) and values (second) to the cache of a layer; the output stands for the cache.
    KvAppend {
        /// The layer.
        layer: u32,
    },
    /// Causal attention of queries (first input) over the cache (second input).
    Attention {
        /// The layer.
        layer: u32,
    },
    /// SiLU of the first input times the second.
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
            Operator::Quantize => "quantize",
            Operator::MatMul { .. } => "matmul",
            Operator::Rope { .. } => "rope",
            Operator::KvAppend { .. } => "kv-append",
            Operator::Attention { .. } => "attention",
            Operator::SiluMul { .. } => "silu-mul",
            Operator::Add => "add",
        }
    }

    /// The weight tensor that it reads.
    pub fn tensor(&self) -> Option<&str> {
        match self {
            Operator::Embed { table: name }
            | Operator::RmsNorm { weight: name, .. }
            | Operator::MatMul { weight: name, .. } => Some(name),
            _ => None,
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
    /// Values in a row of its output; 0 for the cache.
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
                let label = match node.operator.tensor() {
                    Some(tensor) => format!("{}\n{tensor}", node.operator.name()),
                    None => node.operator.name().to_string(),
                };
                let _ = writeln!(out, "    n{} [label={label:?}];", n.index());
            }
            out.push_str("  }\n");
        }
        for &n in &nodes {
            for (target, _) in self.consumers(n) {
                let node = &self.graph[n];
                let label = if node.width == 0 { "cache".into() } else { node.width.to_string() };
                let _ = writeln!(out, "  n{} -> n{} [label=\"{label}\"];", n.index(), target.index());
            }
        }
        out.push_str("}\n");
        out
    }
}
