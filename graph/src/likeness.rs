//! Which segments are alike: the same operators, in the same order, over tensors of the same types and shapes. What has been
//! worked out for one of them holds for all, so that a model of hundreds of blocks costs little more than one of its blocks.
//!
//! This module must not know costs.

use crate::model::{Model, ModelError};
use crate::op::{Operator, OperatorGraph, Rows};
use petgraph::stable_graph::NodeIndex;
use ragtag_kernels::TensorType;

/// All of a segment but its names.
#[derive(PartialEq)]
pub(crate) struct Likeness<'a>(Vec<NodeLikeness<'a>>);

#[derive(PartialEq)]
struct NodeLikeness<'a> {
    /// Without names of tensors and the number of the layer.
    operator: Operator,
    rows: Rows,
    width: u32,
    tensors: Vec<TensorLikeness<'a>>,
    /// Where in the segment the inputs are computed; `None` is before it.
    inputs: Vec<Option<usize>>,
    /// Whether something after the segment reads it.
    leaves: bool,
}

#[derive(PartialEq)]
struct TensorLikeness<'a> {
    tensor_type: TensorType,
    shape: &'a [u64],
    /// Which of the segment's tensors it is.
    number: usize,
}

impl<'a> Likeness<'a> {
    /// That of a segment with these nodes, in program order.
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
                let info = model.tensor(name)?;
                tensors.push(TensorLikeness { tensor_type: info.tensor_type, shape: &info.shape, number });
            }
            all.push(NodeLikeness {
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
