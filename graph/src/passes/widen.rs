//! For each product with f16 activations, inserts a node that dequantizes the product's quantized weights to
//! f16. The node comes right before the product.

use crate::graph::{Node, OperatorGraph};
use crate::ops::{MatMul, Operator, Rows, WIDENED, Widen};
use crate::stack::Stack;
use ragtag_kernels::Activations;

/// Inserts a widen node before every product with f16 activations and quantized weights. `shape` returns the number of
/// rows and columns of the weights, or `None` if the product takes them as they are.
pub(crate) fn widen_weights(graph: &mut OperatorGraph, shape: impl Fn(&Stack, Rows) -> Option<(u32, u32)>) {
    for product in graph.ordered() {
        let node = graph.node(product).clone();
        let Operator::MatMul(MatMul { weights, activations: Activations::F16, .. }) = node.operator else {
            continue;
        };
        let Some((rows, width)) = shape(&weights, node.rows) else { continue };
        // This is the last position before the product, so the matrix is live for only two steps.
        let before = node.order.0.checked_sub(1).expect("the builder numbers nodes from 1");
        let order = (before, u32::MAX);
        let operator = Widen { weights, rows }.into();
        let widen = graph.add(Node { operator, width, order, ..node }, &[]);
        graph.connect(widen, product, WIDENED);
    }
}
