//! Compares every golden model with an independent implementation, in both numerics classes.

use crate::support::{self, Checkpoint, MODELS, Setup, argmax, golden, relative_error};
use ragtag::{Model, WireType};
use ragtag_kernels::{Activations, NumericsClass};

fn check_logits(activations: Activations, class: NumericsClass) {
    for name in MODELS {
        let path = support::model_path(name);
        let (model, golden) = (Model::open(path).unwrap(), golden(name));
        let engine = support::engine(&model, &Setup { activations, ..Default::default() });
        let ids = &golden.cases[0].prompt_ids;
        let logits = support::block_on(engine.session().logits(ids)).unwrap();
        let error = golden.error(&logits);
        println!("{name} {activations:?}: relative error {error:.2e}");
        assert!(error <= class.tolerance(), "{name}: {error}");
    }
}

#[test]
fn exact_logits_are_within_1e_4() {
    check_logits(Activations::F32, NumericsClass::Exact);
}

#[test]
fn fast_logits_are_within_2e_2() {
    check_logits(Activations::Int8, NumericsClass::Fast);
}

/// Checks logits with the arithmetic of devices with matrix units: f16 activations, and weights dequantised
/// to f16.
#[test]
fn logits_with_f16_activations_are_within_2e_2() {
    check_logits(Activations::F16, NumericsClass::Fast);
}

/// Checks the f16 wire type, at each cut alone and at all cuts together. The logits must differ from those of
/// one device, but stay within the tolerance of the fast class.
#[test]
fn the_f16_wire_type_is_within_2e_2_at_every_cut() {
    let each: Vec<_> = (0..14).map(|segment| format!("{segment}=cpu:{segment}")).collect();
    for name in MODELS {
        let path = support::model_path(name);
        let (model, golden) = (Model::open(path).unwrap(), golden(name));
        let ids = &golden.cases[0].prompt_ids;
        let logits = |split: Option<&str>, cpu_devices, wire_type| {
            let activations = Activations::Int8;
            let setup = Setup { activations, wire_type, split, cpu_devices, chunk: 24, ..Default::default() };
            support::block_on(support::engine(&model, &setup).session().logits(ids)).unwrap()
        };
        let alone = logits(None, 1, WireType::F32);
        let cuts = (1..14).map(|cut| (format!("0-{}=cpu:0,{cut}-13=cpu:1", cut - 1), 2));
        let mut worst = 0f64;
        for (split, devices) in cuts.chain([(each.join(","), 14)]) {
            let narrow = logits(Some(&split), devices, WireType::F16);
            let error = golden.error(&narrow);
            assert!(error <= NumericsClass::Fast.tolerance(), "{name}, {split}: {error}");
            // The transfer must really round to f16. After the embedding there is nothing to round, because
            // its output may already be f16.
            let moved = relative_error(&narrow, &alone);
            let is_moved = moved > 0.0 || split.starts_with("0-0=");
            assert!(is_moved && moved <= NumericsClass::Fast.tolerance(), "{name}, {split}: {moved}");
            worst = worst.max(error);
        }
        println!("{name}: relative error {worst:.2e} at most");
    }
}

#[test]
fn exact_greedy_tokens_match_the_golden_ones() {
    for name in MODELS {
        let path = support::model_path(name);
        let (model, golden) = (Model::open(path).unwrap(), golden(name));
        let vocabulary = model.hyperparameters().vocabulary as usize;
        let engine = support::engine(&model, &Setup::default());
        let mut compared = 0;
        for case in &golden.cases {
            let ids = [&case.prompt_ids[..], &case.greedy_ids].concat();
            let logits = support::block_on(engine.session().logits(&ids)).unwrap();
            for (step, (&expected, &margin)) in case.greedy_ids.iter().zip(&case.margins).enumerate() {
                if margin >= 0.005 {
                    let position = case.prompt_ids.len() + step - 1;
                    let row = &logits[position * vocabulary..(position + 1) * vocabulary];
                    assert_eq!(
                        argmax(row),
                        expected,
                        "{name}, {:?}, step {step}, margin {margin}",
                        case.prompt
                    );
                    compared += 1;
                }
            }
        }
        println!("{name}: {compared} steps");
        assert!(compared > 100);
    }
}

#[test]
fn tokenizers_agree_with_the_golden_ids_and_texts() {
    for name in MODELS {
        let path = support::model_path(name);
        let model = Model::open(path).unwrap();
        let tokenizer = model.tokenizer().unwrap();
        for case in golden(name).cases {
            assert_eq!(tokenizer.encode(&case.prompt, true).unwrap(), case.prompt_ids);
            let ids = [&case.prompt_ids[..], &case.greedy_ids].concat();
            assert_eq!(tokenizer.decode(&ids), case.text);
        }
    }
}

/// Returns the JSON of `ragtag perplexity` for the held-out text.
fn perplexity(model: &std::path::Path, arguments: &[&str]) -> serde_json::Value {
    let text = test_support::golden("held.txt");
    let mut command = support::ragtag();
    command.args([
        "perplexity",
        support::text(model),
        "-f",
        support::text(&text),
        "--json",
        "--threads",
        "1",
    ]);
    let output = command.args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Compares the perplexity that the command reports for the held-out text with a published value.
fn check_perplexity(name: &str, published: f64, arguments: &[&str]) {
    let arguments = [&["--ctx", "256", "--chunks", "16"], arguments].concat();
    let json = perplexity(&support::model_path(name), &arguments);
    let perplexity = json["perplexity"].as_f64().unwrap();
    println!("{name}: {perplexity:.3}, published {published}");
    assert!((perplexity / published - 1.0).abs() <= 0.01, "{name}: {perplexity}");
    assert_eq!(json["tokens"], 16 * 127);
}

/// Checks that BOS replaces the first token of each piece only if the tokenizer adds BOS, as in llama.cpp.
#[test]
fn pieces_begin_with_bos_only_if_the_tokenizer_adds_it() {
    let mut bytes = support::model_bytes("tales-q8_0");
    let flag = support::metadata_value(&bytes, "tokenizer.ggml.add_bos_token");
    let held = std::fs::read_to_string(test_support::golden("held.txt")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    for adds_bos in [1, 0] {
        bytes[flag] = adds_bos;
        let path = folder.path().join(format!("{adds_bos}.gguf"));
        std::fs::write(&path, &bytes).unwrap();
        let model = Model::open(&path).unwrap();
        let ids = model.tokenizer().unwrap().encode(&held, false).unwrap();
        // With BOS before the text, its first token moves to the second place.
        let mut pieces: Vec<Vec<u32>> = match adds_bos {
            1 => [&[1], &ids[..]].concat()[..32].chunks(16).map(<[u32]>::to_vec).collect(),
            _ => ids[..32].chunks(16).map(<[u32]>::to_vec).collect(),
        };
        pieces.iter_mut().filter(|_| adds_bos == 1).for_each(|piece| piece[0] = 1);
        let engine = support::engine(&model, &Setup::default());
        let mut sum = 0.0;
        for piece in &pieces {
            let logits = support::block_on(engine.session().logits(piece)).unwrap();
            for (position, row) in logits.chunks(logits.len() / 16).enumerate().take(15).skip(8) {
                let all: f64 = row.iter().map(|logit| f64::from(*logit).exp()).sum();
                sum += all.ln() - f64::from(row[piece[position + 1] as usize]);
            }
        }
        let reference = (sum / 14.0).exp();
        let json =
            perplexity(&path, &["--ctx", "16", "--chunks", "2", "--activations", "f32", "--no-calibration"]);
        let found = json["perplexity"].as_f64().unwrap();
        assert!((found / reference - 1.0).abs() < 1e-3, "{adds_bos}: {found} instead of {reference}");
    }
}

/// Checks the perplexity of each model against the value of another implementation: for bundled models an engine
/// with int8 activations, for made models numpy in float64.
#[test]
fn fast_perplexity_is_within_a_percent() {
    let published = [
        ("tales-q8_0", 29.56),
        ("tales-q4_0", 29.667),
        ("tales-q4_k_m", 29.634),
        ("tales-bitnet-tq2_0", 32.51),
    ];
    for (name, published) in published {
        check_perplexity(name, published, &["--cpu-devices", "2"]);
    }
}

/// Checks the perplexity of each model against the same published values, in a pipeline with three f16
/// transfers.
#[test]
fn fast_perplexity_with_the_f16_wire_type_is_within_a_percent() {
    let split = "0-2=cpu:0,3-6=cpu:1,7-10=cpu:2,11-13=cpu:3";
    for (name, published) in [("tales-q8_0", 29.56), ("tales-bitnet-tq2_0", 32.51)] {
        check_perplexity(name, published, &["--cpu-devices", "4", "--wire", "f16", "--split", split]);
    }
}

/// Compares model directories and their GGUF files with an independent implementation that computes in float32
/// or float64 from the same weights.
#[test]
fn logits_of_checkpoints_are_within_1e_4() {
    for name in support::CHECKPOINTS {
        let checkpoint = Checkpoint::open(name);
        let split = format!("0-1=cpu:0,2-{}=cpu:1", checkpoint.models[0].graph().segment_count() - 1);
        for split in [None, Some(&*split)] {
            checkpoint.check_logits(name, &Setup { cpu_devices: 2, split, ..Default::default() });
        }
    }
}

#[test]
fn fast_logits_of_checkpoints_are_within_2e_2() {
    for name in support::CHECKPOINTS {
        let checkpoint = Checkpoint::open(name);
        let split = format!("0-1=cpu:0,2-{}=cpu:1", checkpoint.models[0].graph().segment_count() - 1);
        for activations in [Activations::F16, Activations::Int8] {
            for split in [None, Some(&*split)] {
                checkpoint
                    .check_logits(name, &Setup { activations, cpu_devices: 2, split, ..Default::default() });
            }
        }
    }
}

/// Checks that the tokenizers from a model directory and from a GGUF file give the same token ids.
#[test]
fn tokenizers_of_checkpoints_agree() {
    let text = "The inner  part isn't\n\n2024 naïve cafés";
    for name in support::CHECKPOINTS {
        let encoded = |model: &Model| {
            let tokenizer = model.tokenizer().unwrap();
            let ids = tokenizer.encode(text, false).unwrap();
            assert_eq!(tokenizer.decode(&ids), text, "{name}");
            (ids, tokenizer.eos().clone())
        };
        let all: Vec<_> = Checkpoint::open(name).models.iter().map(encoded).collect();
        assert!(all.iter().all(|one| *one == all[0]), "{name}: {all:?}");
    }
}

/// Checks that the tokenizer puts the BOS token in front of an encoded text.
#[test]
fn tokenizer_of_a_checkpoint_adds_the_begin_token() {
    let Checkpoint { models, ids, .. } = Checkpoint::open("tiny-hf");
    let tokenizer = models[0].tokenizer().unwrap();
    assert_eq!(tokenizer.encode(&tokenizer.decode(&ids), true).unwrap(), ids);
    assert_eq!(tokenizer.bos(), Some(1));
    assert_eq!(tokenizer.eos().iter().copied().collect::<Vec<_>>(), [2]);
}

/// Checks that Ragtag opens a split model through any of its parts, and that its logits equal those of the
/// whole model.
#[test]
fn a_split_model_is_the_same_model() {
    let path = support::model_path("tales-q8_0");
    let whole = Model::open(path).unwrap();
    let ids = &golden("tales-q8_0").cases[0].prompt_ids;
    let logits = |model: &Model| {
        let engine = support::engine(model, &Setup::default());
        support::block_on(engine.session().logits(ids)).unwrap()
    };
    let expected = logits(&whole);
    let folder = tempfile::tempdir().unwrap();
    let names = support::split(&whole, folder.path(), 3);
    for name in &names {
        let model = Model::open(folder.path().join(name)).unwrap();
        assert_eq!(logits(&model), expected, "{name}");
        assert_eq!(model.tokenizer().unwrap().encode("Once upon a time", true).unwrap(), ids[..5]);
        assert_ne!(model.fingerprint().unwrap(), whole.fingerprint().unwrap());
    }
}

/// Checks `RopeScaling` with models that have the same weights and another scaling. The golden logits are
/// those of the same scaling in the configuration.
#[test]
fn a_requested_rope_scaling_gives_the_logits_of_that_scaling() {
    let error = |model: &Model, golden: &Checkpoint| {
        let engine = support::engine(model, &Setup { activations: Activations::F32, ..Default::default() });
        let logits = support::block_on(engine.session().logits(&golden.ids)).unwrap();
        support::relative_error(&logits, &golden.logits)
    };
    for (from, scaling, to) in
        [("tiny-llama3", "yarn:16", "tiny-llama-yarn"), ("tiny-llama-yarn", "linear:3", "tiny-llama-linear")]
    {
        let (from, to) = (Checkpoint::open(from), Checkpoint::open(to));
        // The GGUF file of Llama 3 does not contain the original context.
        for own in from.models.iter().take(if scaling == "yarn:16" { 1 } else { 2 }) {
            let model = own.with_rope_scaling(scaling.parse().unwrap()).unwrap();
            let (with, without) = (error(&model, &to), error(own, &to));
            println!("{} with {scaling}: relative error {with:.2e}, without {without:.2e}", own.name());
            assert!(with <= NumericsClass::Exact.tolerance() && without > 1e-3);
        }
    }
}

/// Checks a GGUF file in which one tensor holds the projections to queries, keys and values, and one their
/// biases.
#[test]
fn logits_of_a_fused_projection_are_within_1e_4() {
    let Checkpoint { models, ids, logits } = Checkpoint::open("tiny-qwen2");
    let weights = models[1].graph().weights();
    let (mut writer, mut data) = (ragtag_graph::gguf::Writer::new(), Vec::new());
    support::put_metadata(&mut writer, &models[1]);
    let is_other = |name: &str| name.contains(".attn_k.") || name.contains(".attn_v.");
    for tensor in weights.tensors().iter().filter(|tensor| !is_other(&tensor.name)) {
        let name = tensor.name.replace(".attn_q.", ".attn_qkv.");
        let (mut shape, mut bytes) = (tensor.shape.clone(), weights.bytes(tensor).unwrap().to_vec());
        for part in [".attn_k.", ".attn_v."].into_iter().filter(|_| name != tensor.name) {
            let other = weights.tensor(&tensor.name.replace(".attn_q.", part)).unwrap();
            *shape.last_mut().unwrap() += other.shape.last().unwrap();
            bytes.extend_from_slice(&weights.bytes(other).unwrap());
        }
        writer.tensor(&name, tensor.tensor_type, &shape, bytes.len() as u64);
        bytes.resize(bytes.len() + writer.padding(bytes.len() as u64) as usize, 0);
        data.extend(bytes);
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("m.gguf");
    std::fs::write(&file, [writer.header(), data].concat()).unwrap();
    let fused = Checkpoint { models: vec![Model::open(file).unwrap()], ids, logits };
    fused.check_logits("fused", &Setup::default());
}

/// Checks that the text part of a multimodal checkpoint is the same model, with the names of either version of
/// `transformers`, and that Ragtag does not read the other parts.
#[test]
fn logits_of_the_text_part_are_within_1e_4() {
    for (name, class, tower, prefix) in [
        ("tiny-gemma3", "Gemma3", "vision_tower", "language_model.model."),
        ("tiny-gemma3", "Gemma3", "vision_tower", "model.language_model."),
        ("tiny-mistral", "Mistral3", "multi_modal_projector", "language_model.model."),
        ("tiny-qwen2", "Qwen2_5_VL", "model.visual", "model.language_model."),
        ("tiny-qwen2", "Qwen2VL", "visual", "model."),
        ("tiny-qwen3", "Qwen3VL", "model.visual", "model.language_model."),
    ] {
        let source = test_support::golden(name);
        let mut config = support::read_json(&source.join("config.json"));
        let sections = serde_json::json!([2, 3, 3]);
        match (class, prefix) {
            ("Qwen2VL", _) => {
                let rope = config.as_object_mut().unwrap().remove("rope_parameters").unwrap();
                config["rope_theta"] = rope["rope_theta"].clone();
                config["rope_scaling"] = serde_json::json!({ "type": "mrope", "mrope_section": sections });
            }
            (class, _) if class.starts_with("Qwen") => config["rope_parameters"]["mrope_section"] = sections,
            _ => {}
        }
        // Older files have the fields of the text part among the others.
        let whole =
            if prefix == "model." { config.clone() } else { serde_json::json!({ "text_config": config }) };
        let mut whole = whole.as_object().unwrap().clone();
        whole.insert("architectures".into(), serde_json::json!([format!("{class}ForConditionalGeneration")]));
        whole.insert("vision_config".into(), serde_json::json!({ "depth": 1 }));
        let bytes = with_tower(&std::fs::read(source.join("model.safetensors")).unwrap(), prefix, tower);
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
        let whole = serde_json::Value::Object(whole).to_string();
        std::fs::write(folder.path().join("config.json"), whole).unwrap();
        let Checkpoint { ids, logits, .. } = Checkpoint::open(name);
        let text = Checkpoint { models: vec![Model::open(folder.path()).unwrap()], ids, logits };
        text.check_logits(&format!("{class} {prefix}"), &Setup::default());
    }
}

/// Returns a safetensors file whose names start with `prefix` in place of `model.`, and that has one more tensor in the
/// part `tower`.
fn with_tower(bytes: &[u8], prefix: &str, tower: &str) -> Vec<u8> {
    let (length, rest) = bytes.split_first_chunk::<8>().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let header: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(header).unwrap();
    let renamed = header.iter().map(|(name, tensor)| (name.replacen("model.", prefix, 1), tensor.clone()));
    let mut renamed: serde_json::Map<_, _> = renamed.collect();
    let offsets = [data.len(), data.len() + 4];
    let patch = serde_json::json!({ "dtype": "F32", "shape": [1, 1, 1], "data_offsets": offsets });
    renamed.insert(format!("{tower}.patch.weight"), patch);
    let renamed = serde_json::to_vec(&renamed).unwrap();
    [&(renamed.len() as u64).to_le_bytes()[..], &renamed, data, &[0; 4]].concat()
}
