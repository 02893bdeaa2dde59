//! Tests synthetic models. Checks that Ragtag can read them, that the same arguments produce the same bytes,
//! and that the weights have plausible means and standard deviations.

use super::*;
use ragtag_graph::{MemorySource, ModelFile, Tokenizer};
use ragtag_kernels::blocks::dequantise;
use std::sync::Arc;

fn made(shape: &Shape, seed: u64) -> (Vec<u8>, ModelFile) {
    let mut bytes = Vec::new();
    let written = write(&mut bytes, shape, &shape.tensors().unwrap(), seed).unwrap();
    assert_eq!(written, bytes.len() as u64);
    let model = ModelFile::open(vec![Arc::new(MemorySource::new("synthetic", bytes.clone()))]).unwrap();
    (bytes, model)
}

fn tiny(architecture: Architecture, tensor_type: TensorType) -> Shape {
    let base = Preset::Tiny.shape();
    let experts = if [Architecture::Llama, Architecture::Bitnet].contains(&architecture) { 0 } else { 4 };
    let head_width = if architecture == Architecture::Deepseek2 { 128 } else { base.head_width };
    Shape { architecture, tensor_type, experts, used_experts: experts / 2, head_width, ..base }
}

#[test]
fn every_type_and_architecture_opens_with_the_declared_tensors() {
    for tensor_type in TensorType::in_gguf() {
        use Architecture::{Bitnet, Deepseek2, GptOss, Llama, Qwen3Moe};
        for architecture in [Llama, Bitnet, Qwen3Moe, Deepseek2, GptOss] {
            let shape = tiny(architecture, tensor_type);
            let (_, model) = made(&shape, 1);
            let tensors = shape.tensors().unwrap();
            assert_eq!(model.weights.tensors().len(), tensors.len());
            for (read, announced) in model.weights.tensors().iter().zip(&tensors) {
                assert_eq!(
                    (&read.name, &read.shape, read.bytes),
                    (&announced.name, &announced.shape, announced.bytes)
                );
            }
            let bitnet = architecture == Architecture::Bitnet;
            assert_eq!(model.weights.tensor("output.weight").is_none(), bitnet);
            assert_eq!(model.weights.tensor("blk.1.ffn_sub_norm.weight").is_some(), bitnet);
            assert_eq!(model.weights.tensor("blk.0.attn_q.weight").unwrap().tensor_type, shape.dense_type());
            let ones = model.weights.bytes(model.weights.tensor("output_norm.weight").unwrap()).unwrap();
            assert!(ones.chunks(4).all(|one| one == 1f32.to_le_bytes()));
        }
    }
}

#[test]
fn the_seed_determines_the_bytes() {
    let shape = tiny(Architecture::Llama, TensorType::Q4_0);
    let (first, model) = made(&shape, 1);
    assert!(first == made(&shape, 1).0);
    assert!(first != made(&shape, 2).0);
    let bytes = |name| model.weights.bytes(model.weights.tensor(name).unwrap()).unwrap();
    assert!(bytes("blk.0.attn_q.weight") != bytes("blk.1.attn_q.weight"));
}

#[test]
fn the_vocabulary_tokenises_text() {
    for (preset, size) in [(Preset::Tiny, 512), (Preset::Tiny, 260), (Preset::M300, 32000)] {
        let mut header = Writer::new();
        vocabulary::describe(&mut header, size);
        let model =
            ModelFile::open(vec![Arc::new(MemorySource::new("vocabulary", header.header()))]).unwrap();
        let tokenizer = Tokenizer::from_metadata(&model.metadata).unwrap();
        assert_eq!(tokenizer.vocabulary_size(), size as usize, "{preset:?}");
        let text = "Once upon a time, in 1884 – say it ▁twice▁?".replace('▁', " ");
        let ids = tokenizer.encode(&text, true).unwrap();
        assert_eq!(tokenizer.decode(&ids), text);
        assert!(ids.iter().all(|id| *id < size));
        // The vocabulary contains words, so a text has fewer tokens than characters.
        assert!(size < 30000 || ids.len() * 3 < text.len() * 2, "{} tokens", ids.len());
    }
}

/// Returns the mean and standard deviation of a tensor's values. Dequantises the tensor with an independent
/// implementation of ggml's formulas.
fn moments(tensor_type: TensorType, bytes: &[u8]) -> (f64, f64) {
    let count = bytes.len() / tensor_type.block_bytes() * tensor_type.block_values();
    let mut values = vec![0.0; count];
    dequantise(tensor_type, bytes, &mut values).unwrap();
    assert!(values.iter().all(|v| v.is_finite()));
    let mean = |of: &dyn Fn(f64) -> f64| values.iter().map(|v| of((*v).into())).sum::<f64>() / count as f64;
    let middle = mean(&|v| v);
    (middle, mean(&|v| (v - middle).powi(2)).sqrt())
}

#[test]
fn weights_have_mean_zero_and_the_deviation_that_keeps_activations() {
    for tensor_type in TensorType::in_gguf() {
        let (_, model) = made(&tiny(Architecture::Llama, tensor_type), 3);
        for (name, expected) in
            [("blk.0.ffn_up.weight", 1.0 / 16.0), ("blk.0.ffn_down.weight", 0.5 / 512f64.sqrt())]
        {
            let bytes = model.weights.bytes(model.weights.tensor(name).unwrap()).unwrap();
            let (mean, deviation) = moments(tensor_type, &bytes);
            assert!(mean.abs() < 0.05 * expected, "{tensor_type} {name}: mean {mean}, deviation {deviation}");
            // The scales of MXFP4 are powers of two.
            let most = if tensor_type == TensorType::MXFP4 { std::f64::consts::SQRT_2 - 1.0 } else { 0.05 };
            assert!(
                (deviation / expected - 1.0).abs() < most,
                "{tensor_type} {name}: {deviation}, not {expected}"
            );
        }
    }
}

#[test]
fn impossible_shapes_are_refused() {
    let base = Preset::Tiny.shape();
    let fails = |shape: Shape| shape.tensors().unwrap_err();
    assert!(fails(Shape { head_width: 3, ..base.clone() }).contains("heads of an even width"));
    assert!(fails(Shape { experts: 4, used_experts: 2, ..base.clone() }).contains("gpt-oss need experts"));
    let mixture = tiny(Architecture::Qwen3Moe, TensorType::Q8_0);
    assert!(fails(Shape { used_experts: 5, ..mixture }).contains("5 of 4 experts"));
    assert!(fails(Shape { kv_heads: 3, ..base.clone() }).contains("share 3 kv-heads"));
    assert!(fails(Shape { layers: 0, ..base.clone() }).contains("must be positive"));
    assert!(fails(Shape { vocabulary: 259, ..base.clone() }).contains("260 tokens"));
    assert!(fails(Shape { ffn: 500, ..base }).contains("rows of 500 cannot be split into blocks of 32"));
}

#[test]
fn presets_have_the_sizes_in_their_names() {
    for (preset, millions) in [
        (Preset::M300, 290..310),
        (Preset::B1_1, 1090..1110),
        (Preset::DeepseekV2Lite, 16_150..16_250),
        (Preset::GptOss20, 20_850..20_950),
        (Preset::Qwen35B27, 26_800..27_000),
        (Preset::Qwen35B35A3, 34_500..34_800),
    ] {
        let tensors = preset.shape().tensors().unwrap();
        let values: u64 = tensors.iter().map(Tensor::values).sum();
        assert!(millions.contains(&(values / 1_000_000)), "{preset:?}: {values}");
    }
}
