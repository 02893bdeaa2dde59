//! Splits attention into two launches, so that a single row can occupy the whole device. The first launch
//! computes one partial result for each range of positions. The second launch merges the partial results. Attention with
//! sinks is always split, because only the second launch reads sinks.

use crate::graph::{Node, OperatorGraph};
use crate::ops::{Attention, AttentionMerge, AttentionPartial, Heads, Lower, Operator};
use ragtag_kernels::Activations;
use ragtag_kernels::params::{DECODE_ROWS, ROWS};

/// Rows whose attention is split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SplitRows {
    /// All rows of the micro-batch.
    All,
    /// The decode rows. They come before rows of prompts, for which attention is not split.
    Decode,
}

/// Splits of attention in a program.
#[derive(Clone, Copy)]
pub(crate) struct Splits<'a> {
    /// Rows whose attention without sinks is split, if any.
    pub rows: Option<SplitRows>,
    /// Function that returns the number of ranges of positions for these rows.
    pub count: &'a dyn Fn(Heads, SplitRows) -> u32,
    /// Whether rows of prompts share loads where there is one split.
    pub shares: bool,
}

/// Splits the positions of attention operators into ranges.
pub(crate) fn split_attention(graph: &mut OperatorGraph, splits: Splits<'_>) {
    for merge in graph.ordered() {
        let node = graph.node(merge).clone();
        let Operator::Attention(attention) = node.operator else { continue };
        let rows = if attention.sinks.is_some() { Some(SplitRows::All) } else { splits.rows };
        let Some(rows) = rows else { continue };
        let (heads, inputs, sinks) = (attention.heads, graph.inputs(merge), attention.sinks.clone());
        let (splits, shares) = ((splits.count)(heads, rows), splits.shares);
        let count = if rows == SplitRows::All { ROWS } else { DECODE_ROWS };
        let is_shared = shares && rows == SplitRows::All && splits == 1;
        let operator =
            AttentionPartial { attention: attention.clone(), splits, count, is_shared, appends: None };
        let shape =
            operator.shape(graph.node(inputs[0]).shape()).expect("a shape that follows from the input");
        let partial = Node { operator: operator.into(), width: shape.width, ..node };
        let partial = graph.add(partial, &inputs);
        let operator = match rows {
            SplitRows::All => {
                graph.connect(partial, merge, 0);
                AttentionMerge { heads, splits, sinks, output: Activations::F32 }.into()
            }
            SplitRows::Decode => {
                graph.connect(partial, merge, 1);
                Attention { splits: Some(splits), ..attention }.into()
            }
        };
        *graph.node_mut(merge) = Node { operator, order: (node.order.0, node.order.1 + 1), ..node };
    }
}
