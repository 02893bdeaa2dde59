//! Checks RoPE scaling that replaces a model's own, and the factors that the context selects.

use ragtag_graph::{Directory, MemorySource, Model, ModelFile, RopeFactors, RopeScaling};
use std::sync::Arc;

fn from_file(bytes: &'static [u8]) -> Model {
    Model::new(ModelFile::open(vec![Arc::new(MemorySource::new("model.gguf", bytes))]).unwrap()).unwrap()
}

fn from_directory(config: &str, weights: &'static [u8]) -> Model {
    let mut directory = Directory::new("d");
    let config = config.as_bytes().to_vec();
    directory.insert("config.json", Arc::new(MemorySource::new("config.json", config)));
    directory.insert("model.safetensors", Arc::new(MemorySource::new("model.safetensors", weights)));
    Model::from_directory(directory).unwrap()
}

fn tiny(name: &str, file: &str) -> &'static [u8] {
    test_support::golden_bytes(&format!("tiny-{name}"), file)
}

/// Returns a tiny model with the given scaling in `config.json`.
fn configured(scaling: &str) -> Model {
    let config = std::str::from_utf8(tiny("llama-yarn", "config.json")).unwrap();
    let (before, rest) = config.split_once("\"rope_parameters\": {").unwrap();
    let (_, after) = rest.split_once('}').unwrap();
    let config = format!("{before}\"rope_parameters\": {{\"rope_theta\": 10000.0, {scaling}}}{after}");
    from_directory(&config, tiny("llama-yarn", "model.safetensors"))
}

fn yarn(factor: f32) -> Model {
    let original = "\"original_max_position_embeddings\": 32";
    configured(&format!("\"rope_type\": \"yarn\", \"factor\": {factor:?}, {original}"))
}

fn requested(model: &Model, scaling: &str) -> Model {
    model.with_rope_scaling(scaling.parse::<RopeScaling>().unwrap()).unwrap()
}

/// Checks that a requested scaling has the effect of the same scaling in the configuration.
#[test]
fn a_requested_scaling_is_that_of_the_configuration() {
    let rope = |model: &Model| model.hyperparameters().rope;
    let context = |model: &Model| model.hyperparameters().context;
    let (four, plain) = (yarn(4.0), configured("\"rope_type\": \"default\""));
    let linear = configured("\"rope_type\": \"linear\", \"factor\": 2.0");
    for model in [&yarn(16.0), &from_file(tiny("llama-yarn", "model.gguf"))] {
        let new = requested(model, "yarn:4");
        assert_eq!((rope(&new).yarn, rope(&new).magnitude), (rope(&four).yarn, rope(&four).magnitude));
        assert_eq!((context(model), context(&new)), (512, 128));
    }
    assert_eq!(rope(&requested(&four, "linear:2")), rope(&linear));
    assert_eq!(context(&requested(&four, "linear:2")), 64);
    assert_eq!(rope(&requested(&plain, "linear:1")), rope(&plain));
    assert_eq!(context(&requested(&plain, "yarn:4")), 2048);
    // The context of 512 tokens is already scaled.
    assert_eq!(context(&requested(&linear, "yarn:4")), 1024);
}

/// Checks that a requested scaling replaces factors, whose tensors the file still contains.
#[test]
fn a_requested_scaling_replaces_factors() {
    let config = std::str::from_utf8(tiny("phi3", "config.json")).unwrap();
    let models =
        [from_file(tiny("phi3", "model.gguf")), from_directory(config, tiny("phi3", "model.safetensors"))];
    for model in models {
        assert_eq!(model.hyperparameters().rope.factors, RopeFactors::ByContext { original_context: 32 });
        let new = requested(&model, "linear:4");
        let rope = new.hyperparameters().rope;
        assert_eq!((rope.factors, rope.magnitude, rope.scale), (RopeFactors::None, 1.0, 4.0));
        assert_eq!(new.hyperparameters().context, 128);
    }
    let llama3 = requested(&from_file(tiny("llama3", "model.gguf")), "linear:2");
    assert_eq!(llama3.hyperparameters().rope.factors, RopeFactors::None);
}
