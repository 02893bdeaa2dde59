//! Fuses RoPE and KV append into the split attention that follows them, in programs for a single row.

use crate::arch::Rope;
use crate::op::{Heads, Operator, OperatorGraph};

/// Fuses every [`Operator::RopeAppend`] whose only reader is a split attention operator, if `fuses` accepts
/// its heads and its RoPE.
pub(crate) fn fuse_appends(graph: &mut OperatorGraph, fuses: impl Fn(Heads, &Rope) -> bool) {
    for append in graph.ordered() {
        let Operator::RopeAppend { heads, rope, .. } = graph.node(append).operator else { continue };
        if !fuses(heads, &rope) {
            continue;
        }
        let [(attention, _)] = graph.consumers(append)[..] else { continue };
        let Operator::AttentionPartial { appends, .. } = &mut graph.node_mut(attention).operator else {
            continue;
        };
        *appends = Some(rope);
        let qkv = graph.inputs(append)[0];
        graph.connect(qkv, attention, 0);
        graph.remove(append);
    }
}
