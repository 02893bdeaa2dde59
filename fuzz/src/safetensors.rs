//! Opens arbitrary bytes as one file of a model directory whose other files are valid. Bytes that start with
//! a brace are the configuration or the index. Other bytes are a weights file. If the directory opens, all
//! tensors must be readable.

use super::short;
use ragtag_graph::{Directory, MemorySource, Model, checkpoint};
use std::sync::Arc;

const CONFIG: &str = r#"{"architectures": ["LlamaForCausalLM"], "hidden_size": 32, "num_hidden_layers": 1,
"num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 32, "rms_norm_eps": 1e-5, "vocab_size": 4,
"max_position_embeddings": 64, "tie_word_embeddings": true}"#;

/// Tensors of a valid model, each with its name, its shape as JSON, and its number of f16 values.
const TENSORS: [(&str, &str, u64); 11] = [
    ("model.embed_tokens.weight", "4,32", 128),
    ("model.layers.0.input_layernorm.weight", "32", 32),
    ("model.layers.0.self_attn.q_proj.weight", "32,32", 1024),
    ("model.layers.0.self_attn.k_proj.weight", "16,32", 512),
    ("model.layers.0.self_attn.v_proj.weight", "16,32", 512),
    ("model.layers.0.self_attn.o_proj.weight", "32,32", 1024),
    ("model.layers.0.post_attention_layernorm.weight", "32", 32),
    ("model.layers.0.mlp.gate_proj.weight", "32,32", 1024),
    ("model.layers.0.mlp.up_proj.weight", "32,32", 1024),
    ("model.layers.0.mlp.down_proj.weight", "32,32", 1024),
    ("model.norm.weight", "32", 32),
];

fn weights() -> Vec<u8> {
    let (mut entries, mut end) = (Vec::new(), 0);
    for (name, shape, values) in TENSORS {
        let begin = end;
        end += values * 2;
        entries
            .push(format!(r#""{name}":{{"dtype":"F16","shape":[{shape}],"data_offsets":[{begin},{end}]}}"#));
    }
    let header = format!("{{{}}}", entries.join(","));
    [(header.len() as u64).to_le_bytes().to_vec(), header.into_bytes(), vec![0; end as usize]].concat()
}

/// Returns whether the directory contains a valid model.
pub fn run(data: &[u8]) -> bool {
    let text = String::from_utf8_lossy(data);
    let (is_json, is_index) = (text.starts_with('{'), text.contains("weight_map"));
    let mut directory = Directory::new("fuzz");
    let put = |directory: &mut Directory, name: &str, bytes: Vec<u8>| {
        directory.insert(name, Arc::new(MemorySource::new(format!("fuzz/{name}"), bytes)));
    };
    let config = if is_json && !is_index { data.to_vec() } else { CONFIG.into() };
    put(&mut directory, "config.json", config);
    if is_index {
        put(&mut directory, "model.safetensors.index.json", data.to_vec());
    } else {
        put(&mut directory, "model.safetensors", if is_json { weights() } else { data.to_vec() });
    }
    let names = match checkpoint::shard_names(&directory) {
        Ok(names) => names,
        Err(error) => return short(&error),
    };
    for name in names {
        assert!(!name.contains(['/', '\\', ':', '\0']) && !name.starts_with('.'), "{name}");
        if directory.file(&name).is_none() {
            put(&mut directory, &name, weights());
        }
    }
    match Model::from_directory(directory) {
        Ok(model) => {
            for tensor in model.weights().tensors() {
                // Blocks of 8-bit floats are made when they are read, and NaN is an error.
                let bytes = match model.weights().bytes(tensor) {
                    Ok(bytes) => bytes,
                    Err(error) => return short(&error),
                };
                assert_eq!(
                    tensor.tensor_type.bytes(tensor.columns() * tensor.rows()),
                    Some(bytes.len() as u64)
                );
            }
            assert!(model.hyperparameters().rope.frequencies(None).iter().all(|f| f.is_finite()));
            true
        }
        Err(error) => short(&error),
    }
}
