//! Folds rope and append into the split attention that reads the cache right behind it, for programs of a single row.

use crate::op::{Operator, OperatorGraph};

/// Folds every one whose output a split attention alone reads.
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
