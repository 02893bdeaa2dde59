//! The operator graph of a model: a petgraph graph whose nodes are operators and whose edges are tensors.
//!
//! A node has one output. The micro-batch determines the number of rows of the output.

use crate::ops::{Operator, Rows, Shape};
use petgraph::Direction;
use petgraph::stable_graph::{NodeIndex, StableDiGraph};
use petgraph::visit::EdgeRef;
use std::fmt;
use std::ops::Range;

/// A node of the operator graph.
#[derive(Clone, Debug, PartialEq)]
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

impl Node {
    /// Returns the shape of the output.
    pub fn shape(&self) -> Shape {
        Shape { rows: self.rows, width: self.width }
    }
}

/// Edge of the graph. The number says which input of the target node the edge provides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

    /// Checks what passes and the compiler rely on: each node has the inputs and the shape of its operator. Its
    /// inputs come before it in program order and are not in a later segment.
    pub(crate) fn check(&self) {
        for (index, node) in self.graph.node_indices().map(|index| (index, &self.graph[index])) {
            let edges = self.graph.edges_directed(index, Direction::Incoming);
            let mut numbers: Vec<u8> = edges.map(|e| e.weight().0).collect();
            numbers.sort_unstable();
            let lower = node.operator.lower();
            assert!(lower.inputs().contains(&&numbers[..]), "inputs {numbers:?} of {node:?}");
            let shape = self.input(index, 0).and_then(|x| lower.shape(self.graph[x].shape()));
            assert!(shape.is_none_or(|shape| shape == node.shape()), "{node:?} has not the shape {shape:?}");
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
    use crate::ops::{Add, Embed};

    /// Returns a graph in which a sum reads the outputs of an embedding in segment 1.
    fn sum(inputs: usize, segment: usize) -> OperatorGraph {
        let mut graph = OperatorGraph::default();
        let node = |operator, segment, order| Node { operator, segment, rows: Rows::Tokens, width: 8, order };
        let x = graph.add(node(Embed { table: "table".into() }.into(), 1, (1, 0)), &[]);
        graph.add(node(Add.into(), segment, (2, 0)), &vec![x; inputs]);
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
