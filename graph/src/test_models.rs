//! Models for this crate's tests: bundled models, and models without weight data.

use crate::{Directory, MemorySource, Model, ModelFile, Source, TensorInfo, Weights, gguf};
use ragtag_kernels::TensorType;
use std::sync::Arc;
use test_support::golden_bytes;

fn open(name: &'static str, bytes: &'static [u8]) -> Model {
    let source: Arc<dyn Source> = Arc::new(MemorySource::new(name, bytes));
    Model::new(ModelFile::open(vec![source]).unwrap()).unwrap()
}

pub(crate) fn bitnet() -> Model {
    open("bitnet", include_bytes!("../../engine/models/tales-bitnet-tq2_0.gguf"))
}

pub(crate) fn llama() -> Model {
    open("llama", include_bytes!("../../examples/models/tales-q8_0.gguf"))
}

/// Opens a tiny model with biases for queries, keys and values.
pub(crate) fn qwen2() -> Model {
    open("qwen2", golden_bytes("tiny-qwen2", "model.gguf"))
}

/// Opens a tiny model with a norm for each query head and each key head.
pub(crate) fn qwen3() -> Model {
    open("qwen3", golden_bytes("tiny-qwen3", "model.gguf"))
}

/// Opens a tiny model with norms after each half of a layer, a window, and caps.
pub(crate) fn gemma2() -> Model {
    open("gemma2", golden_bytes("tiny-gemma2", "model.gguf"))
}

/// Opens a tiny model whose products read the residual stream without a norm.
pub(crate) fn olmo2() -> Model {
    open("olmo2", golden_bytes("tiny-olmo2", "model.gguf"))
}

/// Opens a tiny model with a factor of its embedding.
pub(crate) fn granite() -> Model {
    open("granite", golden_bytes("tiny-granite", "model.gguf"))
}

/// Opens a tiny model with layer norms, and biases of all products.
pub(crate) fn starcoder2() -> Model {
    open("starcoder2", golden_bytes("tiny-starcoder2", "model.gguf"))
}

/// Opens a tiny model with RoPE factors for short and for long contexts, from a GGUF file and from a
/// directory.
pub(crate) fn phi3() -> [Model; 2] {
    let file = open("phi3", golden_bytes("tiny-phi3", "model.gguf"));
    let mut directory = Directory::new("phi3");
    let mut put =
        |name: &str, bytes: &'static [u8]| directory.insert(name, Arc::new(MemorySource::new(name, bytes)));
    put("config.json", golden_bytes("tiny-phi3", "config.json"));
    put("model.safetensors", golden_bytes("tiny-phi3", "model.safetensors"));
    [file, Model::from_directory(directory).unwrap()]
}

/// Opens a tiny model whose blocks cannot be divided.
pub(crate) fn command_r() -> Model {
    open("command-r", golden_bytes("tiny-command-r", "model.gguf"))
}

/// Makes a model of two layers with sinks, and with experts that have biases. All its weights are zero.
pub(crate) fn gpt_oss() -> Model {
    let (mut writer, name) = (gguf::Writer::new(), "gpt-oss");
    writer.put("general.architecture", name);
    writer.put("gpt-oss.attention.layer_norm_rms_epsilon", 1e-5_f32);
    for (key, value) in [
        ("block_count", 2u32),
        ("context_length", 4096),
        ("embedding_length", 64),
        ("feed_forward_length", 32),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 2),
        ("attention.key_length", 32),
        ("attention.sliding_window", 20),
        ("expert_count", 4),
        ("expert_used_count", 2),
    ] {
        writer.put(&format!("{name}.{key}"), value);
    }
    let mut add = |name: &str, shape: &[u64]| {
        writer.tensor(name, TensorType::F32, shape, shape.iter().product::<u64>() * 4);
    };
    for (name, shape) in [("token_embd", &[64, 32][..]), ("output", &[64, 32]), ("output_norm", &[64])] {
        add(&format!("{name}.weight"), shape);
    }
    for (part, shape) in [
        ("attn_norm.weight", &[64][..]),
        ("attn_q.weight", &[64, 128]),
        ("attn_q.bias", &[128]),
        ("attn_k.weight", &[64, 64]),
        ("attn_k.bias", &[64]),
        ("attn_v.weight", &[64, 64]),
        ("attn_v.bias", &[64]),
        ("attn_output.weight", &[128, 64]),
        ("attn_output.bias", &[64]),
        ("attn_sinks.weight", &[4]),
        ("post_attention_norm.weight", &[64]),
        ("ffn_gate_inp.weight", &[64, 4]),
        ("ffn_gate_inp.bias", &[4]),
        ("ffn_gate_exps.weight", &[64, 32, 4]),
        ("ffn_gate_exps.bias", &[32, 4]),
        ("ffn_up_exps.weight", &[64, 32, 4]),
        ("ffn_up_exps.bias", &[32, 4]),
        ("ffn_down_exps.weight", &[32, 64, 4]),
        ("ffn_down_exps.bias", &[64, 4]),
    ] {
        (0..2).for_each(|layer| add(&format!("blk.{layer}.{part}"), shape));
    }
    let data = vec![0; writer.data_bytes() as usize];
    let source: Arc<dyn Source> = Arc::new(MemorySource::new(name, [writer.header(), data].concat()));
    Model::new(ModelFile::open(vec![source]).unwrap()).unwrap()
}

/// Opens the models above, except for those with sinks, and those with two lists of RoPE factors.
pub(crate) fn all() -> impl Iterator<Item = Model> {
    let open = [bitnet, llama, qwen2, qwen3, gemma2, granite, starcoder2, command_r, olmo2];
    open.into_iter().map(|open| open())
}

/// Dimensions of a Llama model.
pub(crate) struct Shape {
    pub(crate) layers: u32,
    pub(crate) width: u32,
    pub(crate) ffn: u32,
    pub(crate) heads: u32,
    pub(crate) kv_heads: u32,
    pub(crate) vocabulary: u32,
}

impl Shape {
    /// Builds a model whose tensors have no data. `layer_type` returns the type of the value and down
    /// projections of a layer. All other matrices are Q4_0.
    pub(crate) fn without_bytes(&self, layer_type: impl Fn(u32) -> TensorType) -> Model {
        let mut tensors = Vec::new();
        let mut add = |name: &str, tensor_type: TensorType, columns: u32, rows: u32| {
            let shape: Vec<_> = [columns, rows].into_iter().filter(|&n| n > 0).map(u64::from).collect();
            let blocks = shape.iter().product::<u64>() / tensor_type.block_values() as u64;
            let bytes = blocks * tensor_type.block_bytes() as u64;
            tensors.push(TensorInfo { name: name.into(), tensor_type, shape, shard: 0, offset: 0, bytes });
        };
        let (f32, q4, kv) = (TensorType::F32, TensorType::Q4_0, self.width / self.heads * self.kv_heads);
        add("token_embd.weight", q4, self.width, self.vocabulary);
        for layer in 0..self.layers {
            let other = layer_type(layer);
            for (part, tensor_type, columns, rows) in [
                ("attn_norm", f32, self.width, 0),
                ("attn_q", q4, self.width, self.width),
                ("attn_k", q4, self.width, kv),
                ("attn_v", other, self.width, kv),
                ("attn_output", q4, self.width, self.width),
                ("ffn_norm", f32, self.width, 0),
                ("ffn_gate", q4, self.width, self.ffn),
                ("ffn_up", q4, self.width, self.ffn),
                ("ffn_down", other, self.ffn, self.width),
            ] {
                add(&format!("blk.{layer}.{part}.weight"), tensor_type, columns, rows);
            }
        }
        add("output_norm.weight", f32, self.width, 0);
        add("output.weight", q4, self.width, self.vocabulary);
        let header: Arc<dyn Source> = Arc::new(MemorySource::new("header", self.header()));
        let file = ModelFile::open(vec![Arc::clone(&header)]).unwrap();
        Model::new(ModelFile { weights: Weights::new(vec![header], tensors).unwrap(), ..file }).unwrap()
    }

    /// Builds a GGUF header with these dimensions and no tensors.
    fn header(&self) -> Vec<u8> {
        let mut writer = gguf::Writer::new();
        writer.put("general.architecture", "llama");
        writer.put("llama.attention.layer_norm_rms_epsilon", 1e-5_f32);
        for (key, value) in [
            ("block_count", self.layers),
            ("context_length", 131_072),
            ("embedding_length", self.width),
            ("feed_forward_length", self.ffn),
            ("attention.head_count", self.heads),
            ("attention.head_count_kv", self.kv_heads),
        ] {
            writer.put(&format!("llama.{key}"), value);
        }
        writer.header()
    }
}
