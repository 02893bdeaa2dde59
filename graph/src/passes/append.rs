//! Fuses RoPE and KV append into the split attention that follows, for programs of a single row.

use crate::op::{Operator, OperatorGraph};

/// Fuses every RoPE and append whose output only a split attention reads.
pub(crate) fn fuse_appends(graph: &mut OperatorGraph) {
    for append in graph.ordered() {
        let Operator::RopeAppend { pairing, .. } = graph.node(append).operator else { continue };
        let [(attention, _)] = graph.consumers(append)[..] else { continue };
        let Operator::AttentionPartial { appends, .. } = &mut graph.node_mut(attention).operator else {
            continue;
        };
        *appends = Some(pairing);
        let qkv = graph.inputs(append)[0];
        graph.connect(qkv, attention, 0);
        graph.remove(append);
    }
}
