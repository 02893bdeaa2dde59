//! Fuses RMS norms into the products that read them, and SiLU gates into the products before them, if the
//! device has fused kernels. Fusion saves launches, whose latency dominates with few rows. Fused operators
//! are always in the same segment.

use crate::graph::OperatorGraph;
use crate::ops::{MatMul, Operator, RmsNorm, Rows, SiluMul};
use crate::stack::Stack;
use petgraph::stable_graph::NodeIndex;
use ragtag_kernels::Activations;
use ragtag_kernels::silu_mul::Gate;

/// Fuses every norm that is read only by products with f32 activations. `fuses` must accept the weights and
/// the row count of each of these products.
pub(crate) fn fuse_norms(graph: &mut OperatorGraph, fuses: impl Fn(&Stack, Rows) -> bool) {
    for index in graph.ordered() {
        let Operator::RmsNorm(fused @ RmsNorm { output: Activations::F32, .. }) =
            graph.node(index).operator.clone()
        else {
            continue;
        };
        let takes = |&(reader, input): &(NodeIndex, u8)| {
            let node = graph.node(reader);
            let product = matches!(
                &node.operator,
                Operator::MatMul(MatMul { weights, activations: Activations::F32, .. })
                    if fuses(weights, node.rows)
            );
            product && input == 0
        };
        let readers = graph.consumers(index);
        if readers.is_empty() || !readers.iter().all(takes) {
            continue;
        }
        let source = graph.inputs(index)[0];
        for (reader, _) in readers {
            if let Operator::MatMul(MatMul { norm, .. }) = &mut graph.node_mut(reader).operator {
                *norm = Some(fused.clone());
            }
            graph.connect(source, reader, 0);
        }
        graph.remove(index);
    }
}

/// Fuses every gate that is the only reader of a product with a fused norm. `fuses` must accept the weights
/// and the row count of the product.
pub(crate) fn fuse_gates(graph: &mut OperatorGraph, fuses: impl Fn(&Stack, Rows) -> bool) {
    for gate in graph.ordered() {
        let node = graph.node(gate).clone();
        let (Operator::SiluMul(SiluMul { function: Gate::Silu, output: Activations::F32 }), [product]) =
            (&node.operator, &graph.inputs(gate)[..])
        else {
            continue;
        };
        let product = *product;
        let alone = graph.consumers(product).len() == 1 && graph.inputs(product).len() == 1;
        let Operator::MatMul(MatMul { weights, norm: Some(_), gated, .. }) =
            &mut graph.node_mut(product).operator
        else {
            continue;
        };
        if !(alone && fuses(weights, node.rows)) {
            continue;
        }
        *gated = true;
        graph.node_mut(product).width = node.width;
        for (reader, input) in graph.consumers(gate) {
            graph.connect(product, reader, input);
        }
        graph.remove(gate);
    }
}
