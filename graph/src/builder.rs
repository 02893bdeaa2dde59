//! Builds operator graphs: each call adds a node, infers the shape of its output and holds the weights to it.

use crate::model::ModelError;
use crate::op::{Node, Operator, OperatorGraph, RopePairing, Rows};
use crate::weights::{TensorInfo, Weights};
use petgraph::stable_graph::NodeIndex;
use ragtag_kernels::Activations;
use std::collections::BTreeSet;

/// A graph under construction.
pub(crate) struct Builder<'a> {
    weights: &'a Weights,
    graph: OperatorGraph,
    used: BTreeSet<String>,
    segment: usize,
    order: u32,
}

impl<'a> Builder<'a> {
    pub(crate) fn new(weights: &'a Weights) -> Self {
        Self { weights, graph: OperatorGraph::default(), used: BTreeSet::new(), segment: 0, order: 0 }
    }

    /// Nodes from here on belong to the next segment.
    pub(crate) fn next_segment(&mut self) {
        self.segment += 1;
    }

    pub(crate) fn has(&self, tensor: &str) -> bool {
        self.weights.tensor(tensor).is_some()
    }

    /// The tensor, held to the shape `[columns, rows]`, or `[columns]` for `rows` = 0.
    pub(crate) fn tensor(
        &mut self,
        name: &str,
        columns: u32,
        rows: u32,
    ) -> Result<&'a TensorInfo, ModelError> {
        let info =
            self.weights.tensor(name).ok_or_else(|| ModelError::MissingTensor { name: name.into() })?;
        let mut expected = vec![u64::from(columns)];
        expected.extend((rows > 0).then_some(u64::from(rows)));
        if info.shape != expected {
            return Err(ModelError::Shape { name: name.into(), expected, found: info.shape.clone() });
        }
        self.used.insert(name.into());
        Ok(info)
    }

    fn add(&mut self, operator: Operator, rows: Rows, width: u32, inputs: &[NodeIndex]) -> NodeIndex {
        self.order += 1;
        let node = Node { operator, segment: self.segment, rows, width, order: (self.order, 0) };
        self.graph.add(node, inputs)
    }

    fn like(&mut self, operator: Operator, inputs: &[NodeIndex]) -> NodeIndex {
        let (rows, width) = (self.graph.node(inputs[0]).rows, self.graph.node(inputs[0]).width);
        self.add(operator, rows, width, inputs)
    }

    pub(crate) fn embed(
        &mut self,
        table: &str,
        width: u32,
        vocabulary: u32,
    ) -> Result<NodeIndex, ModelError> {
        self.tensor(table, width, vocabulary)?;
        Ok(self.add(Operator::Embed { table: table.into() }, Rows::Tokens, width, &[]))
    }

    pub(crate) fn gather(&mut self, x: NodeIndex) -> NodeIndex {
        let width = self.graph.node(x).width;
        self.add(Operator::Gather, Rows::Logits, width, &[x])
    }

    pub(crate) fn rms_norm(
        &mut self,
        x: NodeIndex,
        weight: &str,
        epsilon: f32,
    ) -> Result<NodeIndex, ModelError> {
        self.tensor(weight, self.graph.node(x).width, 0)?;
        let operator = Operator::RmsNorm { weight: weight.into(), epsilon, output: Activations::F32 };
        Ok(self.like(operator, &[x]))
    }

    pub(crate) fn matmul(&mut self, x: NodeIndex, weight: &str, width: u32) -> Result<NodeIndex, ModelError> {
        let (rows, columns) = (self.graph.node(x).rows, self.graph.node(x).width);
        self.tensor(weight, columns, width)?;
        let operator = Operator::MatMul { weight: weight.into(), activations: Activations::F32 };
        Ok(self.add(operator, rows, width, &[x]))
    }

    pub(crate) fn rope(&mut self, x: NodeIndex, heads: u32, pairing: RopePairing) -> NodeIndex {
        self.like(Operator::Rope { heads, pairing }, &[x])
    }

    /// Appends `k` and `v` to the layer's cache and attends to it with `q`.
    pub(crate) fn attention(&mut self, q: NodeIndex, k: NodeIndex, v: NodeIndex, layer: u32) -> NodeIndex {
        let cache = self.add(Operator::KvAppend { layer }, Rows::Tokens, 0, &[k, v]);
        self.like(Operator::Attention { layer }, &[q, cache])
    }

    pub(crate) fn silu_mul(&mut self, gate: NodeIndex, up: NodeIndex) -> NodeIndex {
        self.like(Operator::SiluMul { output: Activations::F32 }, &[gate, up])
    }

    pub(crate) fn add_residual(&mut self, x: NodeIndex, y: NodeIndex) -> NodeIndex {
        self.like(Operator::Add, &[x, y])
    }

    /// The graph, if every tensor of the file has been used: one that the architecture does not know would be
    /// silently left out of the model.
    pub(crate) fn finish(self) -> Result<OperatorGraph, ModelError> {
        match self.weights.tensors().iter().find(|t| !self.used.contains(&t.name)) {
            Some(unused) => Err(ModelError::UnknownTensor { name: unused.name.clone() }),
            None => Ok(self.graph),
        }
    }
}
