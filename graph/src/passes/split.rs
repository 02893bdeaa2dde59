//! Splits attention into two launches, so that a single row can occupy the whole device. The first launch
//! computes one partial result for each range of positions. The second launch merges the partial results.

use crate::op::{Heads, Node, Operator, OperatorGraph};
use ragtag_kernels::Activations;

/// Splits the positions of every attention operator into ranges. `splits` returns the number of ranges.
pub(crate) fn split_attention(graph: &mut OperatorGraph, splits: impl Fn(Heads) -> u32) {
    for merge in graph.ordered() {
        let node = graph.node(merge).clone();
        let Operator::Attention { layer, heads, scores } = node.operator else { continue };
        let splits = splits(heads);
        // The partial result of one head consists of its values and two numbers for the merge.
        let width = heads.queries * splits * (heads.dimensions + 2);
        let operator = Operator::AttentionPartial { layer, heads, scores, splits, appends: None };
        let partial = graph.add(Node { operator, width, ..node.clone() }, &graph.inputs(merge));
        graph.connect(partial, merge, 0);
        let operator = Operator::AttentionMerge { heads, splits, output: Activations::F32 };
        *graph.node_mut(merge) = Node { operator, order: (node.order.0, node.order.1 + 1), ..node };
    }
}
