//! Signature of a segment: the sequence of its operators, along with the types and shapes of their tensors.
//! Segments with equal signatures have equal costs, so the costs are computed only once per signature.

use crate::error::ModelError;
use crate::model::Model;
use crate::op::{Operator, OperatorGraph, Rows};
use petgraph::stable_graph::NodeIndex;
use ragtag_kernels::TensorType;

/// Operators of a segment, along with the types and shapes of their tensors, but without names.
#[derive(PartialEq)]
pub(crate) struct SegmentSignature<'a>(Vec<NodeSignature<'a>>);

#[derive(PartialEq)]
struct NodeSignature<'a> {
    /// Operator without tensor names and with layer number 0.
    operator: Operator,
    rows: Rows,
    width: u32,
    tensors: Vec<TensorSignature<'a>>,
    /// Position of each input node within the segment, or `None` for an input from an earlier segment.
    inputs: Vec<Option<usize>>,
    /// Whether a node of another segment reads the output.
    leaves: bool,
}

#[derive(PartialEq)]
struct TensorSignature<'a> {
    tensor_type: TensorType,
    shape: &'a [u64],
    /// Index of the tensor among the tensors of the segment.
    number: usize,
}

impl<'a> SegmentSignature<'a> {
    /// Computes the signature of the segment whose nodes are `nodes`, in program order.
    pub(crate) fn new(
        model: &'a Model,
        graph: &'a OperatorGraph,
        nodes: &[NodeIndex],
    ) -> Result<Self, ModelError> {
        let mut names: Vec<&str> = Vec::new();
        let place = |node: NodeIndex| nodes.iter().position(|&n| n == node);
        let mut all = Vec::new();
        for &index in nodes {
            let node = graph.node(index);
            let mut tensors = Vec::new();
            for name in node.operator.tensors() {
                let number = names.iter().position(|known| known == name).unwrap_or(names.len());
                if number == names.len() {
                    names.push(name);
                }
                let info = model.weights().required(name)?;
                tensors.push(TensorSignature { tensor_type: info.tensor_type, shape: &info.shape, number });
            }
            all.push(NodeSignature {
                operator: node.operator.nameless(),
                rows: node.rows,
                width: node.width,
                tensors,
                inputs: graph.inputs(index).into_iter().map(place).collect(),
                leaves: graph.consumers(index).into_iter().any(|(reader, _)| place(reader).is_none()),
            });
        }
        Ok(Self(all))
    }
}
