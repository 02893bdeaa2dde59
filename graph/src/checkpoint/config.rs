//! Reads the hyperparameters from `config.json`, where they have Hugging Face's names.
//!
//! The fields for the head size, the number of KV heads and the RoPE scaling are optional. They default to
//! the values that the `transformers` library uses. All other fields that determine the shapes of weights are
//! required.

use super::{CONFIG, MOST_CONFIG_BYTES};
use crate::arch::{Architecture, Hyperparameters, Llama3Scaling, Rope, RopePairing, in_range, positive};
use crate::error::{FormatError, Quoted};
use crate::json;
use crate::model::ModelError;
use crate::source::{Directory, Source};
use ragtag_kernels::TensorType;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Fields of a JSON object, which callers read by key. A `null` field counts as missing.
pub(crate) struct Fields {
    file: String,
    /// Path of this object within the file. Messages prepend it to each key.
    path: String,
    map: Map<String, Value>,
}

impl Fields {
    /// Reads a file that consists of one JSON object.
    pub(crate) fn read(source: &dyn Source) -> Result<Self, FormatError> {
        let map = json::parse(source, MOST_CONFIG_BYTES)?;
        Ok(Fields { file: source.name().to_owned(), path: String::new(), map })
    }

    pub(crate) fn find(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// Returns `key`, preceded by the path of its object, for messages.
    fn label(&self, key: &str) -> String {
        format!("{}{key}", self.path)
    }

    fn missing(&self, key: &str) -> FormatError {
        FormatError::MissingKey { file: self.file.clone(), key: self.label(key) }
    }

    pub(crate) fn wrong_type(&self, key: &str, expected: &'static str, found: &Value) -> FormatError {
        let (file, key) = (self.file.clone(), self.label(key));
        FormatError::WrongType { file, key, expected, found: shown(found) }
    }

    pub(crate) fn flag(&self, key: &str) -> Result<Option<bool>, FormatError> {
        let flag =
            |value: &Value| value.as_bool().ok_or_else(|| self.wrong_type(key, "true or false", value));
        self.find(key).map(flag).transpose()
    }

    pub(crate) fn text(&self, key: &str) -> Result<Option<&str>, FormatError> {
        let text = |value| Value::as_str(value).ok_or_else(|| self.wrong_type(key, "a string", value));
        self.find(key).map(text).transpose()
    }

    /// Returns the token ids under `key`, whose value may be a number or a list of numbers. Returns an empty
    /// list if the key is missing.
    pub(crate) fn ids(&self, key: &str) -> Result<Vec<u32>, FormatError> {
        let values = match self.find(key) {
            None => return Ok(Vec::new()),
            Some(Value::Array(values)) => values.as_slice(),
            Some(value) => std::slice::from_ref(value),
        };
        let id = |value: &Value| {
            let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
            id.ok_or_else(|| self.wrong_type(key, "a token id or a list of them", value))
        };
        values.iter().map(id).collect()
    }

    /// Returns the texts of special tokens by their keys, such as `bos_token`. The value of a key is a text or an
    /// object with the text.
    pub(crate) fn special_tokens(&self) -> BTreeMap<String, String> {
        let text = |value: &Value| match value {
            Value::Object(token) => token.get("content")?.as_str().map(str::to_owned),
            other => other.as_str().map(str::to_owned),
        };
        let tokens = self.map.iter().filter(|(key, _)| key.ends_with("_token"));
        tokens.filter_map(|(key, value)| Some((key.clone(), text(value)?))).collect()
    }

    fn object(&self, key: &str) -> Result<Option<Fields>, FormatError> {
        match self.find(key) {
            None => Ok(None),
            Some(Value::Object(map)) => {
                let path = format!("{}{key}.", self.path);
                Ok(Some(Fields { file: self.file.clone(), path, map: map.clone() }))
            }
            Some(other) => Err(self.wrong_type(key, "an object", other)),
        }
    }

    fn find_count(&self, key: &str) -> Result<Option<u32>, ModelError> {
        let Some(value) = self.find(key) else { return Ok(None) };
        let number = value.as_i64().map(i128::from).or_else(|| value.as_u64().map(i128::from));
        let number = number.ok_or_else(|| self.wrong_type(key, "a whole number", value))?;
        in_range(&self.in_file(key), number).map(Some)
    }

    fn count(&self, key: &str) -> Result<u32, ModelError> {
        Ok(self.find_count(key)?.ok_or_else(|| self.missing(key))?)
    }

    fn find_float(&self, key: &str) -> Result<Option<f32>, ModelError> {
        let Some(value) = self.find(key) else { return Ok(None) };
        let number = value.as_f64().ok_or_else(|| self.wrong_type(key, "a number", value))?;
        positive(&self.in_file(key), number as f32).map(Some)
    }

    fn float(&self, key: &str) -> Result<f32, ModelError> {
        Ok(self.find_float(key)?.ok_or_else(|| self.missing(key))?)
    }

    /// Returns `key` with the path of its object and the file's name, for [`ModelError::Hyperparameter`].
    fn in_file(&self, key: &str) -> String {
        format!("{} in {CONFIG}", self.label(key))
    }

    /// Rejects `key` if it is present with a value other than those in `off`.
    fn refuse(&self, key: &str, off: &[Value]) -> Result<(), ModelError> {
        match self.find(key).filter(|value| !off.contains(value)) {
            Some(value) => {
                let what = format!("{} = {}", self.in_file(key), shown(value));
                Err(ModelError::Unsupported { what })
            }
            None => Ok(()),
        }
    }
}

/// Formats a value for messages.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => format!("\"{}\"", Quoted(text)),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        number_or_truth => number_or_truth.to_string(),
    }
}

/// Reads the architecture and the hyperparameters. Also returns whether the head is tied to the embedding.
pub(super) fn read(
    directory: &Directory,
) -> Result<(&'static Architecture, Hyperparameters, bool), ModelError> {
    let source = directory.file(CONFIG).ok_or_else(|| FormatError::MissingFile {
        directory: directory.name().to_owned(),
        file: CONFIG.to_owned(),
    })?;
    let config = Fields::read(source.as_ref())?;
    let architecture = Architecture::of_class(class(&config)?)?;
    let off = [Value::Bool(false)];
    config.refuse("attention_bias", &off)?;
    config.refuse("mlp_bias", &off)?;
    config.refuse("hidden_act", &["silu".into(), "swish".into()])?;
    config.refuse("quantization_config", &[])?;
    config.refuse("use_sliding_window", &off)?;
    if config.find("use_sliding_window").is_none() {
        config.refuse("sliding_window", &off)?;
    }
    let is_full =
        |types: &Value| types.as_array().is_some_and(|all| all.iter().all(|t| t == "full_attention"));
    if !config.find("layer_types").is_none_or(is_full) {
        let what = format!("{} other than \"full_attention\"", config.in_file("layer_types"));
        return Err(ModelError::Unsupported { what });
    }
    let (width, heads) = (config.count("hidden_size")?, config.count("num_attention_heads")?);
    let head_dimensions = match config.find_count("head_dim")? {
        Some(values) => values,
        None if width.is_multiple_of(heads) => width / heads,
        None => {
            let why = format!("{heads} heads do not divide a width of {width}, and there is no head_dim");
            return Err(ModelError::Hyperparameter { key: config.in_file("num_attention_heads"), why });
        }
    };
    let hyperparameters = Hyperparameters {
        architecture: architecture.name.to_owned(),
        name: None,
        layers: config.count("num_hidden_layers")?,
        context: config.count("max_position_embeddings")?,
        width,
        feed_forward: config.count("intermediate_size")?,
        heads,
        kv_heads: config.find_count("num_key_value_heads")?.unwrap_or(heads),
        head_dimensions,
        rope: rope(&config, head_dimensions)?,
        epsilon: config.float("rms_norm_eps")?,
        vocabulary: config.count("vocab_size")?,
    };
    hyperparameters
        .check_shape(["num_key_value_heads", "head_dim", "head_dim"].map(|key| config.in_file(key)))?;
    Ok((architecture, hyperparameters, config.flag("tie_word_embeddings")?.unwrap_or(false)))
}

/// Returns the weight type that `config.json` specifies under `torch_dtype`, or under `dtype` in newer files.
pub(super) fn tensor_type(directory: &Directory) -> Result<TensorType, ModelError> {
    let source = directory.file(CONFIG).ok_or_else(|| FormatError::MissingFile {
        directory: directory.name().to_owned(),
        file: CONFIG.to_owned(),
    })?;
    let config = Fields::read(source.as_ref())?;
    let (key, name) = match (config.text("torch_dtype")?, config.text("dtype")?) {
        (Some(name), _) => ("torch_dtype", name),
        (None, Some(name)) => ("dtype", name),
        (None, None) => return Err(config.missing("torch_dtype").into()),
    };
    match name {
        "float32" => Ok(TensorType::F32),
        "float16" => Ok(TensorType::F16),
        "bfloat16" => Ok(TensorType::BF16),
        other => {
            let what = format!("{} = \"{}\"", config.in_file(key), Quoted(other));
            Err(ModelError::Unsupported { what })
        }
    }
}

/// Returns the model class that `architectures` lists. Fails unless `architectures` lists exactly one class.
fn class(config: &Fields) -> Result<&str, ModelError> {
    let classes = config.find("architectures").ok_or_else(|| config.missing("architectures"))?;
    let one = match classes.as_array().map(Vec::as_slice) {
        Some([Value::String(class)]) => Some(class.as_str()),
        _ => None,
    };
    Ok(one.ok_or_else(|| config.wrong_type("architectures", "a list of one class", classes))?)
}

/// Reads the RoPE settings from `rope_parameters`, or from `rope_theta` and `rope_scaling` in older files.
fn rope(config: &Fields, dimensions: u32) -> Result<Rope, ModelError> {
    const DEFAULT_BASE: f32 = 10_000.0;
    let parameters = config.object("rope_parameters")?;
    let scaling = match config.object("rope_scaling")? {
        Some(scaling) if parameters.is_none() => Some(scaling),
        _ => parameters,
    };
    let own_base = scaling.as_ref().map(|s| s.find_float("rope_theta")).transpose()?.flatten();
    let base = match own_base {
        Some(base) => base,
        None => config.find_float("rope_theta")?.unwrap_or(DEFAULT_BASE),
    };
    let whole = [Value::from(1), Value::from(1.0)];
    config.refuse("partial_rotary_factor", &whole)?;
    // Unlike GGUF files, checkpoints keep the query and key projections in their trained order.
    let pairing = RopePairing::Halves;
    let plain = Rope { dimensions, pairing, base, scale: 1.0, llama3: None, has_factors: false };
    let Some(scaling) = scaling else { return Ok(plain) };
    scaling.refuse("partial_rotary_factor", &whole)?;
    let kind = match scaling.text("rope_type")? {
        Some(kind) => kind,
        None => scaling.text("type")?.ok_or_else(|| scaling.missing("rope_type"))?,
    };
    match kind {
        "default" => Ok(plain),
        "linear" => Ok(Rope { scale: scaling.float("factor")?, ..plain }),
        "llama3" => Ok(Rope { llama3: Some(llama3(&scaling)?), ..plain }),
        other => {
            let what = format!("rotary scaling of type \"{}\" ({CONFIG})", Quoted(other));
            Err(ModelError::Unsupported { what })
        }
    }
}

fn llama3(scaling: &Fields) -> Result<Llama3Scaling, ModelError> {
    let found = Llama3Scaling {
        factor: scaling.float("factor")?,
        low_frequency_factor: scaling.float("low_freq_factor")?,
        high_frequency_factor: scaling.float("high_freq_factor")?,
        original_context: scaling.count("original_max_position_embeddings")?,
    };
    if found.low_frequency_factor >= found.high_frequency_factor {
        let why = format!(
            "{} is not above low_freq_factor, {}",
            found.high_frequency_factor, found.low_frequency_factor
        );
        return Err(ModelError::Hyperparameter { key: scaling.in_file("high_freq_factor"), why });
    }
    Ok(found)
}
