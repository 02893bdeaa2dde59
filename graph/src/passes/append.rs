//! Fuses RoPE and KV append into the split attention that follows them, in programs for a single row.

use crate::graph::OperatorGraph;
use crate::ops::{AttentionPartial, Operator, RopeAppend};

/// Fuses every [`RopeAppend`] whose only reader is a split attention operator, if `fuses` accepts it.
pub(crate) fn fuse_appends(graph: &mut OperatorGraph, fuses: impl Fn(&RopeAppend) -> bool) {
    for append in graph.ordered() {
        let Operator::RopeAppend(operator) = graph.node(append).operator.clone() else { continue };
        if !operator.appends || !fuses(&operator) {
            continue;
        }
        let [(attention, _)] = graph.consumers(append)[..] else { continue };
        let Operator::AttentionPartial(AttentionPartial { appends, .. }) =
            &mut graph.node_mut(attention).operator
        else {
            continue;
        };
        *appends = Some(operator);
        let qkv = graph.inputs(append)[0];
        graph.connect(qkv, attention, 0);
        graph.remove(append);
    }
}
