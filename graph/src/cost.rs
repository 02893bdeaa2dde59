//! Costs of a node in floating-point operations and bytes, per row, per micro-batch and per position.

use crate::error::ModelError;
use crate::lowering::Lowering;
use crate::model::Model;
use crate::op::{Node, Operator};
use crate::stack::StackedMatrix;
use ragtag_kernels::head_norm::Form;
use ragtag_kernels::{CacheType, Layout};

/// Costs of one node, in the units of [`crate::Segment`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeCost {
    pub(crate) flops_per_row: u64,
    pub(crate) flops_per_row_position: u64,
    pub(crate) read_bytes: u64,
    pub(crate) read_bytes_per_row: u64,
    pub(crate) kv_bytes_per_position: u64,
    pub(crate) value_bytes_per_position: u64,
    pub(crate) window: Option<u32>,
}

pub(crate) fn node_cost(model: &Model, node: &Node, lowering: &Lowering) -> Result<NodeCost, ModelError> {
    let width = u64::from(node.width);
    let mut cost = NodeCost::default();
    match &node.operator {
        Operator::Embed { table } => {
            let table = model.weights().required(table)?;
            cost.read_bytes_per_row = table.bytes / table.rows();
        }
        Operator::MatMul { weights, .. } => {
            let values: u64 = weights.infos(model.weights())?.iter().map(|t| t.values()).sum();
            cost.flops_per_row = 2 * values;
            cost.read_bytes =
                StackedMatrix::new(model.weights(), weights, |_| Layout::Rows16)?.resident().bytes();
        }
        Operator::LayerNorm { .. } => {
            cost.flops_per_row = 7 * width;
            cost.read_bytes = 8 * width;
        }
        Operator::Scale { .. } => cost.flops_per_row = width,
        Operator::Unary { .. } => cost.flops_per_row = 6 * width,
        Operator::RmsNorm { .. } => {
            cost.flops_per_row = 4 * width;
            cost.read_bytes = 4 * width;
        }
        Operator::Bias { .. } => cost.read_bytes = 4 * width,
        Operator::HeadNorm { heads, form, .. } => {
            let all = u64::from(heads.query_width() + heads.kv_width());
            cost.flops_per_row = if *form == Form::Centred { 7 } else { 4 } * all;
            cost.read_bytes = if *form == Form::Heads { 8 * u64::from(heads.dimensions) } else { 4 * all };
        }
        Operator::Attention { heads, scores, .. } | Operator::AttentionPartial { heads, scores, .. } => {
            cost.window = scores.window;
            cost.flops_per_row_position = 4 * u64::from(heads.query_width());
        }
        Operator::RopeAppend { heads, .. } => {
            cost.flops_per_row = 3 * u64::from(heads.query_width() + heads.kv_width());
            let bytes = |of: CacheType| of.bytes(u64::from(heads.kv_width()));
            cost.value_bytes_per_position = bytes(lowering.kv.values());
            cost.kv_bytes_per_position = bytes(lowering.kv.keys()) + cost.value_bytes_per_position;
        }
        Operator::SiluMul { .. } => cost.flops_per_row = 6 * width,
        Operator::Quantize { .. } => cost.flops_per_row = 2 * width,
        Operator::Add => cost.flops_per_row = width,
        Operator::Lookup { .. }
        | Operator::Gather
        | Operator::Widen { .. }
        | Operator::AttentionMerge { .. } => {}
    }
    Ok(cost)
}
