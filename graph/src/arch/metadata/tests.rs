//! Tests of the hyperparameters from small handmade files, and of the RoPE frequencies computed from them.

use super::*;
use crate::arch::hyperparameters::LARGEST;
use crate::arch::{LayerSet, RopePairing, RopeScaling};
use crate::gguf::{ModelFile, ToValue, Writer};
use crate::source::MemorySource;
use crate::weights::TensorInfo;
use ragtag_kernels::TensorType;
use std::sync::Arc;

/// Reads the hyperparameters of a Llama model with two heads of 16 elements, two layers and a vocabulary of 8
/// tokens. `more` adds metadata keys.
fn read(more: impl FnOnce(&mut Writer)) -> Result<Hyperparameters, ModelError> {
    read_as("llama", more)
}

/// Like [`read`], for another architecture.
fn read_as(architecture: &str, more: impl FnOnce(&mut Writer)) -> Result<Hyperparameters, ModelError> {
    let mut w = Writer::new();
    w.put("general.architecture", architecture);
    w.put(&format!("{architecture}.attention.layer_norm_rms_epsilon"), 1e-5f32);
    for (key, value) in [
        ("block_count", 2u32),
        ("context_length", 128),
        ("embedding_length", 32),
        ("feed_forward_length", 64),
        ("attention.head_count", 2),
    ] {
        w.put(&format!("{architecture}.{key}"), value);
    }
    more(&mut w);
    let source = Arc::new(MemorySource::new("m.gguf", w.header()));
    let metadata = ModelFile::open(vec![source])?.metadata;
    let (name, shape) = ("token_embd.weight".into(), vec![32, 8]);
    let table = TensorInfo { name, tensor_type: TensorType::F32, shape, shard: 0, offset: 0, bytes: 1024 };
    Hyperparameters::read(Architecture::find(architecture)?, &metadata, &Weights::new(vec![], vec![table])?)
}

fn with(key: &str, value: impl ToValue) -> Result<Hyperparameters, ModelError> {
    read(|w| w.put(&format!("llama.{key}"), value))
}

#[track_caller]
fn assert_close(found: &[f32], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!((f64::from(*found) / expected - 1.0).abs() < 1e-6, "{found} for {expected}");
    }
}

#[test]
fn rope_factors_divide_the_frequencies() {
    let h = read(|_| ()).unwrap();
    let plain =
        [1.0, 10f64.powf(-0.5), 0.1, 10f64.powf(-1.5), 0.01, 10f64.powf(-2.5), 0.001, 10f64.powf(-3.5)];
    assert_close(&h.rope.frequencies(None), &plain);
    let factors = [1.0, 1.0, 2.0, 4.0, 8.0, 8.0, 16.0, 0.5];
    let divided: Vec<f64> = plain.iter().zip(factors).map(|(f, factor)| f / factor).collect();
    assert_close(&h.rope.frequencies(Some(&factors.map(|factor| factor as f32))), &divided);
}

#[test]
fn linear_scaling_divides_positions() {
    let scaled = |kind: Option<&str>| {
        read(|w| {
            w.put("llama.rope.scaling.factor", 4f32);
            kind.iter().for_each(|kind| w.put("llama.rope.scaling.type", *kind));
        })
    };
    let plain = read(|_| ()).unwrap().rope.frequencies(None);
    for (kind, divisor) in [(None, 4.0), (Some("linear"), 4.0), (Some("none"), 1.0)] {
        let h = scaled(kind).unwrap();
        assert_eq!(h.rope.scale, divisor, "{kind:?}");
        let expected: Vec<f64> = plain.iter().map(|f| f64::from(*f) / f64::from(divisor)).collect();
        assert_close(&h.rope.frequencies(None), &expected);
    }
    let message = scaled(Some("spiral")).unwrap_err().to_string();
    assert!(message.contains("rotary scaling of type \"spiral\" (llama.rope.scaling.type)"), "{message}");
    let message = scaled(Some("longrope")).unwrap_err().to_string();
    assert!(message.contains("rope_factors_long.weight"), "{message}");
}

/// Compares the frequencies of YaRN with those from the formulas of its paper.
#[test]
fn yarn_blends_frequencies() {
    let h = read(|w| {
        w.put("llama.rope.scaling.type", "yarn");
        w.put("llama.rope.scaling.factor", 4f32);
        w.put("llama.rope.scaling.original_context_length", 1024u32);
    });
    let rope = h.unwrap().rope;
    assert!((rope.magnitude - (0.1 * 4f32.ln() + 1.0)).abs() < 1e-6);
    // Pairs 1.4 and 4.4 turn 32 times and once within 1024 positions. The bounds are pairs 1 and 5.
    let plain = |pair: i32| 10_000f64.powf(-f64::from(pair) / 8.0);
    let kept = [1.0, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0, 0.0];
    let expected: Vec<f64> =
        (0..8).zip(kept).map(|(pair, kept)| plain(pair) * (kept + (1.0 - kept) / 4.0)).collect();
    assert_close(&rope.frequencies(None), &expected);
}

/// Checks that the magnitude in a file replaces the usual one, as `attention_factor` does in `config.json`.
#[test]
fn the_magnitude_of_yarn_comes_from_the_file() {
    let yarn = |key: &str, value: f32| {
        read(|w| {
            w.put("llama.rope.scaling.type", "yarn");
            w.put("llama.rope.scaling.factor", 4f32);
            w.put(&format!("llama.rope.scaling.{key}"), value);
        })
    };
    let magnitude = |key: &str, value: f32| yarn(key, value).unwrap().rope.magnitude;
    assert_eq!(magnitude("yarn_attn_factor", 1.25), 1.25);
    assert_eq!(magnitude("attn_factor", 1.25), 1.25 * Yarn::magnitude(4.0));
    assert_eq!(magnitude("yarn_ext_factor", 1.0), Yarn::magnitude(4.0));
    let message = yarn("yarn_ext_factor", 0.5).unwrap_err().to_string();
    assert!(message.contains("llama.rope.scaling.yarn_ext_factor = 0.5"), "{message}");
    // Files of architectures with another formula have this key.
    let message = yarn("yarn_log_multiplier", 0.1).unwrap_err().to_string();
    assert!(message.contains("llama.rope.scaling.yarn_log_multiplier"), "{message}");
}

#[test]
fn some_keys_change_only_some_architectures() {
    let granite = |rotates: bool| read_as("granite", |w| w.put("granite.rope.scaling.finetuned", rotates));
    assert_eq!(granite(false).unwrap().extras.unrotated_layers, LayerSet::All);
    assert_eq!(granite(true).unwrap().extras.unrotated_layers, LayerSet::None);
    assert_eq!(with("rope.scaling.finetuned", false).unwrap().extras.unrotated_layers, LayerSet::None);
    let glm4 = |sections: &[i32]| read_as("glm4", |w| w.put("glm4.rope.dimension_sections", sections));
    assert_eq!(glm4(&[2, 3, 3, 0]).unwrap().rope.pairing, RopePairing::Halves);
    assert_eq!(glm4(&[8, 0, 0, 0]).unwrap().rope.pairing, RopePairing::Interleaved);
}

/// Checks that a requested scaling has the effect of the same scaling in the file.
#[test]
fn a_requested_scaling_replaces_that_of_the_file() {
    let file = |kind: &str, factor: f32, context: u32| {
        let read = read(|w| {
            w.put("llama.rope.scaling.type", kind);
            w.put("llama.rope.scaling.factor", factor);
            w.put("llama.rope.scaling.original_context_length", context);
        });
        read.unwrap()
    };
    let requested = |mut h: Hyperparameters, scaling: RopeScaling| {
        scaling.apply(&mut h);
        (h.rope, h.context)
    };
    let plain = || read(|_| ()).unwrap();
    let yarn = file("yarn", 4.0, 128).rope;
    assert_eq!(requested(plain(), RopeScaling::Yarn(4.0)), (yarn, 512));
    // The file's context of 128 tokens is already scaled.
    for file in [file("yarn", 16.0, 32), file("linear", 4.0, 32)] {
        assert_eq!(requested(file, RopeScaling::Yarn(4.0)).1, 128);
    }
    assert_eq!(requested(file("yarn", 16.0, 32), RopeScaling::Yarn(4.0)).0, file("yarn", 4.0, 32).rope);
    let linear = file("linear", 2.0, 128).rope;
    assert_eq!(requested(file("yarn", 16.0, 32), RopeScaling::Linear(2.0)), (linear, 64));
    assert_eq!(requested(plain(), RopeScaling::Linear(1.0)), (plain().rope, 128));
}

#[test]
fn windows_come_from_the_file() {
    let h = with("attention.sliding_window", 7u32).unwrap();
    assert_eq!((h.extras.window, h.extras.windowed_layers), (Some(7), LayerSet::All));
    let h = with("attention.sliding_window", 0u32).unwrap();
    assert_eq!((h.extras.window, h.extras.windowed_layers), (None, LayerSet::None));
    let listed = |layers: &[bool]| {
        read(|w| {
            w.put("llama.attention.sliding_window", 7u32);
            w.put("llama.attention.sliding_window_pattern", layers);
        })
    };
    let layers = listed(&[false, true]).unwrap().extras.windowed_layers;
    assert_eq!([0, 1].map(|layer| layers.contains(layer)), [false, true]);
    let message = listed(&[true]).unwrap_err().to_string();
    assert!(message.contains("llama.attention.sliding_window_pattern: 1 layers instead of 2"), "{message}");
}

#[test]
fn unknown_keys_are_errors() {
    let message = with("attention.sinks", 1u32).unwrap_err().to_string();
    assert!(message.starts_with("key llama.attention.sinks is not part of this architecture"), "{message}");
    // Other architectures read this key.
    let message = with("final_logit_softcapping", 30f32).unwrap_err().to_string();
    assert!(message.contains("llama.final_logit_softcapping"), "{message}");
    assert!(with("vocab_size", 8u32).is_ok());
}

/// Checks that the exponents of the frequencies span only the rotating dimensions, not the whole head.
#[test]
fn partial_rotation_spreads_the_frequencies_over_the_rotating_values() {
    let h = with("rope.dimension_count", 8u32).unwrap();
    assert_eq!((h.rope.dimensions, h.head_dimensions), (8, 16));
    assert_close(&h.rope.frequencies(None), &[1.0, 0.1, 0.01, 0.001]);
}

#[test]
fn missing_values_follow_from_others() {
    let h = read(|_| ()).unwrap();
    assert_eq!((h.kv_heads, h.head_dimensions, h.rope.dimensions), (2, 16, 16));
    assert_eq!((h.rope.base, h.rope.scale, h.vocabulary), (10_000.0, 1.0, 8));
    assert_eq!((h.name, h.rope.llama3, h.rope.factors), (None, None, RopeFactors::None));
    assert_eq!(with("rope.freq_base", 500_000f32).unwrap().rope.base, 500_000.0);
    assert_eq!(with("attention.head_count_kv", 1u32).unwrap().kv_heads, 1);
}

#[test]
fn rejects_inconsistent_values() {
    let fails = |key: &str, value: u32| with(key, value).unwrap_err().to_string();
    assert!(fails("attention.head_count_kv", 3).contains("2 heads cannot share 3 key-value heads"));
    assert!(fails("rope.dimension_count", 7).contains("7 of 16 dimensions cannot rotate"));
    assert!(fails("rope.dimension_count", 18).contains("18 of 16 dimensions cannot rotate"));
    assert!(fails("attention.value_length", 8).contains("attention.value_length other than the key length"));
    let message = with("attention.causal", false).unwrap_err().to_string();
    assert!(message.contains("attention to later tokens (llama.attention.causal)"), "{message}");
    assert!(fails("expert_count", 1).contains("llama.expert_used_count"));
}

#[test]
fn accepts_values_at_their_limits() {
    assert_eq!(with("rope.dimension_count", 16u32).unwrap().rope.dimensions, 16);
    assert_eq!(with("attention.value_length", 16u32).unwrap().head_dimensions, 16);
    assert!(with("expert_count", 0u32).is_ok());
    assert!(with("attention.causal", true).is_ok());
    // Two heads of `LARGEST / 2` values reach the limit of 2^24 exactly.
    assert_eq!(with("attention.key_length", LARGEST / 2).unwrap().head_dimensions, LARGEST / 2);
    let message = with("attention.key_length", LARGEST / 2 + 2).unwrap_err().to_string();
    assert!(message.contains("llama.attention.key_length: 2 heads of 8388610"), "{message}");
}

#[test]
fn text_parts_of_multimodal_models_have_other_names() {
    for (multimodal, own) in [("qwen2vl", "qwen2"), ("qwen3vl", "qwen3")] {
        let read = |name: &str| {
            read_as(name, |w| {
                w.put(&format!("{name}.rope.dimension_sections"), &[2u32, 3, 3, 0][..]);
                w.put(&format!("{name}.n_deepstack_layers"), 3u32);
            })
        };
        assert_eq!(read(multimodal).unwrap(), read_as(own, |_| ()).unwrap());
        assert!(read(own).unwrap_err().to_string().contains("is not part of this architecture"));
    }
}

#[test]
fn counts_of_layers_may_be_lists() {
    let heads = |list: &[u32]| with("attention.head_count_kv", list);
    let found = |list: &[u32]| {
        let h = heads(list).unwrap();
        (h.kv_heads, h.extras.layer_kv_heads)
    };
    assert_eq!((found(&[2, 1]), found(&[2, 2])), ((1, vec![2, 1]), (2, vec![])));
    // 0 stands for layers that need none.
    assert_eq!(found(&[0, 2]), (2, vec![]));
    for (list, message) in [
        (&[2u32][..], "1 layers instead of 2"),
        (&[u32::MAX, 1], "is not in 1"),
        (&[3, 1], "2 heads cannot share 3 key-value heads"),
    ] {
        let found = heads(list).unwrap_err().to_string();
        assert!(found.contains(message) && found.contains("llama.attention.head_count_kv"), "{found}");
    }
}

#[test]
fn layers_share_keys_and_values_with_layers_of_their_kind() {
    let shared = |windowed: [bool; 2], count: u32| {
        read_as("gemma4", |w| {
            w.put("gemma4.attention.sliding_window", 8u32);
            w.put("gemma4.attention.sliding_window_pattern", &windowed[..]);
            w.put("gemma4.attention.shared_kv_layers", count);
        })
    };
    let h = shared([false; 2], 1).unwrap();
    assert_eq!((h.extras.kv_layer(0), h.extras.kv_layer(1), h.blocks()), (Some(0), Some(0), 1));
    let h = shared([true, false], 0).unwrap();
    assert_eq!((h.extras.kv_layer(0), h.extras.kv_layer(1), h.blocks()), (Some(0), Some(1), 2));
    for (windowed, count) in [([true, false], 1), ([false; 2], 2), ([false; 2], u32::MAX)] {
        let message = shared(windowed, count).unwrap_err().to_string();
        assert!(message.contains("gemma4.attention.shared_kv_layers"), "{message}");
    }
    let wide = read_as("gemma4", |w| w.put("gemma4.embedding_length_per_layer_input", u32::MAX));
    let message = wide.unwrap_err().to_string();
    assert!(message.contains("gemma4.embedding_length_per_layer_input"), "{message}");
}

#[test]
fn numbers_of_xielu_are_those_of_each_layer() {
    let numbers = |first: &[f32]| {
        read_as("apertus", |w| {
            w.put("xielu.alpha_p", first);
            w.put("xielu.alpha_n", &[0.5f32, 0.25][..]);
            w.put("xielu.beta", 0.5f32);
            w.put("xielu.eps", &[-1e-6f32; 2][..]);
        })
    };
    let h = numbers(&[1.0, 2.0]).unwrap();
    assert_eq!(h.extras.xielu, [[1.0, 0.5, 0.5, -1e-6], [2.0, 0.25, 0.5, -1e-6]]);
    for (wrong, message) in
        [(&[1.0f32][..], "1 layers instead of 2"), (&[1.0, f32::NAN], "NaN is not finite")]
    {
        let found = numbers(wrong).unwrap_err().to_string();
        assert!(found.contains("xielu.alpha_p") && found.contains(message), "{found}");
    }
    let missing = read_as("apertus", |_| ()).unwrap_err().to_string();
    assert!(missing.contains("xielu.alpha_p"), "{missing}");
}

/// Checks that dimensions that do not rotate stay so with another scaling.
#[test]
fn a_requested_scaling_keeps_proportional_rotation() {
    let mut h = read_as("gemma4", |w| w.put("gemma4.attention.sliding_window", 8u32)).unwrap();
    h.rope.factors = RopeFactors::Proportional { pairs: 2 };
    RopeScaling::Yarn(4.0).apply(&mut h);
    let frequencies = h.rope.frequencies(None);
    assert!(frequencies[..2].iter().all(|frequency| *frequency > 0.0), "{frequencies:?}");
    assert!(frequencies[2..].iter().all(|frequency| *frequency == 0.0), "{frequencies:?}");
}
