//! Checks that the written models can be read, are reproducible, and have plausible weights.

use super::*;
use half::f16;
use ragtag_graph::{MemorySource, ModelFile, Tokenizer};
use std::sync::Arc;

fn made(shape: &Shape, seed: u64) -> (Vec<u8>, ModelFile) {
    let mut bytes = Vec::new();
    let written = write(&mut bytes, shape, &shape.tensors().unwrap(), seed).unwrap();
    assert_eq!(written, bytes.len() as u64);
    let model = ModelFile::open(vec![Arc::new(MemorySource::new("synthetic", bytes.clone()))]).unwrap();
    (bytes, model)
}

fn tiny(architecture: Architecture, tensor_type: TensorType) -> Shape {
    Shape { architecture, tensor_type, ..Preset::Tiny.shape() }
}

#[test]
fn every_type_and_architecture_opens_with_the_declared_tensors() {
    for tensor_type in TensorType::ALL {
        for architecture in [Architecture::Llama, Architecture::Bitnet] {
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
            assert_eq!(model.weights.tensor("blk.0.attn_q.weight").unwrap().tensor_type, tensor_type);
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

/// Returns the mean and standard deviation of a tensor, dequantised by an independent implementation of
/// ggml's formulas.
fn moments(tensor_type: TensorType, bytes: &[u8]) -> (f64, f64) {
    let half = |b: &[u8]| f16::from_le_bytes([b[0], b[1]]).to_f64();
    let mut values: Vec<f64> = Vec::new();
    for block in bytes.chunks_exact(tensor_type.block_bytes()) {
        match tensor_type {
            TensorType::F32 => values.push(f32::from_le_bytes(block.try_into().unwrap()).into()),
            TensorType::F16 => values.push(half(block)),
            TensorType::BF16 => values.push(half::bf16::from_le_bytes(block.try_into().unwrap()).into()),
            TensorType::Q8_0 => {
                values.extend(block[2..].iter().map(|q| f64::from(q.cast_signed()) * half(block)))
            }
            TensorType::Q4_0 => values.extend(
                block[2..].iter().flat_map(|q| [q & 15, q >> 4]).map(|q| (f64::from(q) - 8.0) * half(block)),
            ),
            TensorType::Q4_1 => {
                let quanta = block[4..].iter().flat_map(|q| [q & 15, q >> 4]);
                values.extend(quanta.map(|q| f64::from(q) * half(block) + half(&block[2..])));
            }
            TensorType::Q5_0 => {
                values.extend(quanta5(&block[2..]).map(|q| (q - 16.0) * half(block)));
            }
            TensorType::Q5_1 => {
                values.extend(quanta5(&block[4..]).map(|q| q * half(block) + half(&block[2..])));
            }
            TensorType::Q4_K => q4_k(block, half(block), half(&block[2..]), &mut values),
            TensorType::Q6_K => q6_k(block, half(&block[208..]), &mut values),
            TensorType::Q5_K => q5_k(block, half(block), half(&block[2..]), &mut values),
            TensorType::TQ1_0 => {
                // The last four bytes hold only four digits each.
                let digits = |bytes, n| ternary(bytes, n).map(|digit| (digit - 1.0) * half(&block[52..]));
                values.extend(digits(&block[..48], 5).chain(digits(&block[48..52], 4)));
            }
            TensorType::TQ2_0 => {
                let quanta = block[..64].iter().flat_map(|q| [0, 2, 4, 6].map(|shift| q >> shift & 3));
                values.extend(
                    quanta.inspect(|q| assert!(*q < 3)).map(|q| (f64::from(q) - 1.0) * half(&block[64..])),
                );
            }
        }
    }
    assert!(values.iter().all(|v| v.is_finite()));
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    (mean, (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / values.len() as f64).sqrt())
}

/// Yields the quants of a block with high bits followed by nibbles.
fn quanta5(block: &[u8]) -> impl Iterator<Item = f64> {
    let high = u32::from_le_bytes([block[0], block[1], block[2], block[3]]);
    (0..32).map(move |i| f64::from(u32::from(block[4 + i % 16] >> (i / 16 * 4) & 15) | (high >> i & 1) << 4))
}

/// Yields the first `count` digits of each byte. The byte is a fraction, and each multiplication by 3 moves
/// one digit above the point.
fn ternary(bytes: &[u8], count: usize) -> impl Iterator<Item = f64> {
    bytes.iter().flat_map(move |byte| {
        let mut fraction = u32::from(*byte);
        (0..count).map(move |_| {
            fraction = (fraction & 255) * 3;
            f64::from(fraction >> 8)
        })
    })
}

/// Returns the 6-bit scale and minimum of one of eight sub-blocks.
fn k_scale(s: &[u8], part: usize) -> (f64, f64) {
    let (scale, min) = if part < 4 {
        (s[part] & 63, s[part + 4] & 63)
    } else {
        (s[part + 4] & 15 | (s[part - 4] >> 6) << 4, s[part + 4] >> 4 | (s[part] >> 6) << 4)
    };
    (scale.into(), min.into())
}

fn q5_k(block: &[u8], scale: f64, min_scale: f64, values: &mut Vec<f64>) {
    for i in 0..256 {
        let (scale6, min6) = k_scale(&block[4..16], i / 32);
        let low = block[48 + i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15;
        let high = block[16 + i % 32] >> (i / 32) & 1;
        values.push(scale * scale6 * f64::from(low | high << 4) - min_scale * min6);
    }
}

fn q4_k(block: &[u8], scale: f64, min_scale: f64, values: &mut Vec<f64>) {
    for part in 0..8 {
        let (scale6, min6) = k_scale(&block[4..16], part);
        let quanta = &block[16 + part / 2 * 32..][..32];
        values.extend(quanta.iter().map(|q| {
            let q = if part % 2 == 0 { q & 15 } else { q >> 4 };
            scale * scale6 * f64::from(q) - min_scale * min6
        }));
    }
}

fn q6_k(block: &[u8], scale: f64, values: &mut Vec<f64>) {
    for i in 0..256 {
        let (half, j) = (i / 128, i % 128);
        let (low, high) = (block[half * 64 + j % 64], block[128 + half * 32 + j % 32]);
        let q = (low >> (j / 64 * 4) & 15) | (high >> (j / 32 * 2) & 3) << 4;
        values.push(scale * f64::from(block[192 + i / 16].cast_signed()) * (f64::from(q) - 32.0));
    }
}

#[test]
fn weights_have_mean_zero_and_the_deviation_that_keeps_activations() {
    for tensor_type in TensorType::ALL {
        let (_, model) = made(&tiny(Architecture::Llama, tensor_type), 3);
        for (name, expected) in
            [("blk.0.ffn_up.weight", 1.0 / 16.0), ("blk.0.ffn_down.weight", 0.5 / 512f64.sqrt())]
        {
            let bytes = model.weights.bytes(model.weights.tensor(name).unwrap()).unwrap();
            let (mean, deviation) = moments(tensor_type, bytes);
            assert!(mean.abs() < 0.01 * expected, "{tensor_type} {name}: mean {mean}, deviation {deviation}");
            assert!(
                (deviation / expected - 1.0).abs() < 0.05,
                "{tensor_type} {name}: {deviation}, not {expected}"
            );
        }
    }
}

#[test]
fn impossible_shapes_are_refused() {
    let base = Preset::Tiny.shape();
    let fails = |shape: Shape| shape.tensors().unwrap_err();
    assert!(fails(Shape { heads: 3, ..base.clone() }).contains("heads of an even width"));
    assert!(fails(Shape { kv_heads: 3, ..base.clone() }).contains("share 3 kv-heads"));
    assert!(fails(Shape { layers: 0, ..base.clone() }).contains("must be positive"));
    assert!(fails(Shape { vocabulary: 259, ..base.clone() }).contains("260 tokens"));
    assert!(fails(Shape { ffn: 500, ..base }).contains("rows of 500 cannot be split into blocks of 32"));
}

#[test]
fn presets_have_the_sizes_in_their_names() {
    for (preset, millions) in [(Preset::M300, 290..310), (Preset::B1_1, 1090..1110)] {
        let tensors = preset.shape().tensors().unwrap();
        let values: u64 = tensors.iter().map(Tensor::values).sum();
        assert!(millions.contains(&(values / 1_000_000)), "{preset:?}: {values}");
    }
}
