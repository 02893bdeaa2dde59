//! Fuses `x + matmul(y)` into one product that adds its result to `x` in place. This saves one pass over the
//! rows.

use crate::graph::OperatorGraph;
use crate::ops::{MatMul, Operator};

/// Fuses every residual addition whose second input is a product that no other node reads.
pub(crate) fn fuse_residuals(graph: &mut OperatorGraph) {
    for add in graph.ordered() {
        let Operator::Add(_) = graph.node(add).operator else { continue };
        let [residual, product] = graph.inputs(add)[..] else { continue };
        let alone = graph.consumers(product).len() == 1 && graph.inputs(product).len() == 1;
        let Operator::MatMul(MatMul { accumulate, .. }) = &mut graph.node_mut(product).operator else {
            continue;
        };
        if !alone {
            continue;
        }
        *accumulate = true;
        for (consumer, input) in graph.consumers(add) {
            graph.connect(product, consumer, input);
        }
        graph.connect(residual, product, 1);
        graph.remove(add);
    }
}
