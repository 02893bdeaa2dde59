//! Splits attention into two launches, so that a single row can occupy the whole device. The first launch
//! computes one partial result for each range of positions. The second launch merges the partial results.

use crate::graph::{Node, OperatorGraph};
use crate::ops::{AttentionMerge, AttentionPartial, Heads, Lower, Operator};
use ragtag_kernels::Activations;

/// Splits the positions of every attention operator into ranges. `splits` returns the number of ranges.
pub(crate) fn split_attention(graph: &mut OperatorGraph, splits: impl Fn(Heads) -> u32) {
    for merge in graph.ordered() {
        let node = graph.node(merge).clone();
        let Operator::Attention(attention) = node.operator else { continue };
        let (heads, inputs) = (attention.heads, graph.inputs(merge));
        let splits = splits(heads);
        let operator = AttentionPartial { attention, splits, appends: None };
        let shape =
            operator.shape(graph.node(inputs[0]).shape()).expect("a shape that follows from the input");
        let partial = Node { operator: operator.into(), width: shape.width, ..node };
        let partial = graph.add(partial, &inputs);
        graph.connect(partial, merge, 0);
        let operator = AttentionMerge { heads, splits, output: Activations::F32 }.into();
        *graph.node_mut(merge) = Node { operator, order: (node.order.0, node.order.1 + 1), ..node };
    }
}
