//! Shapes of dense models for planning. Each model directory contains a `config.json` but no weights, because
//! the planner does not read weights.

use ragtag::{Model, TensorType};
use std::path::Path;

/// Name and dimensions of each model: layers, width, heads, KV heads, feed-forward width and vocabulary. Each
/// model is about 1.5 times as large as the next one.
pub const SHAPES: [(&str, [u32; 6]); 13] = [
    ("405B", [126, 16384, 128, 8, 53248, 128_256]),
    ("310B", [118, 15360, 120, 8, 46080, 128_256]),
    ("223B", [96, 14336, 112, 8, 43008, 128_256]),
    ("162B", [94, 12288, 96, 8, 36864, 151_936]),
    ("123B", [88, 12288, 96, 8, 28672, 32768]),
    ("71B", [80, 8192, 64, 8, 28672, 128_256]),
    ("46B", [80, 8192, 64, 8, 16384, 128_256]),
    ("33B", [64, 5120, 40, 8, 27648, 152_064]),
    ("22B", [56, 6144, 48, 8, 16384, 32768]),
    ("15B", [48, 5120, 40, 8, 13824, 152_064]),
    ("8B", [32, 4096, 32, 8, 14336, 128_256]),
    ("3.6B", [28, 3072, 24, 8, 8192, 128_256]),
    ("1.5B", [16, 2048, 32, 8, 8192, 128_256]),
];

/// Creates the directory of a shape in `folder` and opens it as a model with Q4_K matrices.
pub fn model(folder: &Path, name: &str, shape: [u32; 6]) -> Result<Model, Box<dyn std::error::Error>> {
    let [layers, width, heads, kv_heads, inner, vocabulary] = shape;
    let folder = folder.join(name);
    std::fs::create_dir(&folder)?;
    let config = serde_json::json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": width,
        "intermediate_size": inner,
        "max_position_embeddings": 8192,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": kv_heads,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "tie_word_embeddings": false,
        "torch_dtype": "bfloat16",
        "vocab_size": vocabulary,
    });
    std::fs::write(folder.join("config.json"), config.to_string())?;
    Ok(Model::open_metadata(folder, Some(TensorType::Q4_K))?)
}
