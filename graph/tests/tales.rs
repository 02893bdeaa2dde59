//! Compares the tokenizer with recorded results for the `tales` models.

use ragtag_graph::{MemorySource, ModelFile, Tokenizer};
use std::sync::Arc;

const MODELS: [&str; 2] = ["tales-q8_0", "tales-bitnet-tq2_0"];

fn open(name: &str) -> (ModelFile, Tokenizer) {
    let path = test_support::model(name);
    let source = MemorySource::new(path.display().to_string(), std::fs::read(path).unwrap());
    let model = ModelFile::open(vec![Arc::new(source)]).unwrap();
    let tokenizer = Tokenizer::from_metadata(&model.metadata).unwrap();
    (model, tokenizer)
}

fn ids(value: &serde_json::Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

#[test]
fn golden_prompts_and_tales() {
    for name in MODELS {
        let (_, tokenizer) = open(name);
        let golden = test_support::golden(&format!("{name}.golden.json"));
        let golden: serde_json::Value = serde_json::from_slice(&std::fs::read(golden).unwrap()).unwrap();
        let cases = golden["cases"].as_array().unwrap();
        assert!(!cases.is_empty());
        for case in cases {
            let prompt = case["prompt"].as_str().unwrap();
            let mut all = tokenizer.encode(prompt, true).unwrap();
            assert_eq!(all, ids(&case["prompt_ids"]), "{name}: {prompt}");
            // The recorded text is the prompt and its continuation, decoded by one stream.
            all.extend(ids(&case["greedy_ids"]));
            let text = case["text"].as_str().unwrap();
            assert_eq!(tokenizer.decode(&all), text, "{name}: {prompt}");
            let mut stream = tokenizer.stream();
            let streamed: String = all.iter().map(|id| stream.push(*id)).collect();
            assert_eq!(streamed + &stream.finish(), text);
        }
    }
}

/// Encodes 40 kB at once. Checks that the ids match the sentencepiece library (10378 ids, recorded as an
/// FNV-1a digest), that decoding returns the text, and that the time does not grow with the square of the
/// length.
#[test]
fn a_long_text() {
    let (_, tokenizer) = open("tales-q8_0");
    let text = std::fs::read_to_string(test_support::golden("held.txt")).unwrap();
    let ids = tokenizer.encode(&text, false).unwrap();
    assert_eq!(ids.len(), 10378);
    let digest = ids.iter().flat_map(|id| id.to_le_bytes()).fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    assert_eq!(digest, 0x1ebd_806b_7ebb_294e);
    assert_eq!(tokenizer.decode(&ids), text);

    let time = |text: &str| {
        let once = || {
            let start = std::time::Instant::now();
            tokenizer.encode(text, false).unwrap();
            start.elapsed()
        };
        (0..3).map(|_| once()).min().unwrap()
    };
    let (once, eightfold) = (time(&text), time(&text.repeat(8)));
    assert!(eightfold < once * 40, "40 kB take {once:?}, 320 kB {eightfold:?}");
}

/// Checks that every weight of every model is readable and that its size agrees with its type and shape.
#[test]
fn weights_of_all_models() {
    for (name, count) in MODELS.into_iter().zip([110, 134]) {
        let (model, _) = open(name);
        assert_eq!(model.weights.tensors().len(), count);
        for tensor in model.weights.tensors() {
            let bytes = model.weights.bytes(tensor).unwrap().len() as u64;
            assert_eq!(
                Some(bytes),
                tensor.tensor_type.bytes(tensor.columns() * tensor.rows()),
                "{}",
                tensor.name
            );
        }
    }
}
