//! Dequantizes weights that meet f16 activations to f16, right before their product.

use crate::op::{Node, Operator, OperatorGraph};
use crate::stack::Stack;
use ragtag_kernels::Activations;

/// Input of a product that stands for its dequantized weights.
pub(crate) const WIDENED: u8 = 2;

/// Inserts a widen node before every product with f16 activations and quantised weights. For these weights
/// `shape` returns rows and columns.
pub(crate) fn widen_weights(graph: &mut OperatorGraph, shape: impl Fn(&Stack) -> Option<(u32, u32)>) {
    for product in graph.ordered() {
        let node = graph.node(product).clone();
        let Operator::MatMul { weights, activations: Activations::F16, .. } = node.operator else { continue };
        let Some((rows, width)) = shape(&weights) else { continue };
        // The last place before the product, so that the matrix is live for two steps only.
        let order = (node.order.0.saturating_sub(1), u32::MAX);
        let operator = Operator::Widen { weights, rows };
        let widen = graph.add(Node { operator, width, order, ..node }, &[]);
        graph.connect(widen, product, WIDENED);
    }
}
