//! Tests with small handmade checkpoints.

use super::files::{INDEX, MODEL};
use super::*;
use crate::arch::RopePairing;
use crate::model::Model;
use crate::rope_lengths::RopeLengths;
use crate::safetensors::Dtype;
use crate::source::MemorySource;
use ragtag_kernels::TensorType;
use serde_json::{Value, json};

/// A checkpoint that a test can change before opening it.
#[derive(Clone)]
pub(super) struct Made {
    pub(super) config: Value,
    /// Names and shapes of the tensors, slowest dimension first. All tensors are F32.
    pub(super) tensors: Vec<(String, Vec<u64>)>,
}

impl Made {
    /// Creates a model of width 32 with two query heads, one KV head, one block and a vocabulary of 8 tokens.
    pub(super) fn new() -> Self {
        let config = json!({
            "architectures": ["LlamaForCausalLM"],
            "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
            "intermediate_size": 64, "rms_norm_eps": 1e-5, "vocab_size": 8, "max_position_embeddings": 128,
        });
        let block = |part: &str| format!("model.layers.0.{part}.weight");
        let tensors = vec![
            ("model.embed_tokens.weight".into(), vec![8, 32]),
            (block("input_layernorm"), vec![32]),
            (block("self_attn.q_proj"), vec![32, 32]),
            (block("self_attn.k_proj"), vec![16, 32]),
            (block("self_attn.v_proj"), vec![16, 32]),
            (block("self_attn.o_proj"), vec![32, 32]),
            (block("post_attention_layernorm"), vec![32]),
            (block("mlp.gate_proj"), vec![64, 32]),
            (block("mlp.up_proj"), vec![64, 32]),
            (block("mlp.down_proj"), vec![32, 64]),
            ("model.norm.weight".into(), vec![32]),
            ("lm_head.weight".into(), vec![8, 32]),
        ];
        Made { config, tensors }
    }

    pub(super) fn with(&self, key: &str, value: Value) -> Self {
        let mut changed = self.clone();
        changed.config[key] = value;
        changed
    }

    pub(super) fn directory(&self) -> Directory {
        let mut directory = Directory::new("d");
        put(&mut directory, CONFIG, self.config.to_string().into_bytes());
        put(&mut directory, MODEL, safetensors(&self.tensors));
        directory
    }

    pub(super) fn open(&self) -> Result<Model, ModelError> {
        Model::from_directory(self.directory())
    }

    pub(super) fn error(&self) -> String {
        self.open().map(|_| ()).unwrap_err().to_string()
    }
}

pub(super) fn put(directory: &mut Directory, name: &str, bytes: Vec<u8>) {
    directory.insert(name, Arc::new(MemorySource::new(format!("d/{name}"), bytes)));
}

/// Builds a safetensors file with F32 tensors. The values are 0, 1, 2 and so on, counted across all tensors.
pub(super) fn safetensors(tensors: &[(String, Vec<u64>)]) -> Vec<u8> {
    let mut entries = Vec::new();
    let mut end = 0;
    for (name, shape) in tensors {
        let begin = end;
        end += 4 * shape.iter().product::<u64>();
        let entry = json!({ "dtype": "F32", "shape": shape, "data_offsets": [begin, end] });
        entries.push(format!("{}:{entry}", json!(name)));
    }
    let values = (0..end / 4).flat_map(|n| (n as f32).to_le_bytes()).collect();
    with_header(&format!("{{{}}}", entries.join(",")), values)
}

/// Builds a safetensors file from a JSON header and the tensors' data.
pub(super) fn with_header(header: &str, data: Vec<u8>) -> Vec<u8> {
    [(header.len() as u64).to_le_bytes().to_vec(), header.as_bytes().to_vec(), data].concat()
}

#[test]
fn opens_a_checkpoint() {
    let model = Made::new().open().unwrap();
    let h = model.hyperparameters();
    assert_eq!((h.architecture.as_str(), h.layers, h.context, h.width), ("llama", 1, 128, 32));
    assert_eq!((h.heads, h.kv_heads, h.head_dimensions, h.feed_forward), (2, 1, 16, 64));
    assert_eq!((h.vocabulary, h.rope.base, h.epsilon), (8, 10_000.0, 1e-5));
    assert_eq!(h.rope.pairing, RopePairing::Halves);
    let weights = model.weights();
    assert_eq!(weights.tensors().len(), 12);
    let up = weights.tensor("blk.0.ffn_down.weight").unwrap();
    assert_eq!((up.columns(), up.rows(), up.tensor_type), (64, 32, TensorType::F32));
    // In the data, 8 × 32 values precede the first norm.
    let norm = weights.bytes(weights.tensor("blk.0.attn_norm.weight").unwrap()).unwrap();
    assert_eq!(norm[..4], 256f32.to_le_bytes());
    assert_eq!(model.segment_count(), 3);
}

#[test]
fn accepts_every_tensor_type_in_any_order() {
    let mut made = Made::new();
    made.tensors.reverse();
    let bytes = safetensors(&made.tensors);
    let mut directory = made.directory();
    // The header may list tensors in any order.
    for (dtype, expected) in [("BF16", TensorType::BF16), ("F16", TensorType::F16)] {
        let header = json!({
            "__metadata__": { "format": "pt" },
            "b": { "dtype": dtype, "shape": [2, 3], "data_offsets": [4, 16] },
            "a": { "dtype": "F32", "shape": [], "data_offsets": [0, 4] },
        });
        let file = with_header(&format!("{header}   "), vec![0; 16]);
        let found = crate::safetensors::parse(&MemorySource::new("m", file), 3).unwrap();
        assert_eq!(found[0].name, "a");
        assert_eq!((found[0].shape.as_slice(), found[0].bytes), (&[][..], 4));
        assert_eq!((found[1].dtype, found[1].shape.as_slice()), (Dtype::Values(expected), &[3, 2][..]));
        assert!(found.iter().all(|tensor| tensor.shard == 3));
    }
    put(&mut directory, MODEL, bytes);
    assert_eq!(Model::from_directory(directory).unwrap().weights().tensors().len(), 12);
}

#[test]
fn finds_shards_by_the_index() {
    let made = Made::new();
    let (a, b) = made.tensors.split_at(5);
    let mut directory = Directory::new("d");
    put(&mut directory, CONFIG, made.config.to_string().into_bytes());
    let map: Vec<_> = a.iter().map(|t| (t.0.clone(), "b.safetensors")).collect();
    let map = map.into_iter().chain(b.iter().map(|t| (t.0.clone(), "a.safetensors")));
    let map: serde_json::Map<String, Value> = map.map(|(name, file)| (name, file.into())).collect();
    let index = json!({ "metadata": { "total_size": 1 }, "weight_map": map });
    put(&mut directory, INDEX, index.to_string().into_bytes());
    assert_eq!(shard_names(&directory).unwrap(), ["a.safetensors", "b.safetensors"]);
    let missing = Model::from_directory(directory.clone()).unwrap_err().to_string();
    assert_eq!(missing, "d has no a.safetensors");
    put(&mut directory, "a.safetensors", safetensors(b));
    put(&mut directory, "b.safetensors", safetensors(a));
    let model = Model::from_directory(directory.clone()).unwrap();
    assert_eq!(model.weights().tensor("token_embd.weight").unwrap().shard, 1);

    let fails = |name: &str, tensors: &[(String, Vec<u64>)]| {
        let mut directory = directory.clone();
        put(&mut directory, name, safetensors(tensors));
        Model::from_directory(directory).unwrap_err().to_string()
    };
    assert_eq!(
        fails("b.safetensors", &a[1..]),
        "d/model.safetensors.index.json: b.safetensors should hold model.embed_tokens.weight"
    );
    let moved = fails("a.safetensors", &[b, &a[..1]].concat());
    assert!(
        moved.contains("embed_tokens.weight should be in b.safetensors, but is in a.safetensors"),
        "{moved}"
    );
    let more = fails("a.safetensors", &[b, &[("more".into(), vec![1])]].concat());
    assert!(more.contains("a.safetensors holds more, contrary to the index"), "{more}");
    // A single file takes precedence over an index.
    put(&mut directory, MODEL, safetensors(&made.tensors));
    assert_eq!(shard_names(&directory).unwrap(), [MODEL]);
    assert!(Model::from_directory(directory).unwrap().weights().tensors().iter().all(|t| t.shard == 0));
}

#[test]
fn head_is_tied_or_has_its_own_tensor() {
    let mut tied = Made::new().with("tie_word_embeddings", true.into());
    // The model uses the tensor, even if the configuration ties the head.
    assert!(tied.open().unwrap().weights().tensor("output.weight").is_some());
    tied.tensors.pop();
    assert!(tied.open().is_ok());
    let untied = tied.with("tie_word_embeddings", false.into());
    assert_eq!(untied.error(), "tensor lm_head.weight is missing");
}

#[test]
fn errors_use_the_checkpoints_names() {
    let mut made = Made::new();
    made.tensors[2].1 = vec![16, 32];
    assert!(made.error().starts_with("tensor model.layers.0.self_attn.q_proj.weight has shape [32, 16]"));
    made.tensors.remove(2);
    assert_eq!(made.error(), "tensor model.layers.0.self_attn.q_proj.weight is missing");
    for name in
        ["model.layers.0.self_attn.q_proj.bias", "blk.0.attn_q.weight", "rope_freqs.weight", "x\u{1b}"]
    {
        let mut made = Made::new();
        made.tensors.push((name.into(), vec![32]));
        let error = made.error();
        assert!(error.contains("is not part of this architecture") && !error.contains('\u{1b}'), "{error}");
    }
    // Tensors that follow from the hyperparameters are allowed.
    let mut made = Made::new();
    made.tensors.push(("model.layers.0.self_attn.rotary_emb.inv_freq".into(), vec![8]));
    assert_eq!(made.open().unwrap().weights().tensors().len(), 12);
}

/// Checks the RoPE frequencies of two published configurations against the formula of the `transformers`
/// library.
#[test]
fn rotary_scaling_of_llama_3() {
    let scaling = json!({
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    });
    let made = Made::new().with("rope_theta", 500_000.0.into()).with("rope_scaling", scaling.clone());
    let h = made.open().unwrap().hyperparameters().clone();
    let found = h.rope.frequencies(None);
    let mut kinds = [0; 3];
    for (pair, found) in found.iter().enumerate() {
        let plain = 500_000f64.powf(-(2.0 * pair as f64) / 16.0);
        let wave = 2.0 * std::f64::consts::PI / plain;
        let expected = if wave > 64.0 / 1.0 {
            kinds[0] += 1;
            plain / 8.0
        } else if wave < 64.0 / 4.0 {
            kinds[1] += 1;
            plain
        } else {
            kinds[2] += 1;
            let smooth = (64.0 / wave - 1.0) / (4.0 - 1.0);
            (1.0 - smooth) * plain / 8.0 + smooth * plain
        };
        assert!((f64::from(*found) / expected - 1.0).abs() < 1e-6, "{pair}: {found} for {expected}");
    }
    assert!(kinds.iter().all(|count| *count > 0), "{kinds:?}");

    // The settings may be in the newer object or under the older key. Other scaling types are errors.
    let mut newer = scaling.clone();
    newer["rope_theta"] = 500_000.0.into();
    assert_eq!(Made::new().with("rope_parameters", newer).open().unwrap().hyperparameters(), &h);
    let older = Made::new().with("rope_theta", 500_000.into());
    let mut named = scaling.clone();
    named["type"] = named["rope_type"].take();
    assert_eq!(older.with("rope_scaling", named).open().unwrap().hyperparameters(), &h);
    let linear = Made::new().with("rope_scaling", json!({ "type": "linear", "factor": 2.0 })).open().unwrap();
    assert_eq!(linear.hyperparameters().rope.scale, 2.0);
    assert_eq!(linear.hyperparameters().rope.frequencies(None)[0], 0.5);
    let none = Made::new().with("rope_scaling", Value::Null).open().unwrap();
    assert_eq!(none.hyperparameters(), Made::new().open().unwrap().hyperparameters());

    let fails = |key: &str, value: Value| {
        let mut scaling = scaling.clone();
        scaling[key] = value;
        Made::new().with("rope_scaling", scaling).error()
    };
    assert_eq!(
        fails("rope_type", "spiral".into()),
        "not supported: rotary scaling of type \"spiral\" (config.json)"
    );
    assert!(fails("high_freq_factor", 0.5.into()).contains("is below low_freq_factor"));
    assert!(
        fails("factor", 0.into())
            .contains("rope_scaling.factor in config.json: 0 is not finite and positive")
    );
    assert!(fails("factor", Value::Null).contains("d/config.json has no metadata rope_scaling.factor"));
    assert!(fails("original_max_position_embeddings", (-1).into()).contains("-1 is not in 1 …"));
}

/// Compares the frequencies for several lengths with the formula of the `transformers` library.
#[test]
fn dynamic_scaling_depends_on_the_length() {
    let scaling = json!({ "rope_type": "dynamic", "factor": 4.0 });
    let made = Made::new().with("rope_scaling", scaling).with("max_position_embeddings", 64.into());
    let lengths = RopeLengths::of(&made.open().unwrap()).unwrap().unwrap();
    assert_eq!(lengths.recompute_at(), None);
    let plain = Made::new().open().unwrap().hyperparameters().rope.frequencies(None);
    assert_eq!([1, 64].map(|length| lengths.frequencies(length).to_vec()), [plain.clone(), plain]);
    for length in [65, 96, 1000] {
        let base = 10_000.0 * (4.0 * f64::from(length) / 64.0 - 3.0).powf(16.0 / 14.0);
        for (pair, found) in lengths.frequencies(length).iter().enumerate() {
            let wanted = base.powf(-2.0 * pair as f64 / 16.0);
            assert!((f64::from(*found) / wanted - 1.0).abs() < 1e-6, "{found} for {wanted}");
        }
    }
    assert!(made.with("rope_scaling", json!({ "type": "dynamic" })).error().contains("rope_scaling.factor"));
    // A micro-batch has one table of frequencies by length.
    let windowed = json!({ "sliding_attention": { "rope_type": "dynamic", "factor": 4.0 } });
    let error = Made::new().with("rope_parameters", windowed).error();
    assert!(error.contains("rotary scaling by length in layers with a window (config.json)"), "{error}");
}

/// Checks that a missing field has the value that `transformers` uses for the class, and that `null` is not
/// a missing field.
#[test]
fn missing_fields_have_the_defaults_of_their_class() {
    let read = |class: &str, config: Value| {
        let mut made = Made::new().with("architectures", json!([class]));
        for (key, value) in config.as_object().unwrap() {
            made = made.with(key, value.clone());
        }
        super::config::read(&made.directory()).map(|(_, h, _)| h)
    };
    let h = read("Gemma2ForCausalLM", json!({ "sliding_window": null, "head_dim": 16 })).unwrap();
    assert_eq!((h.extras.score_cap, h.extras.logit_cap), (Some(50.0), Some(30.0)));
    assert_eq!((h.extras.score_scale, h.extras.window), (Some(1.0 / 16.0), None));
    let h = read("Gemma3ForCausalLM", json!({})).unwrap();
    assert_eq!((h.head_dimensions, h.extras.window, h.rope.base), (256, Some(4096), 1e6));
    assert_eq!(h.extras.windowed_rope.unwrap().base, 1e4);
    let h = read("CohereForCausalLM", json!({ "layer_norm_eps": 1e-5 })).unwrap();
    assert_eq!((h.extras.logit_scale, h.rope.base), (0.0625, 5e5));
    let h = read("GraniteForCausalLM", json!({ "rope_parameters": {} })).unwrap();
    assert_eq!((h.extras.score_scale, h.rope.base), (Some(1.0), 1e4));
    let h = read("Glm4ForCausalLM", json!({ "head_dim": 16 })).unwrap();
    assert_eq!((h.rope.dimensions, h.extras.qkv_bias), (8, true));
    let h = read("MistralForCausalLM", json!({ "head_dim": 16 })).unwrap();
    assert_eq!(h.extras.window, Some(4096));
}

/// Creates a checkpoint whose query projection is F8_E4M3. Its values are those of `codes`, again and again.
/// The scales are called `name` after the tensor, and have the shape `shape`.
fn with_float8(made: &Made, name: &str, shape: &[u64], scales: &[f32], codes: &[u8]) -> Directory {
    const TENSOR: &str = "model.layers.0.self_attn.q_proj.weight";
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    let mut put_tensor = |name: &str, dtype: &str, shape: &[u64], bytes: Vec<u8>| {
        let begin = data.len();
        data.extend(bytes);
        header.insert(
            name.into(),
            json!({ "dtype": dtype, "shape": shape, "data_offsets": [begin, data.len()] }),
        );
    };
    for (name, shape) in &made.tensors {
        let count = shape.iter().product::<u64>() as usize;
        if name == TENSOR {
            put_tensor(name, "F8_E4M3", shape, codes.iter().copied().cycle().take(count).collect());
        } else {
            put_tensor(name, "F32", shape, vec![0; count * 4]);
        }
    }
    let bytes = scales.iter().flat_map(|scale| ((scale.to_bits() >> 16) as u16).to_le_bytes()).collect();
    put_tensor(&format!("{TENSOR}{name}"), "BF16", shape, bytes);
    put_tensor("model.layers.0.self_attn.q_proj.input_scale", "F32", &[1], vec![0; 4]);
    let mut directory = made.directory();
    put(&mut directory, MODEL, with_header(&Value::Object(header).to_string(), data));
    directory
}

fn fp8(tile: Value) -> Value {
    json!({ "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": tile })
}

#[test]
fn float8_tensors_become_blocks_with_their_scales() {
    let blocks = |config: Value, name: &str, shape: &[u64], scales: &[f32]| {
        let directory =
            with_float8(&Made::new().with("quantization_config", config), name, shape, scales, &[0x38, 0xb9]);
        let model = Model::from_directory(directory).unwrap();
        let tensor = model.weights().tensor("blk.0.attn_q.weight").unwrap().clone();
        assert_eq!((tensor.tensor_type, tensor.bytes), (TensorType::F8_E4M3, 32 * 36));
        let bytes = model.weights().bytes(&tensor).unwrap().into_owned();
        // Reads that begin and end within a block give the same bytes.
        let mut part = vec![0; 50];
        model.weights().read(&tensor, 30, &mut part).unwrap();
        assert_eq!(part, bytes[30..80]);
        let mut values = vec![0.0; 32 * 32];
        ragtag_kernels::blocks::dequantise(tensor.tensor_type, &bytes, &mut values).unwrap();
        assert!(values.chunks(2).all(|pair| pair[1] == -1.125 * pair[0]));
        values.chunks(32).map(|row| row[0]).collect::<Vec<f32>>()
    };
    let scales: Vec<f32> = (1..=32).map(|i| i as f32 * 0.25).collect();
    let none = Value::Null;
    for shape in [&[][..], &[1], &[1, 1]] {
        assert_eq!(blocks(none.clone(), "_scale", shape, &[0.5]), [0.5; 32]);
    }
    assert_eq!(blocks(none.clone(), "_scale", &[32], &scales), scales);
    assert_eq!(blocks(none, "_scale", &[32, 1], &scales), scales);
    let tiles = blocks(fp8(json!([10, 64])), "_scale_inv", &[4, 1], &[1.0, 2.0, 3.0, 4.0]);
    assert_eq!(tiles, (0..32).map(|row| (row / 10 + 1) as f32).collect::<Vec<_>>());
    let group = json!({ "weights": { "type": "float", "num_bits": 8, "block_structure": [16, 32] } });
    let config = json!({
        "quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": { "group_0": group },
    });
    let tiles = blocks(config, "_scale", &[2, 1], &[1.0, 2.0]);
    assert_eq!((tiles[15], tiles[16]), (1.0, 2.0));
}

#[test]
fn invalid_float8_tensors_are_errors() {
    let open = |config: &Value, name: &str, shape: &[u64], codes: &[u8]| {
        let scales = vec![
            f32::from(u8::from(codes[0] != 1)) / f32::from(codes[0]);
            shape.iter().product::<u64>() as usize
        ];
        Model::from_directory(with_float8(
            &Made::new().with("quantization_config", config.clone()),
            name,
            shape,
            &scales,
            codes,
        ))
    };
    let error =
        |config: &Value, name: &str, shape: &[u64]| open(config, name, shape, &[2]).unwrap_err().to_string();
    let tensor = "model.layers.0.self_attn.q_proj.weight";
    let missing = error(&Value::Null, "_zero", &[1]);
    assert!(
        missing.contains(&format!("{tensor}: is F8_E4M3 and needs one of {tensor}_scale_inv")),
        "{missing}"
    );
    let tiles = fp8(json!([16, 32]));
    for (config, shape, wanted) in [
        (&tiles, &[1u64][..], "scale per tile of 16 × 32"),
        (&tiles, &[1, 2], "scale per tile"),
        (&tiles, &[3, 1], "scale per tile"),
        (&Value::Null, &[16], "one scale, or one per row"),
        (&Value::Null, &[1, 32], "one scale, or one per row"),
    ] {
        let found = error(config, "_scale_inv", shape);
        assert!(found.contains(tensor) && found.contains("has shape") && found.contains(wanted), "{found}");
    }
    for (config, wanted) in [
        (fp8(json!([16, 24])), "weight_block_size in config.json: 16 × 24 is not"),
        (fp8(json!([0, 32])), "0 × 32 is not"),
        (fp8(json!([16])), "weight_block_size should be a list of two whole numbers"),
        (
            json!({ "quant_method": "fp8", "fmt": "e5m2" }),
            "quantization_config.fmt in config.json = \"e5m2\"",
        ),
        (json!({ "quant_method": "awq" }), "quantization_config.quant_method in config.json = \"awq\""),
        (
            json!({ "quant_method": "compressed-tensors", "format": "pack-quantized" }),
            "format in config.json",
        ),
        (
            json!({ "quant_method": "compressed-tensors", "config_groups": { "g": { "weights": { "type": "int" } } } }),
            "quantization_config.config_groups.g.weights.type in config.json = \"int\"",
        ),
    ] {
        let found = error(&config, "_scale", &[1]);
        assert!(found.contains(wanted), "{found}");
    }
    // The content is checked when it is read.
    for (codes, wanted) in
        [(&[2, 2, 0x7f][..], "a value of row 0 is NaN"), (&[0xff], "NaN"), (&[0], "not finite")]
    {
        let model = open(&Value::Null, "_scale", &[1], codes).unwrap();
        let found = model.weights().bytes(model.weights().tensor("blk.0.attn_q.weight").unwrap());
        let found = found.unwrap_err().to_string();
        assert!(
            found.contains(&format!("d/model.safetensors: tensor {tensor}: ")) && found.contains(wanted),
            "{found}"
        );
    }
}

#[test]
fn settings_of_bitnet_checkpoints_are_checked() {
    let bitnet = |key: &str, value: Value| {
        let mut config = json!({ "quant_method": "bitnet", "linear_class": "autobitlinear" });
        config[key] = value;
        Made::new().with("quantization_config", config)
    };
    // The weights may have any type that is not packed.
    assert!(bitnet("modules_to_not_convert", json!(["lm_head"])).open().is_ok());
    for (key, value, wanted) in [
        ("use_rms_norm", json!(true), "quantization_config.use_rms_norm in config.json = true"),
        ("linear_class", json!("linear"), "linear_class in config.json = \"linear\""),
        ("quantization_mode", json!("half"), "quantization_mode in config.json = \"half\""),
        ("modules_to_not_convert", json!(["x"]), "modules_to_not_convert in config.json other than lm_head"),
    ] {
        let error = bitnet(key, value).error();
        assert!(error.contains(wanted), "{error}");
    }
    let online = bitnet("quantization_mode", json!("online")).open().unwrap();
    let tensor_type = |name: &str| online.weights().tensor(name).unwrap().tensor_type;
    assert_eq!(tensor_type("blk.0.attn_q.weight"), TensorType::F8_E4M3);
    assert_eq!([tensor_type("output.weight"), tensor_type("token_embd.weight")], [TensorType::F32; 2]);
    // U8 tensors are the packed weights of such checkpoints only.
    let name = "model.layers.0.self_attn.q_proj.weight";
    let packed = |config: Value| {
        let made = Made::new().with("quantization_config", config);
        let mut directory = made.directory();
        let mut header = serde_json::Map::new();
        header.insert(name.into(), json!({ "dtype": "U8", "shape": [8, 32], "data_offsets": [0, 256] }));
        put(&mut directory, MODEL, with_header(&Value::Object(header).to_string(), vec![0; 256]));
        Model::from_directory(directory).unwrap_err().to_string()
    };
    let error = packed(Value::Null);
    assert!(error.contains(name) && error.contains("is U8, which only BitNet checkpoints"), "{error}");
    let error = packed(json!({ "quant_method": "bitnet" }));
    assert!(error.contains(&format!("is ternary and needs {name}_scale")), "{error}");
}

/// Returns the model of a configuration without weights.
fn described(config: &str) -> Result<Model, ModelError> {
    let mut directory = Directory::new("d");
    put(&mut directory, CONFIG, config.as_bytes().to_vec());
    Model::described(directory, Some(TensorType::BF16))
}

#[test]
fn layers_of_nemotron_are_of_four_kinds() {
    let nano = r#"{"architectures": ["NemotronHForCausalLM"], "attention_bias": false, "head_dim": 128, "hidden_size": 2688,
        "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME", "intermediate_size": 1856,
        "layer_norm_epsilon": 1e-05, "mamba_head_dim": 64, "mamba_hidden_act": "silu", "mamba_num_heads": 64,
        "mamba_proj_bias": false, "max_position_embeddings": 262144, "mlp_bias": false, "mlp_hidden_act": "relu2",
        "moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712, "n_group": 1, "n_groups": 8,
        "n_routed_experts": 128, "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 32,
        "num_experts_per_tok": 6, "num_hidden_layers": 52, "num_key_value_heads": 2, "partial_rotary_factor": 1.0,
        "rope_theta": 10000, "routed_scaling_factor": 2.5, "sliding_window": null, "ssm_state_size": 128,
        "time_step_limit": [0.0, Infinity], "topk_group": 1, "use_bias": false, "use_conv_bias": true, "vocab_size": 131072}"#;
    let model = described(nano).unwrap();
    assert!(model.parameters().abs_diff(31_578_000_000) < 1_000_000, "{}", model.parameters());
    for (from, to, wanted) in [
        ("[0.0, Infinity]", "[0.0, 0.5]", "time_step_limit in config.json = a list"),
        ("\"MEMEM", "\"MEME", "hybrid_override_pattern in config.json: 51 layers instead of 52"),
        ("\"MEMEM", "\"MEMEX", "layers of type \"X\""),
        ("\"use_bias\": false", "\"use_bias\": true", "use_bias in config.json = true"),
        ("\"head_dim\": 128", "\"attention_head_dim\": 96", "attention_head_dim in config.json = 96"),
        ("\"hybrid_override_pattern\"", "\"x\"", "layers_block_type"),
    ] {
        let error = described(&nano.replace(from, to)).map(drop).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
    }
}
