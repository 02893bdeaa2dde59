//! Int8 activations where the weights of a product are quantised: the norm or gate before it writes them directly if
//! nobody needs its floats, else a quantise node stands between, shared by all who want it.

use crate::op::{Node, Operator, OperatorGraph};
use crate::stack::Stack;
use petgraph::stable_graph::NodeIndex;
use ragtag_kernels::Activations;

/// Gives int8 activations to every product for which `wants_int8` says so of its weights.
pub(crate) fn quantize_activations(graph: &mut OperatorGraph, wants_int8: impl Fn(&Stack) -> bool) {
    for source in graph.ordered() {
        let readers: Vec<NodeIndex> = graph
            .consumers(source)
            .into_iter()
            .filter(|&(consumer, input)| {
                input == 0
                    && matches!(&graph.node(consumer).operator, Operator::MatMul { weights, .. } if wants_int8(weights))
            })
            .map(|(consumer, _)| consumer)
            .collect();
        if readers.is_empty() {
            continue;
        }
        for &reader in &readers {
            if let Operator::MatMul { activations, .. } = &mut graph.node_mut(reader).operator {
                *activations = Activations::Int8;
            }
        }
        let all = readers.len() == graph.consumers(source).len();
        if !(all && writes_int8(graph, source)) {
            insert(graph, source, &readers);
        }
    }
}

/// Turns a node that can write int8 activations into one that does.
fn writes_int8(graph: &mut OperatorGraph, source: NodeIndex) -> bool {
    match &mut graph.node_mut(source).operator {
        Operator::RmsNorm { output, .. } | Operator::SiluMul { output } => {
            *output = Activations::Int8;
            true
        }
        _ => false,
    }
}

fn insert(graph: &mut OperatorGraph, source: NodeIndex, readers: &[NodeIndex]) {
    let before = graph.node(source).clone();
    let order = (before.order.0, before.order.1 + 1);
    let quantize = graph.add(Node { operator: Operator::Quantize, order, ..before }, &[source]);
    for &reader in readers {
        graph.connect(quantize, reader, 0);
    }
}
