//! Quantized tensors of a checkpoint: reads `quantization_config`, and pairs tensors with their scales.

use super::experts;
use super::fields::Fields;
use super::files::CONFIG;
use crate::arch::ExpertOrder;
use crate::converted::{self, Float8, Packing, Scales, TensorBytes, Ternary};
use crate::error::{FormatError, ModelError, Quoted};
use crate::safetensors::{Dtype, Stored};
use crate::source::Source;
use crate::weights::TensorInfo;
use ragtag_kernels::TensorType;
use ragtag_kernels::blocks::dequantise;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Settings of the quantized weights of a checkpoint.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Quantization {
    /// Rows and columns that share a scale, if scales apply to such tiles.
    tile: Option<[u64; 2]>,
    ternary: Option<TernaryForm>,
    /// Whether experts are MXFP4.
    is_mxfp4: bool,
}

/// Form in which a BitNet checkpoint stores its linear layers.
#[derive(Clone, Copy, Debug, PartialEq)]
enum TernaryForm {
    /// Ternary weights, to be multiplied by the scale.
    Multiplied,
    /// Ternary weights, to be divided by the scale.
    Divided,
    /// Weights that are rounded to ternary ones while the model runs.
    Rounded,
}

impl Quantization {
    /// Reads `quantization_config`. Returns `None` if there is none.
    ///
    /// # Errors
    /// Fails for methods that Ragtag does not support, and for settings that change what weights mean.
    pub(super) fn read(config: &Fields) -> Result<Option<Self>, ModelError> {
        const KEY: &str = "quantization_config";
        let Some(fields) = config.object(KEY)? else { return Ok(None) };
        let (mut ternary, mut is_mxfp4) = (None, false);
        let tile = match fields.text("quant_method")? {
            None => return config.refuse(KEY, &[]).map(|()| None),
            Some("fp8") => {
                fields.refuse("fmt", &["e4m3".into()])?;
                tile(&fields, "weight_block_size")?
            }
            Some("compressed-tensors") => {
                fields.refuse("format", &["float-quantized".into(), "naive-quantized".into()])?;
                let mut found = None;
                for group in fields.object("config_groups")?.iter().flat_map(Fields::objects) {
                    let Some(weights) = group?.object("weights")? else { continue };
                    weights.refuse("type", &["float".into()])?;
                    weights.refuse("num_bits", &[8.into()])?;
                    found = found.or(tile(&weights, "block_structure")?);
                }
                found
            }
            Some("bitnet") => {
                ternary = Some(TernaryForm::read(&fields)?);
                None
            }
            Some("mxfp4") => {
                is_mxfp4 = true;
                None
            }
            Some(other) => {
                let what = format!(
                    "{} = \"{}\" (supported are fp8, compressed-tensors with 8-bit floats, mxfp4, and bitnet)",
                    fields.in_file("quant_method"),
                    Quoted(other)
                );
                return Err(ModelError::Unsupported { what });
            }
        };
        Ok(Some(Quantization { tile, ternary, is_mxfp4 }))
    }
}

impl TernaryForm {
    fn read(fields: &Fields) -> Result<Self, ModelError> {
        fields.refuse("use_rms_norm", &[false.into()])?;
        fields.refuse("quantization_mode", &["offline".into(), "online".into()])?;
        fields.refuse("linear_class", &["bitlinear".into(), "autobitlinear".into()])?;
        if fields.texts("modules_to_not_convert")?.is_some_and(|names| names != ["lm_head"]) {
            let what = format!("{} other than lm_head", fields.in_file("modules_to_not_convert"));
            return Err(ModelError::Unsupported { what });
        }
        let is_auto = fields.text("linear_class")? == Some("autobitlinear");
        Ok(match fields.text("quantization_mode")? {
            Some("online") if is_auto => TernaryForm::Rounded,
            _ if is_auto => TernaryForm::Multiplied,
            _ => TernaryForm::Divided,
        })
    }
}

/// Reads the rows and columns that share a scale. Blocks of 32 columns must not span several scales.
fn tile(fields: &Fields, key: &str) -> Result<Option<[u64; 2]>, ModelError> {
    let Some(value) = fields.find(key) else { return Ok(None) };
    let pair = |found: &[serde_json::Value]| match found {
        [rows, columns] => Some([rows.as_u64()?, columns.as_u64()?]),
        _ => None,
    };
    match value.as_array().and_then(|found| pair(found)) {
        Some([rows, columns]) if rows > 0 && columns > 0 && columns.is_multiple_of(32) => {
            Ok(Some([rows, columns]))
        }
        Some([rows, columns]) => {
            let why =
                format!("{rows} × {columns} is not a positive number of rows and a multiple of 32 columns");
            Err(ModelError::Hyperparameter { key: fields.in_file(key), why })
        }
        None => Err(fields.wrong_type(key, "a list of two whole numbers", value).into()),
    }
}

/// Quantized tensors of a checkpoint, and the files that contain them.
pub(super) struct Tensors<'a> {
    all: HashMap<&'a str, &'a Stored>,
    quantization: Quantization,
    /// Order of the matrices of experts.
    pub(super) expert_order: ExpertOrder,
    files: &'a [Arc<dyn Source>],
    /// Names of the tensors that belong to another one.
    used: HashSet<String>,
}

impl<'a> Tensors<'a> {
    pub(super) fn new(
        quantization: Option<&Quantization>,
        expert_order: ExpertOrder,
        files: &'a [Arc<dyn Source>],
        tensors: &'a [Stored],
    ) -> Self {
        let all = tensors.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
        let quantization = quantization.cloned().unwrap_or_default();
        Tensors { all, quantization, expert_order, files, used: HashSet::new() }
    }

    /// Returns the name of the tensor to which a tensor with quants belongs. The name of any other tensor stays.
    pub(super) fn stem<'n>(&self, name: &'n str) -> &'n str {
        if self.quantization.is_mxfp4 { experts::stem(name) } else { name }
    }

    /// Returns the tensor called `name`, and notes that it belongs to another one.
    pub(super) fn take(&mut self, name: &str) -> Option<&'a Stored> {
        self.used.insert(name.to_owned());
        self.all.get(name).copied()
    }

    /// Returns whether the tensor called `name` belongs to a tensor that [`Tensors::add`] has added.
    pub(super) fn is_used(&self, name: &str) -> bool {
        self.used.contains(name)
    }

    /// Returns the description of `tensor`, which is called `name` in the graph. If its bytes are not the
    /// blocks of a tensor type, adds a source that makes the blocks.
    pub(super) fn add(
        &mut self,
        tensor: &Stored,
        name: String,
        sources: &mut Vec<Arc<dyn Source>>,
    ) -> Result<TensorInfo, ModelError> {
        let Stored { shard, offset, bytes, ref shape, .. } = *tensor;
        match tensor.dtype {
            Dtype::Values(tensor_type)
                if self.quantization.ternary == Some(TernaryForm::Rounded)
                    && tensor.name.ends_with("_proj.weight") =>
            {
                self.ternary(tensor, name, sources, Packing::Rounded(tensor_type))
            }
            Dtype::Values(tensor_type) => {
                if self.expert_order != ExpertOrder::Rows
                    && let Some(added) = self.reordered(tensor, tensor_type, &name, sources)
                {
                    return added;
                }
                Ok(TensorInfo { name, tensor_type, shape: shape.clone(), shard, offset, bytes })
            }
            Dtype::F8E4M3 => self.float8(tensor, name, sources),
            Dtype::U8 if self.quantization.is_mxfp4 && self.expert_order == ExpertOrder::ColumnsInTurn => {
                self.mxfp4(tensor, name, sources)
            }
            Dtype::U8 => self.ternary(tensor, name, sources, Packing::Rows),
        }
    }

    pub(super) fn place(&self, tensor: &Stored) -> TensorBytes {
        TensorBytes { source: self.files[tensor.shard].clone(), offset: tensor.offset, bytes: tensor.bytes }
    }

    pub(super) fn invalid(&self, tensor: &Stored, cause: String) -> ModelError {
        let file = self.files[tensor.shard].name().to_owned();
        let what = format!("tensor {}", Quoted(&tensor.name));
        FormatError::Invalid { file, at: tensor.offset, what, cause }.into()
    }

    fn scale_type(&self, scale: &Stored) -> Result<TensorType, ModelError> {
        match scale.dtype {
            Dtype::Values(tensor_type) => Ok(tensor_type),
            _ => Err(self.invalid(scale, "scales are F32, F16 or BF16".into())),
        }
    }

    /// Adds ternary weights, or weights that are rounded to ternary ones.
    fn ternary(
        &mut self,
        tensor: &Stored,
        name: String,
        sources: &mut Vec<Arc<dyn Source>>,
        packing: Packing,
    ) -> Result<TensorInfo, ModelError> {
        let &[columns, stored_rows] = tensor.shape.as_slice() else {
            return Err(self.invalid(tensor, "is ternary, but not a matrix".into()));
        };
        let (rows, scale) = match packing {
            Packing::Rounded(_) => (stored_rows, None),
            _ => {
                let Some(form) = self.quantization.ternary.filter(|form| *form != TernaryForm::Rounded)
                else {
                    let cause = format!(
                        "is U8, which only BitNet checkpoints with packed weights and MXFP4 checkpoints of gpt-oss \
                         can contain (quantization_config in {CONFIG})"
                    );
                    return Err(self.invalid(tensor, cause));
                };
                let scale = self.one_scale(tensor)?;
                let scale = if form == TernaryForm::Divided { 1.0 / scale } else { scale };
                (stored_rows.saturating_mul(4), Some(scale))
            }
        };
        let values = self.place(tensor);
        let conversion = Ternary::new(&tensor.name, [columns, rows], values, packing, scale);
        let conversion = conversion.map_err(FormatError::from)?;
        let added = converted::add(sources, name, vec![columns, rows], conversion);
        added.ok_or_else(|| self.invalid(tensor, format!("its {columns} columns are not a multiple of 32")))
    }

    /// Returns the only scale of `tensor`, which is another tensor.
    fn one_scale(&mut self, tensor: &Stored) -> Result<f32, ModelError> {
        let name = format!("{}_scale", tensor.name);
        let Some(&scale) = self.all.get(name.as_str()) else {
            return Err(self.invalid(tensor, format!("is ternary and needs {name}")));
        };
        let tensor_type = self.scale_type(scale)?;
        if scale.shape.iter().any(|extent| *extent != 1) {
            return Err(self.invalid(scale, format!("has shape {:?} instead of one value", scale.shape)));
        }
        let mut value = [f32::NAN];
        let place = self.place(scale);
        dequantise(tensor_type, &place.all().map_err(FormatError::from)?, &mut value)?;
        self.used.insert(name);
        Ok(value[0])
    }

    fn float8(
        &mut self,
        tensor: &Stored,
        name: String,
        sources: &mut Vec<Arc<dyn Source>>,
    ) -> Result<TensorInfo, ModelError> {
        let &[columns, rows] = tensor.shape.as_slice() else {
            return Err(self.invalid(tensor, "is F8_E4M3, but not a matrix".into()));
        };
        let names = ["_scale_inv", "_scale"].map(|end| format!("{}{end}", tensor.name));
        let found: Vec<&Stored> = names.iter().filter_map(|n| self.all.get(n.as_str()).copied()).collect();
        let &[scale] = found.as_slice() else {
            let cause =
                format!("is F8_E4M3 and needs one of {} and {}, found {}", names[0], names[1], found.len());
            return Err(self.invalid(tensor, cause));
        };
        let scale_type = self.scale_type(scale)?;
        let one = [rows, columns.next_multiple_of(32)];
        let tile = match (self.quantization.tile, scale.shape.as_slice()) {
            (_, [] | [1] | [1, 1])
                if self.quantization.tile.is_none_or(|[r, c]| r >= rows && c >= columns) =>
            {
                one
            }
            (Some([r, c]), found) if found == [columns.div_ceil(c), rows.div_ceil(r)] => [r, c],
            (None, found) if found == [rows] || found == [1, rows] => [1, one[1]],
            (tile, found) => {
                let tile = match tile {
                    Some([r, c]) => format!("scale per tile of {r} × {c}"),
                    None => "scale, or one per row".into(),
                };
                let cause = format!(
                    "has shape {found:?} (columns first), but {rows} × {columns} weights have one {tile} \
                     (quantization_config in {CONFIG})"
                );
                return Err(self.invalid(scale, cause));
            }
        };
        let conversion = Float8 {
            tensor: tensor.name.clone(),
            columns,
            values: self.place(tensor),
            scales: Scales { values: self.place(scale), tensor_type: scale_type, tile },
        };
        self.used.insert(scale.name.clone());
        // Ragtag does not quantize activations to 8-bit floats, and so needs no scale of them.
        if let Some(layer) = tensor.name.strip_suffix("weight") {
            self.used.insert(format!("{layer}input_scale"));
        }
        let added = converted::add(sources, name, tensor.shape.clone(), conversion);
        added.ok_or_else(|| self.invalid(tensor, format!("its {columns} columns are not a multiple of 32")))
    }
}
