//! Sets the activation type of each product. If all readers of a norm or gate take the same type, the norm or
//! gate writes that type directly. Otherwise the pass inserts one quantize node per type, which all readers
//! of that type share. The node is in the readers' segment: if they read the residual stream, only its f32 rows
//! cross a cut.

use crate::graph::{Node, OperatorGraph};
use crate::ops::{MatMul, Operator, Quantize, Rows};
use crate::stack::Stack;
use petgraph::stable_graph::NodeIndex;
use ragtag_kernels::Activations;
use std::collections::BTreeMap;

/// Sets the activation type of every product. `form` selects the type from the weights and the row count.
pub(crate) fn quantize_activations(graph: &mut OperatorGraph, form: impl Fn(&Stack, Rows) -> Activations) {
    for source in graph.ordered() {
        let mut readers: BTreeMap<(Activations, usize), Vec<NodeIndex>> = BTreeMap::new();
        for (consumer, input) in graph.consumers(source) {
            let node = graph.node(consumer);
            // A rounded logit may choose another expert.
            let chooses = |(reader, _): &(NodeIndex, u8)| {
                matches!(graph.node(*reader).operator, Operator::ExpertRoute(_))
            };
            if let (Operator::MatMul(MatMul { weights, .. }), 0) = (&node.operator, input)
                && !graph.consumers(consumer).iter().any(chooses)
            {
                readers.entry((form(weights, node.rows), node.segment)).or_default().push(consumer);
            }
        }
        readers.retain(|(form, _), _| *form != Activations::F32);
        for ((form, segment), readers) in readers {
            for &reader in &readers {
                if let Operator::MatMul(MatMul { activations, .. }) = &mut graph.node_mut(reader).operator {
                    *activations = form;
                }
            }
            let all = readers.len() == graph.consumers(source).len();
            if !(all && writes(graph, source, form)) {
                insert(graph, source, form, segment, &readers);
            }
        }
    }
}

/// Changes the type of a node's output to `form` and returns true. Returns false if the operator cannot write
/// this type.
fn writes(graph: &mut OperatorGraph, source: NodeIndex, form: Activations) -> bool {
    let output = graph.node_mut(source).operator.lower_mut().output_type();
    output.map(|output| *output = form).is_some()
}

fn insert(
    graph: &mut OperatorGraph,
    source: NodeIndex,
    form: Activations,
    segment: usize,
    readers: &[NodeIndex],
) {
    let before = graph.node(source).clone();
    // Each type gets its own position, because several quantize nodes may follow one source.
    let order = (before.order.0, before.order.1 + 1 + form as u32);
    let operator = Quantize { output: form }.into();
    let quantize = graph.add(Node { operator, segment, order, ..before }, &[source]);
    for &reader in readers {
        graph.connect(quantize, reader, 0);
    }
}
