//! Tests mixtures of experts and other recent architectures. The expected logits are those of `transformers` in float64,
//! which `tests/support/golden/experts.py` wrote. The weights follow from a formula.

use crate::gpus::{LAVAPIPE, POCL, gpus_and};
use crate::support::{
    Setup, block_on, engine, feed_forward_apart, greedy, listen, ragtag, read_json, relative_error,
};
use ragtag::{Granularity, Model, Prompt};
use ragtag_graph::gguf::Writer;
use ragtag_kernels::{Activations, NumericsClass, TensorType};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tempfile::TempDir;

/// Shape and values of tensors, by name.
pub type Tensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

#[derive(Clone)]
pub struct Golden {
    /// File that holds the model.
    pub file: &'static str,
    /// Class of `transformers`, without its ending.
    pub name: String,
    pub config: Value,
    pub ids: Vec<u32>,
    /// Logits of the last id.
    logits: Vec<f32>,
    pub tensors: Tensors,
    /// Whether GGUF files have the form of older converters, with one matrix for keys and values of a latent.
    has_older_form: bool,
}

fn golden() -> Vec<Golden> {
    ["experts.json", "recent.json"].into_iter().flat_map(|file| read(file, weight)).collect()
}

/// Returns the shapes of all tensors. A shape of tensors in all layers has * instead of their numbers.
fn shapes_of(of_model: &Value) -> BTreeMap<String, Vec<usize>> {
    let shapes: BTreeMap<String, Vec<usize>> = serde_json::from_value(of_model["shapes"].clone()).unwrap();
    let layers = of_model["config"]["num_hidden_layers"].as_u64().unwrap_or(0);
    let all = shapes.into_iter().flat_map(|(key, shape)| {
        let count = if key.contains('*') { layers } else { 1 };
        (0..count).map(move |layer| (key.replace('*', &layer.to_string()), shape.clone()))
    });
    all.collect()
}

/// Returns the models of a file. `weight` returns the weight of a model with these numbers and this name.
pub fn read(file: &'static str, weight: fn(&str, usize, usize, &str) -> f32) -> Vec<Golden> {
    let all = read_json(&test_support::golden(file));
    let golden = |(name, of_model): (&String, &Value)| {
        let shapes = shapes_of(of_model);
        // The embedding may also serve as the head.
        let is_tied = of_model["config"]["tie_word_embeddings"] == json!(true);
        let numbered = shapes.into_iter().enumerate();
        let own = numbered.filter(|(_, (key, _))| !(is_tied && key == "lm_head.weight"));
        let tensors = own.map(|(tensor, (key, shape))| {
            let values = (0..shape.iter().product()).map(|at| weight(name, tensor, at, &key)).collect();
            (key, (shape, values))
        });
        Golden {
            file,
            name: name.clone(),
            config: of_model["config"].clone(),
            ids: serde_json::from_value(of_model["ids"].clone()).unwrap(),
            logits: serde_json::from_value(of_model["logits"].clone()).unwrap(),
            tensors: tensors.collect(),
            has_older_form: false,
        }
    };
    all.as_object().unwrap().iter().map(golden).collect()
}

/// Divisors of the weights of gpt-oss.
const GPT_OSS: [(&str, f32); 7] = [
    ("sinks", 64.0),
    ("gate_up_proj", 64.0),
    ("gate_up_proj_bias", 64.0),
    ("experts.down_proj", 8192.0),
    ("q_proj.weight", 4096.0),
    ("k_proj.weight", 4096.0),
    ("q_proj.bias", 128.0),
];

/// Ends of the names of weights near 1.
const NEAR_ONE: [&str; 6] = [
    "norm.weight",
    "layernorm_1.weight",
    "layernorm_2.weight",
    "layer_scalar",
    "router.scale",
    "per_expert_scale",
];

/// Returns weight number `at` of a tensor of the model `name`. All types without blocks hold it exactly.
fn weight(name: &str, tensor: usize, at: usize, key: &str) -> f32 {
    let value = (((at + 1) * 7919 + (tensor + 1) * 104_729) % 65_537 % 257) as i32 - 128;
    if NEAR_ONE.iter().any(|end| key.ends_with(end)) {
        return 1.0 + value.div_euclid(2) as f32 / 128.0;
    }
    let of_key = GPT_OSS.iter().find(|(end, _)| name == "GptOss" && key.ends_with(end));
    if let Some((_, divisor)) = of_key {
        return value as f32 / divisor;
    }
    if ["router.proj.weight", "feed_forward.router.weight"].iter().any(|end| key.ends_with(end)) {
        let divisor = if name == "Llama4" { 512.0 } else { 32.0 };
        return (((at + 1) * (at + 3) * 7919 % 65_537 % 257) as i32 - 128) as f32 / divisor;
    }
    let is_router = ["mlp.gate.weight", "router.weight"].iter().any(|end| key.ends_with(end));
    let divisor = if key.ends_with("e_score_correction_bias") { 256.0 } else { 512.0 };
    value as f32 / if is_router { 128.0 } else { divisor }
}

/// Returns the bytes of values of a type.
pub fn bytes_of(tensor_type: TensorType, values: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; tensor_type.bytes(values.len() as u64).unwrap() as usize];
    ragtag_kernels::blocks::quantise(tensor_type, values, &mut bytes).unwrap();
    bytes
}

/// Returns the models of these tests, each with whether a GGUF file or a directory holds it, and the file with its logits.
pub fn verified() -> Vec<(Model, bool, &'static str)> {
    let opened = |golden: Golden| {
        let (_file, gguf) = golden.open_gguf(TensorType::F32);
        let (_folder, directory) = golden.open(&golden.published(), TensorType::F32);
        [(gguf, true, golden.file), (directory, false, golden.file)]
    };
    golden().into_iter().flat_map(opened).collect()
}

impl Golden {
    /// Returns the tensors with the names and shapes of a published checkpoint, in which each expert has its own.
    fn published(&self) -> Tensors {
        if ["GptOss", "Llama4"].contains(&&*self.name) {
            return self.tensors.clone();
        }
        let is_mixtral = ["Mixtral", "MiniMaxM2"].contains(&&*self.name);
        let mut out = BTreeMap::new();
        for (key, (shape, values)) in &self.tensors {
            let Some((layer, part)) = key.split_once("mlp.experts.") else {
                let mut key = key.clone();
                for (from, to) in [
                    ("router.weight", "router.layer.weight"),
                    ("moe.experts.gate_up_proj", "moe.input_linear.weight"),
                    ("moe.experts.down_proj", "moe.output_linear.weight"),
                    ("gate.moe_statics.", "moe_statics."),
                    ("mlp.gate.weight", "block_sparse_moe.gate.weight"),
                    ("mlp.e_score", "block_sparse_moe.e_score"),
                ] {
                    if is_mixtral || !to.starts_with("block_sparse_moe.") {
                        key = key.replace(from, to);
                    }
                }
                out.insert(key, (shape.clone(), values.clone()));
                continue;
            };
            let parts: &[&str] = match (part, is_mixtral) {
                ("gate_up_proj", true) => &["w1", "w3"],
                ("gate_up_proj", false) => &["gate_proj", "up_proj"],
                (_, true) => &["w2"],
                (_, false) => &["down_proj"],
            };
            let block = if is_mixtral { "block_sparse_moe" } else { "mlp" };
            let (rows, columns) = (shape[1] / parts.len(), shape[2]);
            for (at, values) in values.chunks_exact(rows * columns).enumerate() {
                let (expert, part) = (at / parts.len(), parts[at % parts.len()]);
                let key = format!("{layer}{block}.experts.{expert}.{part}.weight");
                out.insert(key, (vec![rows, columns], values.to_vec()));
            }
        }
        out
    }

    /// Writes a model directory with weights of this type, and opens it.
    pub fn open(&self, tensors: &Tensors, tensor_type: TensorType) -> (TempDir, Model) {
        let folder = self.write(tensors, tensor_type);
        let model = Model::open(folder.path()).unwrap();
        (folder, model)
    }

    /// Writes a model directory with weights of this type.
    fn write(&self, tensors: &Tensors, tensor_type: TensorType) -> TempDir {
        let stored = tensors.iter().map(|(name, (shape, values))| {
            (name.clone(), tensor_type.to_string(), shape.clone(), bytes_of(tensor_type, values))
        });
        self.write_bytes(stored.collect())
    }

    /// Writes a model directory with these tensors: name, type, shape and bytes.
    fn write_bytes(&self, tensors: Vec<(String, String, Vec<usize>, Vec<u8>)>) -> TempDir {
        let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
        for (name, dtype, shape, bytes) in tensors {
            let ends = [data.len(), data.len() + bytes.len()];
            header.insert(name, json!({ "dtype": dtype, "shape": shape, "data_offsets": ends }));
            data.extend(bytes);
        }
        let folder = tempfile::tempdir().unwrap();
        let header = Value::Object(header).to_string();
        let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
        std::fs::write(folder.path().join("model.safetensors"), file).unwrap();
        // Python writes infinity without quotes.
        let config = self.config.to_string().replace("\"Infinity\"", "Infinity");
        std::fs::write(folder.path().join("config.json"), config).unwrap();
        folder
    }

    /// Writes a GGUF file whose experts have this type, and opens it. All other weights are f32.
    fn open_gguf(&self, tensor_type: TensorType) -> (TempDir, Model) {
        let (mut writer, mut data) = (Writer::new(), Vec::new());
        self.put_metadata(&mut writer);
        let mut all: Vec<_> = self.rope_freqs().into_iter().collect();
        for (key, (shape, values)) in &self.tensors {
            all.extend(self.gguf_tensors(key, shape, values));
        }
        for (name, shape, values) in all {
            let is_expert = name.ends_with("_exps.weight");
            let tensor_type = if is_expert { tensor_type } else { TensorType::F32 };
            let (bytes, sizes) =
                (bytes_of(tensor_type, &values), shape.iter().rev().map(|size| *size as u64));
            writer.tensor(&name, tensor_type, &sizes.collect::<Vec<_>>(), bytes.len() as u64);
            data.extend_from_slice(&bytes);
            data.resize(data.len() + writer.padding(bytes.len() as u64) as usize, 0);
        }
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("m.gguf");
        std::fs::write(&file, [writer.header(), data].concat()).unwrap();
        let model = Model::open(file).unwrap();
        (folder, model)
    }

    fn put_metadata(&self, writer: &mut Writer) {
        let architecture = match &*self.name {
            "Mixtral" => "llama",
            "Qwen2Moe" => "qwen2moe",
            "Qwen3Moe" => "qwen3moe",
            "Olmoe" => "olmoe",
            "GraniteMoe" => "granitemoe",
            "Glm4Moe" => "glm4moe",
            "MiniMaxM2" => "minimax-m2",
            "DeepseekV2" | "DeepseekV2-Lite" | "DeepseekV3" | "Glm4MoeLite" => "deepseek2",
            "Mistral4" => "mistral4",
            "Llama4" => "llama4",
            "DeepseekV32" => "deepseek32",
            "GptOss" => "gpt-oss",
            "SeedOss" => "seed_oss",
            "Exaone4" => "exaone4",
            "Olmo3" => "olmo2",
            "HunYuanDenseV1" => "hunyuan-dense",
            "Apertus" => "apertus",
            _ if self.is_gemma4() => "gemma4",
            _ => "ernie4_5-moe",
        };
        writer.put("general.architecture", architecture);
        let count = |key: &str| self.config[key].as_u64().map(|count| count as u32);
        let keys: [(&str, &[&str]); 17] = [
            ("block_count", &["num_hidden_layers"]),
            ("context_length", &["max_position_embeddings"]),
            ("embedding_length", &["hidden_size"]),
            ("feed_forward_length", &["intermediate_size"]),
            ("attention.head_count", &["num_attention_heads"]),
            ("attention.head_count_kv", &["num_key_value_heads"]),
            ("attention.key_length", &["head_dim"]),
            ("expert_count", &["num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"]),
            ("expert_used_count", &["num_experts_per_tok", "moe_k", "top_k_experts"]),
            ("expert_feed_forward_length", &["moe_intermediate_size"]),
            ("expert_shared_feed_forward_length", &["shared_expert_intermediate_size"]),
            ("expert_shared_count", &["n_shared_experts", "moe_num_shared_experts"]),
            ("expert_group_count", &["n_group"]),
            ("expert_group_used_count", &["topk_group"]),
            ("leading_dense_block_count", &["first_k_dense_replace", "moe_layer_start_index"]),
            ("interleave_moe_layer_step", &["moe_layer_interval"]),
            ("rope.dimension_count", &["rotary_dim"]),
        ];
        let is_latent = self.config["kv_lora_rank"].is_number();
        let of_heads = ["attention.head_count_kv", "attention.key_length"];
        let has_others = is_latent || self.is_gemma4();
        let is_own = |key: &&str| {
            if self.name == "Llama4" && *key == "feed_forward_length" {
                return false;
            }
            let is_listed =
                self.config["use_double_wide_mlp"] == json!(true) && *key == "feed_forward_length";
            !(is_listed || has_others && of_heads.contains(key))
        };
        for (key, fields) in keys.into_iter().filter(|(key, _)| is_own(key)) {
            if let Some(count) = fields.iter().find_map(|field| count(field)) {
                writer.put(&format!("{architecture}.{key}"), count);
            }
        }
        let float = |value: &Value| value.as_f64().unwrap() as f32;
        let epsilon = float(&self.config["rms_norm_eps"]);
        writer.put(&format!("{architecture}.attention.layer_norm_rms_epsilon"), epsilon);
        let rope = self.full_rope();
        let mut base = float(&rope["rope_theta"]);
        if let (Some(alpha), Some(size)) = (rope["alpha"].as_f64(), self.config["head_dim"].as_f64()) {
            base = (f64::from(base) * alpha.powf(size / (size - 2.0))) as f32;
        }
        writer.put(&format!("{architecture}.rope.freq_base"), base);
        for (key, field) in [
            ("embedding_scale", "embedding_multiplier"),
            ("residual_scale", "residual_multiplier"),
            ("attention.scale", "attention_multiplier"),
            ("logit_scale", "logits_scaling"),
            ("expert_weights_scale", "routed_scaling_factor"),
        ] {
            if self.config[field].is_number() {
                writer.put(&format!("{architecture}.{key}"), float(&self.config[field]));
            }
        }
        if is_latent {
            self.put_latent_metadata(writer, architecture);
        }
        self.put_window_metadata(writer, architecture);
        self.put_numbers_of_apertus(writer);
        if self.name == "Glm4Moe" {
            writer.put("glm4moe.expert_weights_norm", true);
            writer.put("glm4moe.expert_gating_func", 2u32);
            writer.put("glm4moe.rope.dimension_count", 16u32);
        }
        if self.name == "Llama4" {
            for (key, field) in [
                ("feed_forward_length", "intermediate_size_mlp"),
                ("expert_feed_forward_length", "intermediate_size"),
                ("attention.chunk_size", "attention_chunk_size"),
                ("attention.temperature_length", "floor_scale"),
            ] {
                writer.put(&format!("llama4.{key}"), count(field).unwrap());
            }
            writer.put("llama4.interleave_moe_layer_step", 2u32);
            writer.put("llama4.attention.temperature_scale", float(&self.config["attn_scale"]));
        }
        if self.name == "GptOss" {
            let yarn = &self.config["rope_parameters"];
            writer.put("gpt-oss.expert_feed_forward_length", count("intermediate_size").unwrap());
            writer.put("gpt-oss.attention.sliding_window", count("sliding_window").unwrap());
            writer.put("gpt-oss.rope.scaling.type", "yarn");
            writer.put("gpt-oss.rope.scaling.factor", float(&yarn["factor"]));
            let original = yarn["original_max_position_embeddings"].as_u64().unwrap() as u32;
            writer.put("gpt-oss.rope.scaling.original_context_length", original);
        }
    }

    fn is_gemma4(&self) -> bool {
        self.name.starts_with("Gemma4")
    }

    /// Returns the settings of RoPE in layers without a window.
    fn full_rope(&self) -> &Value {
        let all = &self.config["rope_parameters"];
        if all["full_attention"].is_object() { &all["full_attention"] } else { all }
    }

    /// Returns the factors of RoPE in a GGUF file of Gemma 4, where a quarter of the pairs rotates, and in one of Llama 4,
    /// where the first pair alone turns more than once in the original context.
    fn rope_freqs(&self) -> Option<(String, Vec<usize>, Vec<f32>)> {
        let factors = match &*self.name {
            "Llama4" => [&[1.0][..], &[4.0; 15]].concat(),
            _ if self.is_gemma4() => [[1.0; 4].as_slice(), &[1e30; 12]].concat(),
            _ => return None,
        };
        Some(("rope_freqs.weight".into(), vec![16], factors))
    }

    /// Writes what layers with a window have.
    fn put_window_metadata(&self, writer: &mut Writer, architecture: &str) {
        let Some(types) = self.config["layer_types"].as_array() else { return };
        let windowed: Vec<bool> = types.iter().map(|kind| kind == "sliding_attention").collect();
        let key = |part: &str| format!("{architecture}.{part}");
        let count = |field: &str| self.config[field].as_u64().unwrap() as u32;
        writer.put(&key("attention.sliding_window"), count("sliding_window"));
        writer.put(&key("attention.sliding_window_pattern"), &windowed[..]);
        let rope = self.full_rope();
        if rope["rope_type"] == "yarn" {
            writer.put(&key("rope.scaling.type"), "yarn");
            let numbers = [("factor", "factor"), ("yarn_attn_factor", "attention_factor")];
            for (part, field) in numbers {
                writer.put(&key(&format!("rope.scaling.{part}")), rope[field].as_f64().unwrap() as f32);
            }
            let original = rope["original_max_position_embeddings"].as_u64().unwrap() as u32;
            writer.put(&key("rope.scaling.original_context_length"), original);
        }
        if !self.is_gemma4() {
            return;
        }
        let kv_heads = count("num_key_value_heads");
        let heads = windowed.iter().map(|is_windowed| if *is_windowed { kv_heads } else { 1 });
        writer.put(&key("attention.head_count_kv"), &heads.collect::<Vec<u32>>()[..]);
        if self.config["use_double_wide_mlp"] == json!(true) {
            let (hidden, own) =
                (count("intermediate_size"), types.len() - count("num_kv_shared_layers") as usize);
            let sizes = (0..types.len()).map(|layer| if layer < own { hidden } else { 2 * hidden });
            writer.put(&key("feed_forward_length"), &sizes.collect::<Vec<u32>>()[..]);
        }
        for (part, size) in
            [("key_length", 32u32), ("value_length", 32), ("key_length_swa", 16), ("value_length_swa", 16)]
        {
            writer.put(&key(&format!("attention.{part}")), size);
        }
        writer.put(&key("rope.dimension_count"), 32u32);
        writer.put(&key("rope.dimension_count_swa"), 16u32);
        let base = self.config["rope_parameters"]["sliding_attention"]["rope_theta"].as_f64().unwrap();
        writer.put(&key("rope.freq_base_swa"), base as f32);
        writer.put(
            &key("final_logit_softcapping"),
            self.config["final_logit_softcapping"].as_f64().unwrap() as f32,
        );
        for (part, field) in [
            ("attention.shared_kv_layers", "num_kv_shared_layers"),
            ("embedding_length_per_layer_input", "hidden_size_per_layer_input"),
        ] {
            writer.put(&key(part), count(field));
        }
    }

    /// Writes the numbers of xIELU, which a checkpoint has in tensors.
    fn put_numbers_of_apertus(&self, writer: &mut Writer) {
        for part in ["alpha_p", "alpha_n", "beta", "eps"] {
            let of_part = self.tensors.iter().filter(|(key, _)| key.ends_with(&format!("act_fn.{part}")));
            let numbers: Vec<f32> = of_part.map(|(_, (_, values))| values[0]).collect();
            if !numbers.is_empty() {
                writer.put(&format!("xielu.{part}"), &numbers[..]);
            }
        }
    }

    fn put_latent_metadata(&self, writer: &mut Writer, architecture: &str) {
        let mut put = |key: &str, count: u32| writer.put(&format!("{architecture}.{key}"), count);
        let count = |key: &str| self.config[key].as_u64().unwrap() as u32;
        let [rank, plain, rotating] = ["kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim"].map(count);
        let value = count("v_head_dim");
        put("attention.kv_lora_rank", rank);
        put("rope.dimension_count", rotating);
        if self.config["q_lora_rank"].is_number() {
            put("attention.q_lora_rank", count("q_lora_rank"));
        }
        if self.has_older_form {
            put("attention.head_count_kv", count("num_key_value_heads"));
            put("attention.key_length", plain + rotating);
            put("attention.value_length", value);
        } else {
            put("attention.head_count_kv", 1);
            put("attention.key_length", rank + rotating);
            put("attention.value_length", rank);
            put("attention.key_length_mla", plain + rotating);
            put("attention.value_length_mla", value);
            put(
                "expert_gating_func",
                if ["DeepseekV3", "DeepseekV32", "Glm4MoeLite"].contains(&&*self.name) { 2 } else { 1 },
            );
        }
        for (key, field) in
            [("top_k", "index_topk"), ("head_count", "index_n_heads"), ("key_length", "index_head_dim")]
        {
            if self.config[field].is_number() {
                put(&format!("attention.indexer.{key}"), count(field));
            }
        }
        if self.name == "Glm4MoeLite" {
            put("leading_dense_block_count", 1);
        }
        if self.config["norm_topk_prob"] == json!(true) {
            writer.put(&format!("{architecture}.expert_weights_norm"), true);
        }
        let rope = &self.config["rope_parameters"];
        if rope["rope_type"] == "yarn" {
            writer.put(&format!("{architecture}.rope.scaling.type"), "yarn");
            let original = rope["original_max_position_embeddings"].as_u64().unwrap() as u32;
            writer.put(&format!("{architecture}.rope.scaling.original_context_length"), original);
            for (key, field, factor) in [
                ("rope.scaling.factor", "factor", 1.0),
                ("rope.scaling.yarn_log_multiplier", "mscale_all_dim", 0.1),
                ("attention.temperature_scale", "llama_4_scaling_beta", 1.0),
            ] {
                if let Some(value) = rope[field].as_f64() {
                    writer.put(&format!("{architecture}.{key}"), (value * factor) as f32);
                }
            }
        }
    }

    /// Returns the two tensors of a GGUF file that hold a matrix from latents to keys and values: the part for keys, transposed
    /// for each head, and the part for values.
    fn split_latents(&self, layer: &str, values: &[f32]) -> Vec<(String, Vec<usize>, Vec<f32>)> {
        let size = |key: &str| self.config[key].as_u64().unwrap() as usize;
        let (rank, plain, value) = (size("kv_lora_rank"), size("qk_nope_head_dim"), size("v_head_dim"));
        let (mut keys, mut others) = (Vec::new(), Vec::new());
        for head in values.chunks_exact((plain + value) * rank) {
            let (of_keys, of_values) = head.split_at(plain * rank);
            keys.extend((0..rank * plain).map(|at| of_keys[at % plain * rank + at / plain]));
            others.extend_from_slice(of_values);
        }
        let heads = size("num_attention_heads");
        vec![
            (format!("blk.{layer}.attn_k_b.weight"), vec![heads, rank, plain], keys),
            (format!("blk.{layer}.attn_v_b.weight"), vec![heads, value, rank], others),
        ]
    }

    /// Returns the tensors of a GGUF file that hold a tensor of the model.
    fn gguf_tensors(
        &self,
        key: &str,
        shape: &[usize],
        values: &[f32],
    ) -> Vec<(String, Vec<usize>, Vec<f32>)> {
        if self.name == "Llama4" && key.contains("feed_forward") {
            let key = key.replace("feed_forward", "mlp");
            return match *shape {
                [experts, columns, rows] => {
                    self.gguf_tensors(&key, &[experts, rows, columns], &transposed(values, columns, rows))
                }
                _ => self.gguf_tensors(&key, shape, values),
            };
        }
        let one = |name: String, values: Vec<f32>| vec![(name, shape.to_vec(), values)];
        let Some(rest) = key.strip_prefix("model.layers.") else {
            let name = match key {
                "lm_head.weight" => "output.weight",
                "model.norm.weight" => "output_norm.weight",
                "model.embed_tokens_per_layer.weight" => "per_layer_token_embd.weight",
                "model.per_layer_model_projection.weight" => "per_layer_model_proj.weight",
                "model.per_layer_projection_norm.weight" => "per_layer_proj_norm.weight",
                _ => "token_embd.weight",
            };
            return one(name.into(), values.to_vec());
        };
        let rest = rest.replace("block_sparse_moe.", "mlp.").replace("router.weight", "gate.weight");
        let (layer, part) = rest.split_once('.').unwrap();
        let blk = |part: &str| format!("blk.{layer}.{part}");
        if self.name == "GptOss" && part.contains("mlp.experts.") {
            return experts_of_gpt_oss(layer, part, shape, values);
        }
        if part.contains("act_fn.") {
            // The metadata holds the numbers.
            return vec![];
        }
        if part == "mlp.experts.gate_up_proj" {
            let (half, rows) = (shape[1] / 2 * shape[2], vec![shape[0], shape[1] / 2, shape[2]]);
            let part =
                |first: usize| values.chunks_exact(half).skip(first).step_by(2).flatten().copied().collect();
            let names = ["ffn_gate_exps.weight", "ffn_up_exps.weight"];
            return names
                .into_iter()
                .enumerate()
                .map(|(i, name)| (blk(name), rows.clone(), part(i)))
                .collect();
        }
        if part == "self_attn.kv_b_proj.weight" && !self.has_older_form {
            return self.split_latents(layer, values);
        }
        if part.ends_with("e_score_correction_bias") {
            return vec![(blk("exp_probs_b.bias"), vec![values.len()], values.to_vec())];
        }
        let ffn_norm = match &*self.name {
            "Glm4Moe" | "GptOss" | "SeedOss" | "Exaone4" | "Olmo3" => "post_attention_norm",
            _ if self.is_gemma4() => "post_attention_norm",
            _ => "ffn_norm",
        };
        let names = [
            ("pre_feedforward_layernorm", "ffn_norm"),
            ("post_feedforward_layernorm", "post_ffw_norm"),
            ("pre_feedforward_layernorm_2", "pre_ffw_norm_2"),
            ("post_feedforward_layernorm_1", "post_ffw_norm_1"),
            ("post_feedforward_layernorm_2", "post_ffw_norm_2"),
            ("attention_layernorm", "attn_norm"),
            ("feedforward_layernorm", "ffn_norm"),
            ("self_attn.query_layernorm", "attn_q_norm"),
            ("self_attn.key_layernorm", "attn_k_norm"),
            ("layer_scalar", "layer_output_scale.weight"),
            ("per_layer_input_gate", "inp_gate"),
            ("per_layer_projection", "proj"),
            ("post_per_layer_input_norm", "post_norm"),
            ("router.proj", "ffn_gate_inp"),
            ("router.scale", "ffn_gate_inp.scale"),
            ("router.per_expert_scale", "ffn_down_exps.scale"),
            ("experts.gate_up_proj", "ffn_gate_up_exps.weight"),
            ("experts.down_proj", "ffn_down_exps.weight"),
            ("input_layernorm", "attn_norm"),
            ("post_attention_layernorm", ffn_norm),
            ("mlp.gate_proj", "ffn_gate"),
            ("mlp.up_proj", "ffn_up"),
            ("mlp.down_proj", "ffn_down"),
            ("mlp.shared_experts.gate_proj", "ffn_gate_shexp"),
            ("mlp.shared_experts.up_proj", "ffn_up_shexp"),
            ("mlp.shared_experts.down_proj", "ffn_down_shexp"),
            ("self_attn.q_proj", "attn_q"),
            ("self_attn.k_proj", "attn_k"),
            ("self_attn.v_proj", "attn_v"),
            ("self_attn.o_proj", "attn_output"),
            ("self_attn.q_a_proj", "attn_q_a"),
            ("self_attn.q_a_layernorm", "attn_q_a_norm"),
            ("self_attn.q_b_proj", "attn_q_b"),
            ("self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"),
            ("self_attn.kv_a_layernorm", "attn_kv_a_norm"),
            ("self_attn.kv_b_proj", "attn_kv_b"),
            ("self_attn.indexer.wq_b", "indexer.attn_q_b"),
            ("self_attn.indexer.wk", "indexer.attn_k"),
            ("self_attn.indexer.k_norm", "indexer.k_norm"),
            ("self_attn.indexer.weights_proj", "indexer.proj"),
            ("self_attn.q_norm", "attn_q_norm"),
            ("self_attn.k_norm", "attn_k_norm"),
            ("mlp.gate", "ffn_gate_inp"),
            ("mlp.router", "ffn_gate_inp"),
            ("self_attn.sinks", "attn_sinks.weight"),
            ("mlp.experts.down_proj", "ffn_down_exps.weight"),
            ("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
            ("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
            ("mlp.shared_expert.up_proj", "ffn_up_shexp"),
            ("mlp.shared_expert.down_proj", "ffn_down_shexp"),
        ];
        let (stem, end) = ["weight", "bias"]
            .into_iter()
            .find_map(|end| Some((part.strip_suffix(end)?.strip_suffix('.')?, format!(".{end}"))))
            .unwrap_or((part, String::new()));
        let (_, name) = names.iter().find(|(theirs, _)| *theirs == stem).unwrap_or_else(|| panic!("{key}"));
        let name = blk(&format!("{name}{end}"));
        if part.contains("shared_expert_gate") {
            // A GGUF file has a vector.
            return vec![(name, vec![values.len()], values.to_vec())];
        }
        let rotates = ["self_attn.q_proj", "self_attn.k_proj"].contains(&stem)
            && ["Mixtral", "GraniteMoe"].contains(&&*self.name);
        let heads = self.config
            [if stem.contains("q_proj") { "num_attention_heads" } else { "num_key_value_heads" }]
        .as_u64()
        .unwrap() as usize;
        one(name, if rotates { interleaved(values, heads, shape[1]) } else { values.to_vec() })
    }

    pub fn check(&self, model: &Model, setup: &Setup<'_>, what: &str) {
        let logits = block_on(engine(model, setup).session().logits(&self.ids)).unwrap();
        let error = relative_error(&logits[logits.len() - self.logits.len()..], &self.logits);
        let class =
            if setup.activations == Activations::F32 { NumericsClass::Exact } else { NumericsClass::Fast };
        println!("{}, {what}: relative error {error:.2e}", self.name);
        assert!(error <= class.tolerance(), "{}, {what}: {error}", self.name);
    }
}

/// Transposes the matrix of each expert.
fn transposed(values: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    let of_expert = |values: &[f32]| {
        let column = |at: usize| (0..rows).map(move |row| row * columns + at);
        (0..columns).flat_map(column).map(|at| values[at]).collect::<Vec<f32>>()
    };
    values.chunks_exact(rows * columns).flat_map(of_expert).collect()
}

/// Returns the tensors of a GGUF file that hold weights or biases of the experts of gpt-oss.
fn experts_of_gpt_oss(
    layer: &str,
    part: &str,
    shape: &[usize],
    values: &[f32],
) -> Vec<(String, Vec<usize>, Vec<f32>)> {
    let is_bias = part.ends_with("_bias");
    let end = if is_bias { "bias" } else { "weight" };
    let name = |part: &str| format!("blk.{layer}.{part}_exps.{end}");
    let experts = shape[0];
    let (rows, columns, values) = match shape {
        [_, columns, rows] => (*rows, *columns, transposed(values, *columns, *rows)),
        _ => (shape[1], 1, values.to_vec()),
    };
    let sizes = |rows: usize| if is_bias { vec![experts, rows] } else { vec![experts, rows, columns] };
    if part.contains("down_proj") {
        return vec![(name("ffn_down"), sizes(rows), values)];
    }
    let every_second = |first: usize| values.chunks_exact(columns).skip(first).step_by(2).flatten().copied();
    let parts = ["ffn_gate", "ffn_up"].into_iter().enumerate();
    parts.map(|(first, part)| (name(part), sizes(rows / 2), every_second(first).collect())).collect()
}

/// Reorders the rows of each head such that RoPE pairs neighbouring rows instead of the halves of a head.
pub fn interleaved(values: &[f32], heads: usize, columns: usize) -> Vec<f32> {
    let rows: Vec<&[f32]> = values.chunks_exact(columns).collect();
    let half = rows.len() / heads / 2;
    let row = |at: usize| rows[at / (2 * half) * 2 * half + at % 2 * half + at % (2 * half) / 2];
    (0..rows.len()).flat_map(|at| row(at).to_vec()).collect()
}

/// Returns the setup of one CPU device.
fn setup() -> Setup<'static> {
    Setup { context: 64, ..Setup::default() }
}

#[test]
fn logits_of_experts_are_those_of_transformers() {
    for golden in golden() {
        for tensor_type in [TensorType::F32, TensorType::F16, TensorType::BF16] {
            let (_folder, model) = golden.open(&golden.published(), tensor_type);
            let last = model.graph().segment_count() - 1;
            golden.check(&model, &setup(), &format!("{tensor_type}"));
            let split = format!("0-1=cpu:0,2-{last}=cpu:1");
            let cut = Setup { chunk: 3, split: Some(&split), cpu_devices: 2, threads: 2, ..setup() };
            golden.check(&model, &cut, &format!("{tensor_type}, two devices"));
            for activations in [Activations::Int8, Activations::F16] {
                golden.check(
                    &model,
                    &Setup { activations, ..setup() },
                    &format!("{tensor_type}, {activations}"),
                );
            }
        }
        if ["Qwen2Moe", "Qwen3Moe", "Olmoe", "Glm4Moe", "Mistral4"].contains(&&*golden.name) {
            let (_folder, fused) = golden.open(&golden.tensors, TensorType::F32);
            golden.check(&fused, &setup(), "all experts in one tensor");
        }
        let (_folder, gguf) = golden.open_gguf(TensorType::F32);
        golden.check(&gguf, &setup(), "GGUF");
    }
}

/// Checks that each cut gives the same logits bit for bit, also one between attention and the experts, and so do steps of one
/// token.
#[test]
fn cuts_and_steps_do_not_change_the_logits_of_experts() {
    for golden in golden() {
        let (_folder, model) = golden.open_gguf(TensorType::Q8_0);
        let halves = Setup { granularity: Granularity::HalfBlock, ..setup() };
        let logits =
            |setup: &Setup<'_>| block_on(engine(&model, setup).session().logits(&golden.ids)).unwrap();
        let whole = logits(&halves);
        // Layers that share keys and values are one segment.
        let segments = model.graph().with_granularity(Granularity::HalfBlock).segment_count();
        for cut in 1..segments.min(6) {
            let last = segments - 1;
            let split = format!("0-{}=cpu:0,{cut}-{last}=cpu:1", cut - 1);
            let setup = Setup { split: Some(&split), cpu_devices: 2, ..halves.clone() };
            assert!(logits(&setup) == whole, "{}, cut {cut}", golden.name);
        }
        let steps = logits(&Setup { chunk: 1, ..setup() });
        let error = relative_error(&steps, &whole);
        assert!(error <= NumericsClass::Exact.tolerance(), "{}, one token at a time: {error}", golden.name);
    }
}

#[test]
fn greedy_tokens_of_experts_are_the_largest_logits_of_one_pass() {
    for golden in golden() {
        let (_folder, model) = golden.open_gguf(TensorType::F32);
        let session = engine(&model, &setup()).session();
        let stream = session.generate(Prompt::Tokens(&golden.ids), &greedy(8)).unwrap();
        let generated = block_on(listen(stream)).unwrap().ids;
        let ids = [&golden.ids[..], &generated].concat();
        let logits = block_on(engine(&model, &setup()).session().logits(&ids)).unwrap();
        let rows: Vec<&[f32]> = logits.chunks_exact(golden.logits.len()).collect();
        for (step, id) in generated.iter().enumerate() {
            assert_eq!(
                crate::support::argmax(rows[golden.ids.len() + step - 1]),
                *id,
                "{}, {step}",
                golden.name
            );
        }
    }
}

/// Checks that each feature of a mixture changes the logits, so that these tests would find its absence.
#[test]
fn features_of_mixtures_change_the_logits() {
    let error = |golden: &Golden, tensors: &BTreeMap<_, _>| {
        let (_folder, model) = golden.open(tensors, TensorType::F32);
        let logits = block_on(engine(&model, &setup()).session().logits(&golden.ids)).unwrap();
        relative_error(&logits[logits.len() - golden.logits.len()..], &golden.logits)
    };
    for mut golden in golden() {
        let mut tensors = golden.published();
        if golden.name == "Qwen2Moe" {
            let gates = tensors.iter_mut().filter(|(key, _)| key.ends_with("shared_expert_gate.weight"));
            gates.for_each(|(_, (_, values))| values.fill(0.0));
            assert!(error(&golden, &tensors) > 1e-3, "gate of the shared expert");
        }
        if golden.name == "GptOss" {
            for (end, neutral) in [("sinks", -1e30), ("gate_up_proj_bias", 0.0), ("down_proj_bias", 0.0)] {
                let mut tensors = tensors.clone();
                let found = tensors.iter_mut().filter(|(key, _)| key.ends_with(end));
                found.for_each(|(_, (_, values))| values.fill(neutral));
                assert!(error(&golden, &tensors) > 1e-2, "{end}");
            }
            for (field, other) in [("swiglu_limit", json!(1e9)), ("sliding_window", json!(64))] {
                let usual = std::mem::replace(&mut golden.config[field], other);
                assert!(error(&golden, &tensors) > 1e-2, "{field}");
                golden.config[field] = usual;
            }
        }
        // DeepSeek V2 never divides by the sum.
        let flag =
            golden.config["norm_topk_prob"].as_bool().filter(|_| !golden.name.starts_with("DeepseekV2"));
        if let Some(flag) = flag {
            golden.config["norm_topk_prob"] = json!(!flag);
            assert!(error(&golden, &golden.published()) > 1e-3, "{}: sum of the weights", golden.name);
        }
    }
}

/// Changes the experts of gpt-oss to values that MXFP4 holds. Returns all tensors in the released form: name, type, shape and
/// bytes.
fn released_mxfp4(tensors: &mut Tensors) -> Vec<(String, String, Vec<usize>, Vec<u8>)> {
    let mut stored = Vec::new();
    for (key, (shape, values)) in tensors {
        let &[experts, columns, rows] = &shape[..] else {
            stored.push((key.clone(), "F32".into(), shape.clone(), bytes_of(TensorType::F32, values)));
            continue;
        };
        let blocks = bytes_of(TensorType::MXFP4, &transposed(values, columns, rows));
        let mut decoded = vec![f32::NAN; values.len()];
        ragtag_kernels::blocks::dequantise(TensorType::MXFP4, &blocks, &mut decoded).unwrap();
        *values = transposed(&decoded, rows, columns);
        let (mut quants, mut scales) = (Vec::new(), Vec::new());
        for block in blocks.chunks_exact(17) {
            let quant = |at: usize| block[1 + at % 16] >> (at / 16 * 4) & 15;
            quants.extend((0..16).map(|at| quant(2 * at) | quant(2 * at + 1) << 4));
            scales.push(block[0]);
        }
        let sizes = vec![experts, rows, columns / 32];
        stored.push((format!("{key}_blocks"), "U8".into(), [&sizes[..], &[16]].concat(), quants));
        stored.push((format!("{key}_scales"), "U8".into(), sizes, scales));
    }
    stored
}

#[test]
fn mxfp4_experts_have_the_values_of_their_blocks() {
    let mut golden = golden().into_iter().find(|golden| golden.name == "GptOss").unwrap();
    let stored = released_mxfp4(&mut golden.tensors);
    let logits = |model: &Model| block_on(engine(model, &setup()).session().logits(&golden.ids)).unwrap();
    let (_folder, plain) = golden.open(&golden.tensors, TensorType::F32);
    let expected = logits(&plain);
    let check = |model: &Model, what: &str| {
        let error = relative_error(&logits(model), &expected);
        println!("{what}: relative error {error:.2e}");
        assert!(error <= NumericsClass::Exact.tolerance(), "{what}: {error}");
    };
    check(&golden.open_gguf(TensorType::MXFP4).1, "GGUF");
    let mut config = golden.config.clone();
    config["quantization_config"] = json!({ "quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"] });
    let quantised = Golden {
        config,
        tensors: Tensors::new(),
        file: "",
        name: "GptOss".into(),
        ids: vec![],
        logits: vec![],
        has_older_form: false,
    };
    let folder = quantised.write_bytes(stored.clone());
    check(&Model::open(folder.path()).unwrap(), "directory");
    // Damaged directories.
    let refused = |stored: Vec<_>| {
        let folder = quantised.write_bytes(stored);
        Model::open(folder.path()).map(drop).unwrap_err().to_string()
    };
    let is_scales = |name: &str| name == "model.layers.1.mlp.experts.down_proj_scales";
    let lost = refused(stored.iter().filter(|(name, ..)| !is_scales(name)).cloned().collect());
    assert!(lost.contains("needs model.layers.1.mlp.experts.down_proj_scales"), "{lost}");
    let mut short = stored;
    let scales = short.iter_mut().find(|(name, ..)| is_scales(name)).unwrap();
    scales.2[2] += 1;
    scales.3.resize(scales.2.iter().product(), 0);
    let wrong = refused(short);
    assert!(wrong.contains("down_proj_scales") && wrong.contains("has shape [2, 64, 6]"), "{wrong}");
}

/// Checks that the text part of Qwen3-VL-MoE is the same model, whether its experts are transposed or not.
#[test]
fn experts_of_a_text_part_may_be_transposed() {
    let mut golden = golden().into_iter().find(|golden| golden.name == "Qwen3Moe").unwrap();
    let mut text = golden.config.clone();
    text["model_type"] = json!("qwen3_vl_moe_text");
    text.as_object_mut().unwrap().remove("norm_topk_prob");
    golden.config = json!({ "architectures": ["Qwen3VLMoeForConditionalGeneration"], "text_config": text });
    for is_transposed in [true, false] {
        let in_part = |(key, (shape, values)): (&String, &(Vec<usize>, Vec<f32>))| {
            let key = key.replacen("model.", "model.language_model.", 1);
            match shape[..] {
                [experts, rows, columns] if is_transposed => {
                    (key, (vec![experts, columns, rows], transposed(values, rows, columns)))
                }
                _ => (key, (shape.clone(), values.clone())),
            }
        };
        let tensors: Tensors = golden.tensors.iter().map(in_part).collect();
        let (_folder, model) = golden.open(&tensors, TensorType::F32);
        golden.check(&model, &setup(), &format!("transposed: {is_transposed}"));
    }
}

/// Checks the text part of Llama 4 with the fields of published files, which list no layers.
#[test]
fn llama4_is_the_text_part_of_a_vision_model() {
    let mut golden = golden().into_iter().find(|golden| golden.name == "Llama4").unwrap();
    let mut text = golden.config.clone();
    (text["no_rope_layers"], text["attn_temperature_tuning"]) = (json!([]), json!(4));
    (text["moe_layers"], text["interleave_moe_layer_step"]) = (json!(null), json!(2));
    let mut tensors: Tensors = golden
        .tensors
        .iter()
        .map(|(key, tensor)| (format!("language_model.{key}"), tensor.clone()))
        .collect();
    tensors.insert("vision_model.layernorm_pre.weight".into(), (vec![8], vec![1.0; 8]));
    tensors.insert("multi_modal_projector.linear_1.weight".into(), (vec![8, 8], vec![1.0; 64]));
    golden.config = json!({ "architectures": ["Llama4ForConditionalGeneration"], "text_config": text });
    let (_folder, model) = golden.open(&tensors, TensorType::F32);
    golden.check(&model, &setup(), "text part");
    let mut refused = |field: &str, value: Value| {
        let usual = std::mem::replace(&mut golden.config["text_config"][field], value);
        let folder = golden.write(&tensors, TensorType::F32);
        golden.config["text_config"][field] = usual;
        Model::open(folder.path()).map(drop).unwrap_err().to_string()
    };
    for (field, value, words) in [
        ("num_experts_per_tok", json!(2), "2 with weights before the experts"),
        ("moe_layers", json!([1, 4]), "moe_layers"),
        ("layer_types", json!(["chunked_attention", "full_attention"]), "does not list 4 layers"),
        (
            "layer_types",
            json!(["chunked_attention", "sliding_attention", "a", "b"]),
            "does not list 4 layers",
        ),
        ("attention_chunk_size", json!(0), "0 is not in"),
        ("floor_scale", json!(0), "0 is not in"),
        ("no_rope_layers", json!([1]), "1 layers instead of 4"),
    ] {
        let error = refused(field, value);
        assert!(error.contains(words), "{field}: {error}");
    }
}

#[test]
fn older_files_have_one_matrix_for_keys_and_values() {
    for mut golden in golden().into_iter().filter(|golden| golden.name.starts_with("Deepseek")) {
        golden.has_older_form = true;
        let (_folder, model) = golden.open_gguf(TensorType::F32);
        golden.check(&model, &setup(), "GGUF in the older form");
    }
}

#[test]
fn experts_run_on_every_device() {
    for adapter in gpus_and(&[POCL, LAVAPIPE]) {
        let label = adapter.label();
        let types = [TensorType::F32, TensorType::F16, TensorType::BF16].into_iter().cycle();
        for (golden, tensor_type) in golden().into_iter().zip(types) {
            let (_folder, model) = golden.open(&golden.published(), tensor_type);
            let setup = Setup { devices: &label, chunk: 5, ..setup() };
            golden.check(&model, &setup, &format!("{tensor_type} on {label}"));
            golden.check(
                &model,
                &Setup { chunk: 1, ..setup.clone() },
                &format!("{tensor_type} on {label}, steps"),
            );
            let fast = Setup { activations: Activations::Int8, ..setup };
            golden.check(&model, &fast, &format!("{tensor_type} on {label}, int8"));
        }
    }
}

/// Checks that attention with sinks, to chunks, and to the keys and values of another layer do not depend on the rows of a
/// micro-batch: in steps of one token, and in prompts whose attention is split although they have many rows.
#[test]
fn long_prompts_agree_on_every_device() {
    let names = ["GptOss", "Llama4", "Gemma4-E2B"];
    for golden in golden().into_iter().filter(|golden| names.contains(&&*golden.name)) {
        long_prompts_agree(&golden);
    }
}

fn long_prompts_agree(golden: &Golden) {
    let (_folder, model) = golden.open_gguf(TensorType::F32);
    let ids: Vec<u32> = (0..60).map(|at| (at * 7 + 3) % 40).collect();
    let logits = |setup: &Setup<'_>| block_on(engine(&model, setup).session().logits(&ids)).unwrap();
    let expected = logits(&Setup { chunk: 60, ..setup() });
    let labels = gpus_and(&[POCL, LAVAPIPE]).into_iter().map(|adapter| adapter.label());
    for (label, chunk) in
        labels.flat_map(|label| [(label.clone(), 1), (label, 40)]).chain([("cpu".into(), 1)])
    {
        let error = relative_error(&logits(&Setup { devices: &label, chunk, ..setup() }), &expected);
        println!("{}, {label}, chunk {chunk}: relative error {error:.2e}", golden.name);
        assert!(error <= NumericsClass::Exact.tolerance(), "{label}, chunk {chunk}: {error}");
    }
}

#[test]
fn layers_that_predict_further_tokens_are_not_read() {
    let mut golden = golden().into_iter().find(|golden| golden.name == "Glm4Moe").unwrap();
    let mut tensors = golden.published();
    for (name, shape) in [("eh_proj", vec![64, 128]), ("enorm", vec![64]), ("self_attn.q_proj", vec![64, 64])]
    {
        let values = vec![0.5; shape.iter().product()];
        tensors.insert(format!("model.layers.3.{name}.weight"), (shape, values));
    }
    tensors.insert("mtp.fc.weight".into(), (vec![64], vec![0.5; 64]));
    let (folder, model) = golden.open(&tensors, TensorType::F32);
    golden.check(&model, &setup(), "with a layer that predicts further tokens");
    let inspect = |options: &[&str]| {
        let output = ragtag().arg("inspect").arg(folder.path()).args(options).assert().success();
        String::from_utf8(output.get_output().stdout.clone()).unwrap()
    };
    let text = inspect(&[]);
    assert!(text.contains("further-token layers") && text.contains("1, not used (4 tensors, "), "{text}");
    let json: Value = serde_json::from_str(&inspect(&["--json"])).unwrap();
    let bytes = 4 * (64 * 128 + 64 + 64 * 64 + 64);
    assert_eq!(json["further_token_layers"], json!({ "layers": 1, "tensors": 4, "bytes": bytes }));
    golden.config["num_nextn_predict_layers"] = json!(0);
    let folder = golden.write(&tensors, TensorType::F32);
    let unknown = Model::open(folder.path()).map(drop).unwrap_err().to_string();
    assert!(unknown.contains("model.layers.3."), "{unknown}");
}

/// Checks that the context ends where the indexer would choose among positions, in commands and in engines.
#[test]
fn indexers_limit_the_context() {
    let mut golden = golden().into_iter().find(|golden| golden.name == "DeepseekV32").unwrap();
    golden.config["index_topk"] = json!(16);
    let (folder, model) = golden.open(&golden.published(), TensorType::F32);
    golden.check(&model, &Setup { context: 16, ..setup() }, "a context of 16 tokens");
    let output = |command: &str, options: &[&str], code: i32| {
        let device = if command == "plan" { &["--device", "cpu", "--no-calibration"][..] } else { &[] };
        let run = ragtag().arg(command).arg(folder.path()).args(options).args(device).assert().code(code);
        let output = run.get_output();
        let texts = [&output.stdout, &output.stderr].map(|text| String::from_utf8(text.clone()).unwrap());
        texts.concat()
    };
    let text = output("inspect", &[], 0);
    assert!(text.contains("16 of 64, because the indexer is not used"), "{text}");
    assert!(text.contains("layers with an indexer") && text.contains("3, not used (15 tensors, "), "{text}");
    let json: Value = serde_json::from_str(&output("inspect", &["--json"], 0)).unwrap();
    assert_eq!(json["indexers"]["layers"], json!(3));
    assert_eq!(json["hyperparameters"]["indexer"], json!({ "positions": 16, "context": 64 }));
    let text = output("plan", &[], 0);
    assert!(text.contains("contexts of this model end at 16 of 64 tokens"), "{text}");
    let text = output("plan", &["--ctx", "17"], 3);
    assert!(text.contains("a context of 17 tokens is not supported: beyond 16 tokens"), "{text}");
    let folder = golden.write(&golden.tensors, TensorType::F32);
    let config = folder.path().join("config.json");
    golden.config["layer_types"] = json!(["full_attention"]);
    std::fs::write(config, golden.config.to_string()).unwrap();
    let error = Model::open(folder.path()).map(drop).unwrap_err().to_string();
    assert!(error.contains("layer_types") && error.contains("full_attention"), "{error}");
}

/// Checks each model with its attention on one device and its experts on another, in both directions.
#[test]
fn experts_apart_from_attention_give_the_same_logits() {
    for (turn, adapter) in gpus_and(&[POCL, LAVAPIPE]).into_iter().enumerate() {
        let label = adapter.label();
        let devices = format!("{label},cpu:0");
        for (at, golden) in golden().into_iter().enumerate() {
            let (_folder, model) = golden.open_gguf(TensorType::F32);
            let on = if (turn + at) % 2 == 0 { [&*label, "cpu:0"] } else { ["cpu:0", &*label] };
            let granularity = Granularity::HalfBlock;
            let halves = model.graph().with_granularity(granularity).segment_count() as u32;
            let split = feed_forward_apart(on[0], on[1], halves);
            let apart = Setup { devices: &devices, granularity, split: Some(&split), ..setup() };
            golden.check(&model, &apart, &split);
        }
    }
}

#[test]
fn pins_place_the_experts_of_blocks() {
    let golden = golden().into_iter().find(|golden| golden.name == "Glm4Moe").unwrap();
    let (folder, _) = golden.open_gguf(TensorType::F32);
    let path = folder.path().join("m.gguf");
    let path = path.to_str().unwrap();
    let arguments =
        ["plan", path, "--device", "cpu", "--cpu-devices", "2", "--ctx", "64", "--no-calibration"];
    let stages = |pins: &[&str]| {
        let output = ragtag().args(arguments).args(pins).arg("--json").assert().success();
        let plan: Value = serde_json::from_slice(&output.get_output().stdout).unwrap();
        let stages = plan["stages"].as_array().unwrap().clone();
        stages.iter().map(|stage| (stage["segments"].clone(), stage["device"].clone())).collect::<Vec<_>>()
    };
    // The first of three blocks has no experts. Segment 4 is the second feed-forward half, and 6 the third.
    let apart = [(json!([0, 3]), "cpu:0"), (json!([4, 4]), "cpu:1"), (json!([5, 5]), "cpu:0")];
    let with_last = [&apart[..], &[(json!([6, 6]), "cpu:1"), (json!([7, 7]), "cpu:0")]].concat();
    let is = |found: Vec<(Value, Value)>, wanted: &[(Value, &str)]| {
        let wanted: Vec<_> = wanted.iter().map(|(span, device)| (span.clone(), json!(device))).collect();
        assert_eq!(found, wanted);
    };
    let rest = ["--pin", "0-1=cpu:0", "--pin", "5=cpu:0", "--pin", "7=cpu:0"];
    is(stages(&[&["--pin", "experts=cpu:1"], &rest[..]].concat()), &with_last);
    let one = [&apart[..2], &[(json!([5, 7]), "cpu:0")]].concat();
    is(stages(&[&["--pin", "1.experts=cpu:1", "--pin", "6=cpu:0"], &rest[..]].concat()), &one);
    // As llama.cpp writes them.
    is(stages(&[&["--override-tensor", r"blk\.[12]\.ffn_.*_exps=CPU1"], &rest[..]].concat()), &with_last);
    let on_first =
        ["--override-tensor", "exps=CPU", "--override-tensor", "attn=CPU1,token=CPU1,^output=CPU1"];
    let placed = stages(&[&on_first[..], &["--override-tensor", r"blk\.0\.ffn=CPU1"]].concat());
    let by_tensors = [(json!([0, 3]), "cpu:1"), (json!([4, 4]), "cpu:0"), (json!([5, 5]), "cpu:1")];
    is(placed, &[&by_tensors[..], &[(json!([6, 6]), "cpu:0"), (json!([7, 7]), "cpu:1")]].concat());
    let others = ["--pin", "0-3=cpu:1", "--pin", "5=cpu:1", "--pin", "7=cpu:1"];
    for on_cpu in [&["--cpu-moe"][..], &["--n-cpu-moe", "99"]] {
        is(
            stages(&[on_cpu, &others[..]].concat()),
            &[
                (json!([0, 3]), "cpu:1"),
                (json!([4, 4]), "cpu:0"),
                (json!([5, 5]), "cpu:1"),
                (json!([6, 6]), "cpu:0"),
                (json!([7, 7]), "cpu:1"),
            ],
        );
    }
    let fails = |options: &[&str]| {
        let output = ragtag().args(arguments).args(options).assert().code(4);
        String::from_utf8(output.get_output().stderr.clone()).unwrap()
    };
    let refused = |pin: &str, more: &[&str]| fails(&[&["--pin", pin], more].concat());
    assert!(fails(&["--override-tensor", "ffn_gate_exps=CPU"]).contains("cannot be apart"));
    assert!(fails(&["--override-tensor", "ffn_gate_expz=CPU"]).contains("matches no tensor"));
    assert!(refused("3.experts=cpu:1", &[]).contains("the last block is 2"));
    assert!(refused("0.experts=cpu:1", &[]).contains("these blocks have no experts"));
    assert!(refused("experts=cpu:1", &["--granularity", "block"]).contains("--granularity half"));
    assert!(refused("2-1.experts=cpu:1", &[]).contains("FIRST-LAST.experts=DEVICE"));
}

#[test]
fn damaged_mixtures_are_refused() {
    let refused = |change: &dyn Fn(&mut Golden, &mut Tensors)| {
        let mut golden = golden().into_iter().find(|golden| golden.name == "Qwen3Moe").unwrap();
        let mut tensors = golden.published();
        change(&mut golden, &mut tensors);
        let folder = golden.write(&tensors, TensorType::F32);
        Model::open(folder.path()).map(drop).unwrap_err().to_string()
    };
    let count = |count: u32| {
        refused(&move |golden, _| {
            golden.config["num_experts_per_tok"] = json!(count);
        })
    };
    assert!(count(9).contains("9 of 8 experts for each token"), "{}", count(9));
    assert!(count(0).contains("0 is not in"), "{}", count(0));
    let lost = refused(&|_, tensors| {
        tensors.remove("model.layers.1.mlp.experts.5.up_proj.weight");
    });
    assert!(lost.contains("model.layers.1.mlp.experts.5.up_proj.weight is missing"), "{lost}");
    let experts = |count: u32| {
        refused(&move |golden, _| {
            let key =
                ["num_experts", "num_local_experts"].into_iter().find(|key| !golden.config[*key].is_null());
            golden.config[key.unwrap()] = json!(count);
        })
    };
    assert!(experts(7).contains("mlp.gate.weight has shape"), "{}", experts(7));
    assert!(experts(1025).contains("1025 experts (the limit is 1024)"), "{}", experts(1025));
    let groups = refused(&|golden, _| {
        golden.config["n_group"] = json!(3);
        golden.config["topk_group"] = json!(1);
    });
    assert!(groups.contains("2 of 8 experts, from 1 of 3 groups"), "{groups}");
    let dense = refused(&|golden, _| golden.config["mlp_only_layers"] = json!([0]));
    assert!(dense.contains("mlp_only_layers"), "{dense}");
}
