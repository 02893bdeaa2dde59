//! Embeddings: the vectors of `transformers`, from directories and GGUF files, on one device and on two.

use crate::support::{self, Checkpoint, Setup, block_on, relative_error};
use ragtag::{Engine, Error, Generation, Model, Pooling};
use ragtag_kernels::{Activations, NumericsClass};

const WITH_GOLDEN: [&str; 3] = ["tiny-qwen3", "tiny-gemma2", "tiny-command-r"];

/// Returns the golden vector of a model: `last` or `mean`.
fn golden(name: &str, pooling: &str) -> Vec<f32> {
    let all = support::read_json(&test_support::golden("hidden.json"));
    let values = all[name][pooling].as_array().unwrap().iter();
    values.map(|value| value.as_f64().unwrap() as f32).collect()
}

fn vector(engine: &Engine, ids: &[u32]) -> Vec<f32> {
    block_on(engine.session().embed(ids).unwrap().vector()).unwrap()
}

#[test]
fn vectors_match_transformers() {
    for name in WITH_GOLDEN {
        let Checkpoint { models, ids, .. } = Checkpoint::open(name);
        let expected = golden(name, "last");
        for model in models.iter().map(|model| model.for_embeddings().unwrap()) {
            for (activations, class, split, cpu_devices) in [
                (Activations::F32, NumericsClass::Exact, None, 1),
                (Activations::Int8, NumericsClass::Fast, None, 1),
                (Activations::F32, NumericsClass::Exact, Some("0-1=cpu:0,2-3=cpu:1"), 2),
            ] {
                let setup = Setup { activations, split, cpu_devices, ..Default::default() };
                let engine = support::engine(&model, &setup);
                let error = relative_error(&vector(&engine, &ids), &expected);
                assert!(error <= class.tolerance(), "{name}, {activations:?}, {split:?}: {error}");
            }
        }
    }
}

/// Returns the bytes of a GGUF file with another key of 18 characters and an integer, and a text that keeps the alignment.
fn with_key(mut file: Vec<u8>, key: &str, value: u32) -> Vec<u8> {
    let text = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    // The types are those of a 32-bit integer and of a text.
    let number = [text(key), 4_u32.to_le_bytes().to_vec(), value.to_le_bytes().to_vec()].concat();
    let padding = [text("general.x"), 8_u32.to_le_bytes().to_vec(), text("y")].concat();
    let added = [number, padding].concat();
    assert_eq!(added.len() % 32, 0, "{key}");
    let count = u64::from_le_bytes(file[16..24].try_into().unwrap()) + 2;
    file[16..24].copy_from_slice(&count.to_le_bytes());
    file.splice(24..24, added);
    file
}

#[test]
fn files_name_the_pooling() {
    let file = std::fs::read(test_support::golden("tiny-qwen3").join("model.gguf")).unwrap();
    let model = |kind| Model::from_bytes("q", with_key(file.clone(), "qwen3.pooling_type", kind)).unwrap();
    let mean = model(1).for_embeddings().unwrap();
    assert_eq!(Pooling::of(&mean).unwrap(), Pooling::Mean);
    let ids = Checkpoint::open("tiny-qwen3").ids;
    let error = relative_error(
        &vector(&support::engine(&mean, &Setup::default()), &ids),
        &golden("tiny-qwen3", "mean"),
    );
    assert!(error <= NumericsClass::Exact.tolerance(), "{error}");
    assert_eq!(Pooling::of(&model(3)).unwrap(), Pooling::Last);
    // Class tokens and ranks.
    for kind in [2, 4, 99] {
        let error = model(kind).for_embeddings().unwrap_err();
        assert!(error.to_string().contains("qwen3.pooling_type is"), "{error}");
    }
}

#[test]
fn models_either_generate_or_embed() {
    let model = Model::bundled().unwrap();
    let usual = support::engine(&model, &Setup::default());
    assert!(matches!(usual.session().embed(&[1]), Err(Error::Usage(_))));
    let engine = support::engine(&model.for_embeddings().unwrap(), &Setup::default());
    assert!(matches!(engine.session().generate("a", &Generation::default()), Err(Error::Usage(_))));
    block_on(engine.session().warmup(8)).unwrap();
    let refused = block_on(engine.session().embed(&[99_999_999]).unwrap().vector());
    assert!(refused.unwrap_err().to_string().contains("outside the vocabulary"));
}
