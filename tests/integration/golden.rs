//! Every golden model against an implementation that shares nothing with this project, in both numerics classes.

use crate::support::{self, MODELS, Setup, argmax, golden, relative_error};
use ragtag::Model;
use ragtag_kernels::{Activations, NumericsClass};

fn check_logits(activations: Activations, class: NumericsClass) {
    for name in MODELS {
        let Some(path) = support::model_path(name) else { continue };
        let (model, golden) = (Model::open(path).unwrap(), golden(name));
        let engine = support::engine(&model, &Setup { activations, ..Default::default() });
        let ids = &golden.cases[0].prompt_ids;
        let logits = support::block_on(engine.session().logits(ids)).unwrap();
        let error = relative_error(&logits, &golden.logits);
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

#[test]
fn exact_greedy_tokens_are_the_golden_ones() {
    for name in MODELS {
        let Some(path) = support::model_path(name) else { continue };
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
        let Some(path) = support::model_path(name) else { continue };
        let model = Model::open(path).unwrap();
        let tokenizer = model.tokenizer().unwrap();
        for case in golden(name).cases {
            assert_eq!(tokenizer.encode(&case.prompt, true).unwrap(), case.prompt_ids);
            let ids = [&case.prompt_ids[..], &case.greedy_ids].concat();
            assert_eq!(tokenizer.decode(&ids), case.text);
        }
    }
}

/// The figures of the models' page: another engine's, with int8 activations.
#[test]
fn fast_perplexity_is_within_a_percent() {
    let published = [29.56, 29.66, 29.53, 32.51];
    for (name, published) in
        ["tales-q8_0", "tales-q4_0", "tales-q4_k_m", "tales-bitnet-tq2_0"].iter().zip(published)
    {
        let Some(path) = support::model_path(name) else { continue };
        let text = support::root().join("tests/golden/held.txt");
        let output = support::ragtag()
            .args(["perplexity", path.to_str().unwrap(), "-f", text.to_str().unwrap()])
            .args(["--ctx", "256", "--chunks", "16", "--json", "--cpu-devices", "2", "--threads", "1"])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let perplexity = json["perplexity"].as_f64().unwrap();
        println!("{name}: {perplexity:.3}, published {published}");
        assert!((perplexity / published - 1.0).abs() <= 0.01, "{name}: {perplexity}");
        assert_eq!(json["tokens"], 16 * 127);
    }
}

/// The weights of a model in two files, found by the name of either.
#[test]
fn a_split_model_is_the_same_model() {
    let path = support::model_path("tales-q8_0").unwrap();
    let whole = Model::open(path).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let tensors = whole.graph().weights().tensors();
    let halves = tensors.split_at(tensors.len() / 2);
    for (number, half) in [halves.0, halves.1].into_iter().enumerate() {
        let mut writer = ragtag_graph::gguf::Writer::new();
        if number == 0 {
            put_hyperparameters(&mut writer, &whole);
        }
        writer.put("split.no", number as u16);
        writer.put("split.count", 2u16);
        writer.put("split.tensors.count", tensors.len() as i32);
        half.iter().for_each(|t| writer.tensor(&t.name, t.tensor_type, &t.shape, t.bytes));
        let mut file = writer.header();
        for tensor in half {
            file.extend_from_slice(whole.graph().weights().bytes(tensor).unwrap());
            file.resize(file.len() + writer.padding(tensor.bytes) as usize, 0);
        }
        std::fs::write(folder.path().join(format!("m-0000{}-of-00002.gguf", number + 1)), file).unwrap();
    }
    let golden = golden("tales-q8_0");
    for name in ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"] {
        let model = Model::open(folder.path().join(name)).unwrap();
        let engine = support::engine(&model, &Setup::default());
        let logits = support::block_on(engine.session().logits(&golden.cases[0].prompt_ids)).unwrap();
        assert!(relative_error(&logits, &golden.logits) <= NumericsClass::Exact.tolerance());
    }
    std::fs::remove_file(folder.path().join("m-00002-of-00002.gguf")).unwrap();
    let error = Model::open(folder.path().join("m-00001-of-00002.gguf")).unwrap_err();
    assert!(error.to_string().contains("m-00002-of-00002.gguf"), "{error}");
    assert_eq!(error.exit_code(), 7);
}

/// The metadata of a model that is not a list.
pub fn put_hyperparameters(writer: &mut ragtag_graph::gguf::Writer, model: &Model) {
    use ragtag_graph::gguf::Value;
    for (key, value) in model.graph().metadata().iter() {
        match value.unwrap() {
            Value::U32(v) => writer.put(key, v),
            Value::F32(v) => writer.put(key, v),
            Value::Str(v) => writer.put(key, v),
            // The vocabulary is not needed for logits.
            _ => {}
        }
    }
}
