//! Keys of a model's description from which the hyperparameters of some architectures are read.

use super::extras::LayerSet;
use super::hyperparameters::{Hyperparameters, in_range, positive};
use crate::checkpoint::fields::Fields;
use crate::error::ModelError;
use crate::gguf::{Array, Metadata};
use std::cell::RefCell;
use std::collections::BTreeSet;

/// Keys of a model's description that only some architectures have. Keeps track of the keys that were read,
/// because a key that no architecture reads is an error.
pub(crate) struct Keys<'a> {
    source: KeySource<'a>,
    read_keys: RefCell<BTreeSet<String>>,
}

/// File that contains the keys.
enum KeySource<'a> {
    /// Metadata of a GGUF file, and the architecture, with which the keys start.
    Gguf(&'a Metadata, &'a str),
    Config(&'a Fields),
}

/// Keys of GGUF files that every architecture reads, or that do not affect results. `.` at the end stands for
/// all keys that start like this, such as keys of multimodal projectors.
const GGUF_KEYS: &str = "block_count context_length embedding_length feed_forward_length vocab_size tensor_data_layout \
    expert_count expert_used_count attention.head_count attention.head_count_kv attention.key_length \
    attention.value_length attention.layer_norm_rms_epsilon attention.layer_norm_epsilon \
    rope.dimension_count rope.freq_base rope.scale_linear rope.scaling.type rope.scaling.factor \
    rope.scaling.attn_factor rope.scaling.original_context_length rope.scaling.finetuned \
    rope.scaling.yarn_attn_factor rope.scaling.yarn_beta_fast rope.scaling.yarn_beta_slow \
    rope.scaling.yarn_ext_factor rope.dimension_sections mm. pooling_type attention.causal";

/// Fields of `config.json` that change results unless they have one of these values, and that only some
/// architectures read.
const CONFIG_KEYS: [(&str, &[Setting]); 19] = [
    ("attention_bias", &[Setting::Flag(false)]),
    ("mlp_bias", &[Setting::Flag(false)]),
    ("sliding_window", &[Setting::Flag(false)]),
    ("use_sliding_window", &[Setting::Flag(false)]),
    ("sliding_window_pattern", &[]),
    ("rope_local_base_freq", &[]),
    ("attn_logit_softcapping", &[]),
    ("final_logit_softcapping", &[]),
    ("query_pre_attn_scalar", &[]),
    ("embedding_multiplier", &[Setting::Number(1.0), Setting::Count(1)]),
    ("residual_multiplier", &[Setting::Number(1.0), Setting::Count(1)]),
    ("attention_multiplier", &[]),
    ("logits_scaling", &[Setting::Number(1.0), Setting::Count(1)]),
    ("logit_scale", &[Setting::Number(1.0), Setting::Count(1)]),
    ("no_rope_layers", &[]),
    ("no_rope_layer_interval", &[]),
    ("use_qk_norm", &[Setting::Flag(false)]),
    ("use_bias", &[Setting::Flag(false)]),
    ("use_bidirectional_attention", &[Setting::Flag(false)]),
];

/// Value of a field of `config.json`.
#[derive(Clone, Copy)]
pub(crate) enum Setting {
    Flag(bool),
    Count(u32),
    Number(f64),
}

impl From<Setting> for serde_json::Value {
    fn from(setting: Setting) -> Self {
        match setting {
            Setting::Flag(flag) => flag.into(),
            Setting::Count(count) => count.into(),
            Setting::Number(number) => number.into(),
        }
    }
}

impl<'a> Keys<'a> {
    pub(crate) fn of_gguf(metadata: &'a Metadata, architecture: &'a str) -> Self {
        Self { source: KeySource::Gguf(metadata, architecture), read_keys: RefCell::default() }
    }

    pub(crate) fn of_config(fields: &'a Fields) -> Self {
        Self { source: KeySource::Config(fields), read_keys: RefCell::default() }
    }

    /// Returns the fields of `config.json`, or `None` for a GGUF file.
    pub(super) fn config(&self) -> Option<&'a Fields> {
        match self.source {
            KeySource::Gguf(..) => None,
            KeySource::Config(fields) => Some(fields),
        }
    }

    /// Notes that the architecture has read a key.
    pub(super) fn mark(&self, key: &str) {
        self.read_keys.borrow_mut().insert(key.to_owned());
    }

    /// Returns the full name of the key for messages.
    pub(super) fn label(&self, gguf: &str, config: &str) -> String {
        match self.source {
            KeySource::Gguf(_, architecture) => format!("{architecture}.{gguf}"),
            KeySource::Config(fields) => fields.in_file(config),
        }
    }

    /// Returns the full name of a key that has one name in GGUF files and another in `config.json`, and notes
    /// that the architecture reads it. An empty name stands for a format without this key.
    fn read(&self, gguf: &str, config: &str) -> Option<String> {
        let name = if self.config().is_some() { config } else { gguf };
        let key = match self.source {
            _ if name.is_empty() => return None,
            KeySource::Gguf(_, architecture) => format!("{architecture}.{name}"),
            KeySource::Config(_) => name.to_owned(),
        };
        self.mark(&key);
        Some(key)
    }

    /// Returns a positive number, which has one name in GGUF files and another in `config.json`. An empty
    /// name stands for a format without this key.
    pub(super) fn float(&self, gguf: &str, config: &str) -> Result<Option<f32>, ModelError> {
        let Some(key) = self.read(gguf, config) else { return Ok(None) };
        match self.source {
            KeySource::Gguf(metadata, _) => {
                metadata.find(&key)?.map(|value| positive(&key, value)).transpose()
            }
            KeySource::Config(fields) => fields.find_float(&key),
        }
    }

    /// Returns a count, as [`Keys::float`] does.
    pub(super) fn count(&self, gguf: &str, config: &str) -> Result<Option<u32>, ModelError> {
        let Some(key) = self.read(gguf, config) else { return Ok(None) };
        match self.source {
            KeySource::Gguf(metadata, _) => {
                metadata.find::<u32>(&key)?.map(|value| in_range(&key, value.into())).transpose()
            }
            KeySource::Config(fields) => fields.find_count(&key),
        }
    }

    /// Returns a whole number that may be 0, as [`Keys::float`] does.
    pub(super) fn whole(&self, gguf: &str, config: &str) -> Result<Option<u32>, ModelError> {
        let Some(key) = self.read(gguf, config) else { return Ok(None) };
        match self.source {
            KeySource::Gguf(metadata, _) => Ok(metadata.find::<u32>(&key)?),
            KeySource::Config(fields) => Ok(fields.find_whole(&key)?),
        }
    }

    /// Returns a truth value, as [`Keys::float`] does.
    pub(super) fn flag(&self, gguf: &str, config: &str) -> Result<Option<bool>, ModelError> {
        let Some(key) = self.read(gguf, config) else { return Ok(None) };
        match self.source {
            KeySource::Gguf(metadata, _) => Ok(metadata.find(&key)?),
            KeySource::Config(fields) => Ok(fields.flag(&key)?),
        }
    }

    /// Returns the whole numbers in a list of a GGUF file. The result is empty if there is no such list.
    pub(super) fn wholes(&self, gguf: &str) -> Result<Vec<u32>, ModelError> {
        let KeySource::Gguf(metadata, architecture) = self.source else { return Ok(Vec::new()) };
        let key = format!("{architecture}.{gguf}");
        let Some(list) = metadata.find::<Array<'_>>(&key)? else { return Ok(Vec::new()) };
        Ok(list.list().collect::<Result<_, _>>()?)
    }

    /// Returns the whole numbers of a GGUF file's list with one for each layer. `None` if there is one number for all.
    pub(super) fn per_layer(&self, gguf: &str) -> Option<Vec<u32>> {
        let KeySource::Gguf(metadata, architecture) = self.source else { return None };
        per_layer(metadata, &format!("{architecture}.{gguf}"))
    }

    /// Returns the layers whose indices a field of `config.json` lists.
    pub(super) fn layers_at(&self, field: &str, layers: u32) -> Result<Option<LayerSet>, ModelError> {
        let Some(found) = self.config().and_then(|config| Some((config, config.find(field)?))) else {
            return Ok(None);
        };
        let (config, value) = found;
        let wrong = || config.wrong_type(field, "a list of layers", value);
        let mut is_listed = vec![false; layers as usize];
        for index in value.as_array().ok_or_else(wrong)? {
            let layer = index.as_u64().and_then(|index| is_listed.get_mut(usize::try_from(index).ok()?));
            *layer.ok_or_else(wrong)? = true;
        }
        Ok(Some(LayerSet::Listed(is_listed)))
    }

    /// Returns the numbers of all layers in a list of a GGUF file whose key names no architecture. A single number is that of
    /// all layers.
    pub(super) fn numbers_of_layers(&self, key: &str, layers: u32) -> Result<Vec<f32>, ModelError> {
        let KeySource::Gguf(metadata, _) = self.source else { return Ok(Vec::new()) };
        let numbers: Vec<f32> = match metadata.find::<f32>(key) {
            Ok(Some(one)) => vec![one; layers as usize],
            _ => metadata.list(key)?.collect::<Result<_, _>>()?,
        };
        let why = match numbers.iter().find(|number| !number.is_finite()) {
            Some(number) => format!("{number} is not finite"),
            None if numbers.len() == layers as usize => return Ok(numbers),
            None => format!("{} layers instead of {layers}", numbers.len()),
        };
        Err(ModelError::Hyperparameter { key: key.into(), why })
    }

    /// Reads which projections have biases, if the architecture has the fields `biases`. In GGUF files, the
    /// tensors tell.
    pub(crate) fn biases(&self, h: &mut Hyperparameters, biases: &[&str]) -> Result<(), ModelError> {
        for field in biases {
            let has_bias = self.flag("", field)?.unwrap_or(false);
            match *field {
                "mlp_bias" => h.extras.feed_forward_bias = has_bias,
                _ => (h.extras.qkv_bias, h.extras.output_bias) = (has_bias, has_bias),
            }
        }
        Ok(())
    }

    /// Reads the size of the window, and the layers that attend to it. `period` gives these layers if the
    /// file does not list them: with a period of n, every n-th layer attends to all positions, and with a
    /// period of 0, none does.
    pub(super) fn window(&self, h: &mut Hyperparameters, period: u32) -> Result<(), ModelError> {
        let of_period = |period| if period == 0 { LayerSet::All } else { LayerSet::AllBut(period) };
        let mut layers = of_period(period);
        match self.source {
            KeySource::Gguf(metadata, architecture) => {
                let key = format!("{architecture}.attention.sliding_window_pattern");
                self.mark(&key);
                // A period, or one truth value per layer.
                if let Ok(found) = metadata.list::<bool>(&key) {
                    layers = LayerSet::Listed(found.collect::<Result<_, _>>()?);
                } else if let Some(period) = metadata.find::<u32>(&key)? {
                    layers = of_period(period);
                }
                // Files of models without a window may have a window of 0.
                let key = format!("{architecture}.attention.sliding_window");
                self.mark(&key);
                let window = metadata.find::<u32>(&key)?.filter(|window| *window > 0);
                h.extras.window = window.map(|window| in_range(&key, window.into())).transpose()?;
            }
            KeySource::Config(fields) => {
                h.extras.window = self.count("", "sliding_window")?;
                self.mark("layer_types");
                if let Some(types) = fields.texts("layer_types")? {
                    let is_windowed = |kind: &str| match kind {
                        "sliding_attention" => Ok(true),
                        "full_attention" => Ok(false),
                        other => {
                            let what = format!("{} of type {other:?}", fields.in_file("layer_types"));
                            Err(ModelError::Unsupported { what })
                        }
                    };
                    layers = LayerSet::Listed(types.into_iter().map(is_windowed).collect::<Result<_, _>>()?);
                }
            }
        }
        if let LayerSet::Listed(list) = &layers
            && list.len() != h.layers as usize
        {
            let why = format!("{} layers instead of {}", list.len(), h.layers);
            let key = self.label("attention.sliding_window_pattern", "layer_types");
            return Err(ModelError::Hyperparameter { key, why });
        }
        if h.extras.window.is_some() {
            h.extras.windowed_layers = layers;
        }
        Ok(())
    }

    /// Fails if the file has a key that changes results and that was not read.
    pub(crate) fn check_all_read(&self) -> Result<(), ModelError> {
        let read = self.read_keys.borrow();
        match self.source {
            KeySource::Gguf(metadata, architecture) => {
                let prefix = format!("{architecture}.");
                let is_known = |key: &str| {
                    let matches =
                        |known: &str| key == known || known.ends_with('.') && key.starts_with(known);
                    GGUF_KEYS.split(' ').any(matches)
                };
                let keys = metadata.iter().map(|(key, _)| key).filter(|key| !read.contains(*key));
                let mut unknown = keys.filter_map(|key| Some((key, key.strip_prefix(&prefix)?)));
                match unknown.find(|(_, key)| !is_known(key)) {
                    Some((key, _)) => Err(ModelError::UnknownKey { key: key.to_owned() }),
                    None => Ok(()),
                }
            }
            KeySource::Config(fields) => {
                let is_full = |types: &serde_json::Value| {
                    types.as_array().is_some_and(|all| all.iter().all(|t| t == "full_attention"))
                };
                if !read.contains("layer_types") && !fields.find("layer_types").is_none_or(is_full) {
                    let what = format!("{} other than \"full_attention\"", fields.in_file("layer_types"));
                    return Err(ModelError::Unsupported { what });
                }
                // If windows are off, their size has no effect.
                let is_off = fields.flag("use_sliding_window")? == Some(false);
                let unread = |key: &str| !(read.contains(key) || is_off && key == "sliding_window");
                for (key, neutral) in CONFIG_KEYS.iter().filter(|(key, _)| unread(key)) {
                    let neutral: Vec<_> = neutral.iter().map(|value| (*value).into()).collect();
                    fields.refuse(key, &neutral)?;
                }
                Ok(())
            }
        }
    }
}

/// Returns the whole numbers of the list `key`, or `None` if there is no such list.
pub(super) fn per_layer(metadata: &Metadata, key: &str) -> Option<Vec<u32>> {
    let list = metadata.list::<u32>(key).ok()?;
    list.collect::<Result<Vec<_>, _>>().ok()
}
