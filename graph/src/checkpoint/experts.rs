//! Tensors with the weights or biases of all experts, in an order ([`ExpertOrder`]) that products do not read.

use super::quantization::Tensors;
use crate::arch::ExpertOrder;
use crate::converted::{self, Conversion, ExpertRows, Mxfp4, PartedBiases, Transposed};
use crate::error::ModelError;
use crate::safetensors::Stored;
use crate::source::Source;
use crate::weights::TensorInfo;
use ragtag_kernels::TensorType;
use std::sync::Arc;

/// End of the names of tensors with quants. The scales have another end.
const QUANTS: &str = "_blocks";
const SCALES: &str = "_scales";

/// Values of an MXFP4 block, and bytes of its quants.
const BLOCK: u64 = 32;
const QUANT_BYTES: u64 = 16;

/// Returns the name of a tensor without the end that a tensor with quants has.
pub(super) fn stem(name: &str) -> &str {
    name.strip_suffix(QUANTS).unwrap_or(name)
}

impl Tensors<'_> {
    /// Returns the number of parts of an expert's rows that take turns.
    fn parts(&self, name: &str) -> u64 {
        let takes_turns = self.expert_order == ExpertOrder::ColumnsInTurn;
        if takes_turns && name.contains("ffn_gate_up_exps") { 2 } else { 1 }
    }

    /// Adds MXFP4 weights of experts, which the graph calls `name`.
    pub(super) fn mxfp4(
        &mut self,
        tensor: &Stored,
        name: String,
        sources: &mut Vec<Arc<dyn Source>>,
    ) -> Result<TensorInfo, ModelError> {
        let (&[QUANT_BYTES, blocks, rows, experts], true) =
            (tensor.shape.as_slice(), tensor.name.ends_with(QUANTS))
        else {
            let cause =
                "is U8, but has no MXFP4 blocks of experts: a name with _blocks, and 4 dimensions of \
                         which the last is 16"
                    .into();
            return Err(self.invalid(tensor, cause));
        };
        let scales = format!("{}{SCALES}", stem(&tensor.name));
        let Some(found) = self.take(&scales) else {
            return Err(self.invalid(tensor, format!("needs {scales}")));
        };
        if found.bytes != tensor.bytes / QUANT_BYTES || found.shape != [blocks, rows, experts] {
            let cause = format!(
                "has shape {:?} (columns first) instead of [{blocks}, {rows}, {experts}]",
                found.shape
            );
            return Err(self.invalid(found, cause));
        }
        let conversion = Mxfp4 {
            tensor: tensor.name.clone(),
            columns: blocks.saturating_mul(BLOCK),
            rows: ExpertRows { rows, parts: self.parts(&name) },
            quants: self.place(tensor),
            scales: self.place(found),
        };
        let shape = vec![conversion.columns, rows, experts];
        self.add_parts(tensor, name, (shape, conversion.rows), conversion, sources)
    }

    /// Adds transposed weights of experts, or biases of several parts. Returns `None` for all other tensors.
    pub(super) fn reordered(
        &self,
        tensor: &Stored,
        tensor_type: TensorType,
        name: &str,
        sources: &mut Vec<Arc<dyn Source>>,
    ) -> Option<Result<TensorInfo, ModelError>> {
        let values = self.place(tensor);
        match *tensor.shape.as_slice() {
            [all, columns, experts] if name.ends_with("_exps.weight") => {
                let rows = ExpertRows { rows: all, parts: self.parts(name) };
                let conversion = Transposed { tensor_type, columns, rows, values };
                let shape = vec![columns, all, experts];
                Some(self.add_parts(tensor, name.into(), (shape, rows), conversion, sources))
            }
            [all, experts] if name.ends_with("_exps.bias") && self.parts(name) > 1 => {
                let rows = ExpertRows { rows: all, parts: self.parts(name) };
                let conversion = PartedBiases { tensor_type, experts, rows, values };
                let shape = vec![all / rows.parts, experts, rows.parts];
                Some(self.add_parts(tensor, name.into(), (shape, rows), conversion, sources))
            }
            _ => None,
        }
    }

    /// Adds a conversion of rows that have several parts.
    fn add_parts(
        &self,
        tensor: &Stored,
        name: String,
        (shape, ExpertRows { rows, parts }): (Vec<u64>, ExpertRows),
        conversion: impl Conversion,
        sources: &mut Vec<Arc<dyn Source>>,
    ) -> Result<TensorInfo, ModelError> {
        if !rows.is_multiple_of(parts) || shape.contains(&0) {
            return Err(self.invalid(tensor, format!("has shape {:?} (columns first)", tensor.shape)));
        }
        let added = converted::add(sources, name, shape, conversion);
        added.ok_or_else(|| self.invalid(tensor, "is too large".into()))
    }
}
