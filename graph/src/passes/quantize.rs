//! Chooses the form in which activations enter products. The norm or gate before a product writes the form
//! directly if all readers want the same one. Otherwise a quantize node is inserted, shared by all readers
//! that want that form.

use crate::op::{Node, Operator, OperatorGraph, Rows};
use crate::stack::Stack;
use petgraph::stable_graph::NodeIndex;
use ragtag_kernels::Activations;
use std::collections::BTreeMap;

/// Gives every product the activations that `form` selects by its weights and rows.
pub(crate) fn quantize_activations(graph: &mut OperatorGraph, form: impl Fn(&Stack, Rows) -> Activations) {
    for source in graph.ordered() {
        let mut readers: BTreeMap<Activations, Vec<NodeIndex>> = BTreeMap::new();
        for (consumer, input) in graph.consumers(source) {
            let node = graph.node(consumer);
            if let (Operator::MatMul { weights, .. }, 0) = (&node.operator, input) {
                readers.entry(form(weights, node.rows)).or_default().push(consumer);
            }
        }
        readers.remove(&Activations::F32);
        for (form, readers) in readers {
            for &reader in &readers {
                if let Operator::MatMul { activations, .. } = &mut graph.node_mut(reader).operator {
                    *activations = form;
                }
            }
            let all = readers.len() == graph.consumers(source).len();
            if !(all && writes(graph, source, form)) {
                insert(graph, source, form, &readers);
            }
        }
    }
}

/// Makes a node write its output in this form, if it can.
fn writes(graph: &mut OperatorGraph, source: NodeIndex, form: Activations) -> bool {
    match &mut graph.node_mut(source).operator {
        Operator::RmsNorm { output, .. }
        | Operator::SiluMul { output }
        | Operator::AttentionMerge { output, .. } => {
            *output = form;
            true
        }
        _ => false,
    }
}

fn insert(graph: &mut OperatorGraph, source: NodeIndex, form: Activations, readers: &[NodeIndex]) {
    let before = graph.node(source).clone();
    // One place per form, in case several follow one source.
    let order = (before.order.0, before.order.1 + 1 + form as u32);
    let operator = Operator::Quantize { output: form };
    let quantize = graph.add(Node { operator, order, ..before }, &[source]);
    for &reader in readers {
        graph.connect(quantize, reader, 0);
    }
}
