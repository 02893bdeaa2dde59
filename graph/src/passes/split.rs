//! Splits attention into two launches, over splits of the positions and then over the splits, so that one row
//! fills a device.

use crate::op::{Node, Operator, OperatorGraph};
use ragtag_kernels::Activations;

/// Splits every attention, with heads of `head_dimensions` values, into `splits` parts.
pub(crate) fn split_attention(graph: &mut OperatorGraph, head_dimensions: u32, splits: u32) {
    for merge in graph.ordered() {
        let node = graph.node(merge).clone();
        let Operator::Attention { layer } = node.operator else { continue };
        // For each split of each head: its values, and two numbers by which the splits are combined.
        let width = node.width / head_dimensions * splits * (head_dimensions + 2);
        let operator = Operator::AttentionPartial { layer, splits, appends: None };
        let partial = graph.add(Node { operator, width, ..node.clone() }, &graph.inputs(merge));
        graph.connect(partial, merge, 0);
        let operator = Operator::AttentionMerge { splits, output: Activations::F32 };
        *graph.node_mut(merge) = Node { operator, order: (node.order.0, node.order.1 + 1), ..node };
    }
}
