//! Reads the hyperparameters from `config.json`, where they have Hugging Face's names.
//!
//! The fields for the head size, the number of KV heads and the RoPE scaling are optional. They default to
//! the values that the `transformers` library uses. All other fields that determine the shapes of weights are
//! required.

use super::fields::Fields;
use super::files::CONFIG;
use super::quantization::Quantization;
use crate::arch::{
    Architecture, DynamicScaling, Extras, Hyperparameters, Keys, Llama3Scaling, Rope, RopeFactors, Yarn,
};
use crate::error::{FormatError, ModelError, Quoted};
use crate::source::Directory;
use ragtag_kernels::TensorType;
use serde_json::Value;

/// Reads the architecture and the hyperparameters. Also returns whether the head is tied to the embedding.
pub(super) fn read(
    directory: &Directory,
) -> Result<(&'static Architecture, Hyperparameters, bool), ModelError> {
    let mut config = Fields::read(directory.required(CONFIG)?.as_ref())?;
    let class = class(&config)?.to_owned();
    let mut architecture = Architecture::of_class(&class)?;
    Quantization::read(&config)?;
    if architecture.multimodal_classes.contains(&&*class) {
        config = text_part(config)?;
        architecture = architecture.of_text_part(&class, config.text("model_type")?);
    }
    for (theirs, usual) in architecture.aliases {
        if let Some(value) = config.find(theirs).cloned() {
            config.set(usual, value);
        }
    }
    layer_overrides(&mut config, architecture)?;
    count_layers(&mut config)?;
    architecture.defaults.iter().for_each(|(key, value)| config.add_missing(key, (*value).into()));
    let (activation, functions) = architecture.activation;
    config.refuse(activation, &functions.iter().map(|&name| name.into()).collect::<Vec<_>>())?;
    let (width, heads) = (config.count("hidden_size")?, config.count("num_attention_heads")?);
    // The sizes of heads with a shared latent do not follow from the width. Layers without a window may have larger heads.
    let mut sizes = Vec::new();
    for field in [GLOBAL_HEAD, "head_dim", "qk_rope_head_dim"] {
        sizes.extend(config.find_count(field)?);
    }
    let head_dimensions = match sizes.first() {
        Some(values) => *values,
        None if width.is_multiple_of(heads) => width / heads,
        None => {
            let why = format!("{heads} heads do not divide a width of {width}, and there is no head_dim");
            return Err(ModelError::Hyperparameter { key: config.in_file("num_attention_heads"), why });
        }
    };
    let mut extras = Extras::default();
    let plain =
        Rope { dimensions: head_dimensions, pairing: architecture.checkpoint_pairing, ..Rope::plain() };
    let rope = ropes(&config, plain, architecture.has_partial_rotation, &mut extras)?;
    let mut hyperparameters = Hyperparameters {
        architecture: architecture.name.to_owned(),
        name: None,
        layers: config.count("num_hidden_layers")?,
        context: config.count("max_position_embeddings")?,
        width,
        feed_forward: config.count("intermediate_size")?,
        heads,
        kv_heads: config.find_count("num_key_value_heads")?.unwrap_or(heads),
        head_dimensions,
        rope,
        epsilon: config.float(architecture.epsilon)?,
        vocabulary: config.count("vocab_size")?,
        extras,
    };
    let keys = Keys::of_config(&config);
    keys.biases(&mut hyperparameters, architecture.biases)?;
    (architecture.read)(&keys, &mut hyperparameters)?;
    keys.check_all_read()?;
    hyperparameters
        .check_shape(["num_key_value_heads", "head_dim", "head_dim"].map(|key| config.in_file(key)))?;
    Ok((architecture, hyperparameters, config.flag("tie_word_embeddings")?.unwrap_or(false)))
}

/// Returns the fields of the text part of a multimodal model. Older files have them among the others.
fn text_part(config: Fields) -> Result<Fields, FormatError> {
    const TIED: &str = "tie_word_embeddings";
    let Some(mut text) = config.object("text_config")? else {
        return if config.find("hidden_size").is_some() {
            Ok(config)
        } else {
            Err(config.missing("text_config"))
        };
    };
    if config.flag(TIED)? == Some(true) {
        text.set(TIED, true.into());
    }
    Ok(text)
}

/// Field for the size of heads in layers without a window, if it differs from that in other layers.
const GLOBAL_HEAD: &str = "global_head_dim";

/// Replaces the overrides of layers that version 5 of `transformers` writes by the fields of published files, which apply to
/// all layers without a window.
fn layer_overrides(config: &mut Fields, architecture: &Architecture) -> Result<(), ModelError> {
    const KEY: &str = "per_layer_config";
    let Some(layers) = config.object(KEY)? else { return Ok(()) };
    let of_layer = |layer: Fields| -> Result<_, ModelError> {
        Ok([layer.find_count("head_dim")?, layer.find_count("num_key_value_heads")?])
    };
    let all = layers.objects().map(|layer| of_layer(layer?)).collect::<Result<Vec<_>, _>>()?;
    let Some(one) = all.first() else { return Ok(()) };
    let has_field = architecture.defaults.iter().any(|(key, _)| *key == GLOBAL_HEAD);
    if !has_field || all.iter().any(|other| other != one) {
        let what = format!("different settings of layers ({})", config.in_file(KEY));
        return Err(ModelError::Unsupported { what });
    }
    for (field, count) in [GLOBAL_HEAD, "num_global_key_value_heads"].into_iter().zip(one) {
        if let Some(count) = count {
            config.set(field, (*count).into());
        }
    }
    Ok(())
}

/// Sets the number of layers of files that only list their kinds.
fn count_layers(config: &mut Fields) -> Result<(), FormatError> {
    if let Some(kinds) = config.texts("layers_block_type")? {
        config.add_missing("num_hidden_layers", kinds.len().into());
    }
    Ok(())
}

/// Returns the settings of quantized weights, if there are any.
pub(super) fn quantization(directory: &Directory) -> Result<Option<Quantization>, ModelError> {
    directory.file(CONFIG).map_or(Ok(None), |source| Quantization::read(&Fields::read(source.as_ref())?))
}

/// Returns the weight type that `config.json` specifies under `torch_dtype`, or under `dtype` in newer files.
pub(super) fn tensor_type(directory: &Directory) -> Result<TensorType, ModelError> {
    let config = Fields::read(directory.required(CONFIG)?.as_ref())?;
    if Quantization::read(&config)?.is_some() {
        return Err(ModelError::UntypedMatrices { file: CONFIG });
    }
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

/// Reads the RoPE settings of all layers, and of windowed layers if they have their own. `rope_parameters`
/// may hold one object per type of layer. Older files have a base of the windowed layers instead.
fn ropes(config: &Fields, plain: Rope, is_partial: bool, extras: &mut Extras) -> Result<Rope, ModelError> {
    const PART: &str = "partial_rotary_factor";
    const WINDOWED_BASE: &str = "rope_local_base_freq";
    let whole = [Value::from(1), Value::from(1.0)];
    for object in ["rope_parameters", "rope_scaling"].into_iter().filter(|_| !is_partial) {
        config.refuse(PART, &whole)?;
        config.object(object)?.iter().try_for_each(|found| found.refuse(PART, &whole))?;
    }
    let parameters = config.object("rope_parameters")?;
    let of_kind = |kind| parameters.as_ref().map_or(Ok(None), |all| all.object(kind));
    if let Some(windowed) = of_kind("sliding_attention")? {
        let windowed = rope(config, Some(&windowed), WINDOWED_BASE, plain, extras)?;
        if windowed.depends_on_length() {
            let what = format!("rotary scaling by length in layers with a window ({CONFIG})");
            return Err(ModelError::Unsupported { what });
        }
        extras.windowed_rope = Some(windowed);
    } else if let Some(base) = config.find_float(WINDOWED_BASE)? {
        extras.windowed_rope = Some(Rope { base, ..plain });
    }
    let full = match of_kind("full_attention")? {
        Some(full) => Some(full),
        None => parameters,
    };
    // Files with both objects exist. `transformers` reads the older one.
    let scaling = config.object("rope_scaling")?.or(full);
    rope(config, scaling.as_ref(), "rope_theta", plain, extras)
}

/// Reads RoPE settings from an object of `config.json`. The part that rotates and the original context may
/// also be outside of the object, and so may the base, under the key `outer_base`.
fn rope(
    config: &Fields,
    scaling: Option<&Fields>,
    outer_base: &str,
    plain: Rope,
    extras: &mut Extras,
) -> Result<Rope, ModelError> {
    let float = |key: &str, outer: &str| match scaling.map(|s| s.find_float(key)).transpose()?.flatten() {
        Some(found) => Ok::<_, ModelError>(Some(found)),
        None => config.find_float(outer),
    };
    let part = float("partial_rotary_factor", "partial_rotary_factor")?.unwrap_or(1.0).min(1.0);
    let whole = plain.dimensions;
    let plain = Rope {
        base: float("rope_theta", outer_base)?.unwrap_or(plain.base),
        dimensions: (f64::from(plain.dimensions) * f64::from(part)) as u32,
        ..plain
    };
    let Some(scaling) = scaling else { return Ok(plain) };
    let kind = match scaling.text("rope_type")? {
        Some(kind) => kind,
        None => match scaling.text("type")? {
            Some(kind) => kind,
            None if scaling.find("factor").is_none() => "default",
            None => return Err(scaling.missing("rope_type").into()),
        },
    };
    match kind {
        // In text, all sections of a head have the same position.
        "default" | "mrope" => Ok(plain),
        "dynamic" => {
            let original_context = config.count("max_position_embeddings")?;
            let dynamic = DynamicScaling { factor: scaling.float("factor")?, original_context };
            Ok(Rope { dynamic: Some(dynamic), ..plain })
        }
        "linear" => Ok(Rope { scale: scaling.float("factor")?, ..plain }),
        // Only the first pairs of a head rotate, as if all did.
        "proportional" => {
            let factors =
                RopeFactors::Proportional { pairs: (f64::from(whole) * f64::from(part) / 2.0) as u32 };
            let scale = scaling.find_float("factor")?.unwrap_or(1.0);
            Ok(Rope { dimensions: whole, factors, scale, ..plain })
        }
        "llama3" => Ok(Rope { llama3: Some(llama3(config, scaling)?), ..plain }),
        "yarn" => yarn(config, scaling, plain),
        "longrope" | "su" => {
            let (rope, factors) = longrope(config, scaling, plain)?;
            extras.rope_factors = Some(factors);
            Ok(rope)
        }
        other => {
            let what = format!("rotary scaling of type \"{}\" ({CONFIG})", Quoted(other));
            Err(ModelError::Unsupported { what })
        }
    }
}

/// Returns the context before scaling, and the factor between both contexts.
fn contexts(config: &Fields, scaling: &Fields) -> Result<(u32, f32), ModelError> {
    const KEY: &str = "original_max_position_embeddings";
    let context = config.count("max_position_embeddings")?;
    // Phi-3 has the field outside of the object, where it takes precedence.
    let original = match config.find_count(KEY)? {
        Some(found) => found,
        None => scaling.find_count(KEY)?.unwrap_or(context),
    };
    let factor = scaling.find_float("factor")?.unwrap_or(context as f32 / original as f32);
    Ok((original, factor))
}

fn yarn(config: &Fields, scaling: &Fields, plain: Rope) -> Result<Rope, ModelError> {
    let (original_context, factor) = contexts(config, scaling)?;
    let all = [scaling.find_float("mscale")?, scaling.find_float("mscale_all_dim")?];
    let magnitude = match (scaling.find_float("attention_factor")?, all) {
        (Some(given), _) => given,
        (None, [Some(one), Some(all)]) => {
            let scaled = |weight: f32| 1.0 + weight * (Yarn::magnitude(factor) - 1.0);
            scaled(one) / scaled(all)
        }
        _ => Yarn::magnitude(factor),
    };
    let yarn = Yarn {
        factor,
        original_context,
        beta_fast: scaling.find_float("beta_fast")?.unwrap_or(32.0),
        beta_slow: scaling.find_float("beta_slow")?.unwrap_or(1.0),
        truncate: scaling.flag("truncate")?.unwrap_or(true),
    };
    Ok(Rope { yarn: Some(yarn), magnitude, ..plain })
}

/// Returns the settings, and the factors for short and for long contexts.
fn longrope(config: &Fields, scaling: &Fields, plain: Rope) -> Result<(Rope, [Vec<f32>; 2]), ModelError> {
    let (original_context, factor) = contexts(config, scaling)?;
    let factors = |key: &str| {
        let factors = scaling.floats(key)?.ok_or_else(|| scaling.missing(key))?;
        let wrong = factors.iter().find(|factor| !(factor.is_finite() && **factor > 0.0));
        let why = match wrong {
            Some(wrong) => format!("{wrong} is not finite and positive"),
            None if factors.len() == plain.dimensions as usize / 2 => return Ok(factors),
            None => format!("{} factors for {} rotating dimensions", factors.len(), plain.dimensions),
        };
        Err(ModelError::Hyperparameter { key: scaling.in_file(key), why })
    };
    let magnitude = match scaling.find_float("attention_factor")? {
        Some(given) => given,
        None if factor <= 1.0 => 1.0,
        None => (1.0 + factor.ln() / (original_context as f32).ln()).sqrt(),
    };
    let rope = Rope { factors: RopeFactors::ByContext { original_context }, magnitude, ..plain };
    Ok((rope, [factors("short_factor")?, factors("long_factor")?]))
}

fn llama3(config: &Fields, scaling: &Fields) -> Result<Llama3Scaling, ModelError> {
    let found = Llama3Scaling {
        factor: scaling.float("factor")?,
        low_frequency_factor: scaling.float("low_freq_factor")?,
        high_frequency_factor: scaling.float("high_freq_factor")?,
        original_context: contexts(config, scaling)?.0,
    };
    if found.low_frequency_factor > found.high_frequency_factor {
        let why = format!(
            "{} is below low_freq_factor, {}",
            found.high_frequency_factor, found.low_frequency_factor
        );
        return Err(ModelError::Hyperparameter { key: scaling.in_file("high_freq_factor"), why });
    }
    Ok(found)
}
