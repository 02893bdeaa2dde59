//! Defines the shapes of synthetic models: presets, tensors and hyperparameters.

use super::fill::Values;
use super::vocabulary;
use ragtag_graph::gguf::Writer;
use ragtag_kernels::TensorType;

/// Preset shape of a model.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preset {
    /// 1.4 million weights: for tests
    Tiny,
    /// 296 million weights
    #[value(name = "300m")]
    M300,
    /// 1.1 billion weights, in the shape of a well-known small Llama
    #[value(name = "1.1b")]
    B1_1,
    /// 7.2 billion weights, in the shape of a well-known Llama-like model
    #[value(name = "7b")]
    B7,
    /// 69 billion weights, in the shape of a well-known large Llama, with blocks too large for any cache
    #[value(name = "70b")]
    B70,
    /// 1 billion weights with 32 experts: each token uses 4 experts and 0.3 billion weights
    #[value(name = "1b-a0.3b")]
    B1A03,
    /// 30.5 billion weights in the shape of a well-known mixture of 128 experts: each token uses 8 experts and 3.3 billion
    /// weights
    #[value(name = "30b-a3b")]
    B30A3,
    /// 16.2 billion weights nearly in the shape of a well-known small model with latent attention and 64 experts: each
    /// token uses 6 experts and 2.7 billion weights
    #[value(name = "deepseek-v2-lite")]
    DeepseekV2Lite,
    /// 20.9 billion weights in the shape of gpt-oss-20b, with 32 experts: each token uses 4 experts and 3.6 billion weights
    #[value(name = "gpt-oss-20b")]
    GptOss20,
    /// 27 billion weights in the shape of Qwen 3.5 27B: three of four layers are gated delta nets
    #[value(name = "qwen3.5-27b")]
    Qwen35B27,
    /// 35 billion weights in the shape of Qwen 3.5 35B-A3B, with 256 experts: each token uses 8 experts and 3 billion weights
    #[value(name = "qwen3.5-35b-a3b")]
    Qwen35B35A3,
}

/// Architecture of a synthetic model.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// Llama
    Llama,
    /// BitNet b1.58
    Bitnet,
    /// Qwen3 with a mixture of experts
    #[value(name = "qwen3moe")]
    Qwen3Moe,
    /// DeepSeek V2 without a latent of the queries, with experts in all blocks
    Deepseek2,
    /// gpt-oss, whose matrices other than experts are Q8_0 if the experts are MXFP4
    #[value(name = "gpt-oss")]
    GptOss,
    /// Qwen 3.5, whose layers are gated delta nets but for every fourth one
    Qwen35,
    /// Qwen 3.5 with experts and a network that all tokens use
    #[value(name = "qwen35moe")]
    Qwen35Moe,
}

/// Values of the latent of synthetic models, dimensions of a head that rotate, and networks of the size of an expert that all
/// tokens use.
const RANK: u32 = 512;
const ROTATING: u32 = 64;
const SHARED: u32 = 2;

/// Layers of Qwen 3.5 from one with attention to the next, its taps, values per head, and key heads of its delta nets.
const PERIOD: u32 = 4;
const TAPS: u32 = 4;
const STATE: u32 = 128;
const KEY_HEADS: u32 = 16;

/// Parameters that determine the tensors and the metadata of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Architecture of the model.
    pub architecture: Architecture,
    /// Tensor type of the matrices.
    pub tensor_type: TensorType,
    /// Number of transformer blocks.
    pub layers: u32,
    /// Width of the residual stream.
    pub width: u32,
    /// Number of query heads.
    pub heads: u32,
    /// Number of key and value heads.
    pub kv_heads: u32,
    /// Width of each head.
    pub head_width: u32,
    /// Width of the feed-forward layers, or of each expert.
    pub ffn: u32,
    /// Number of experts; 0 without a mixture.
    pub experts: u32,
    /// Number of experts that each token uses.
    pub used_experts: u32,
    /// Vocabulary size in tokens.
    pub vocabulary: u32,
    /// Maximum context length in the file.
    pub context: u32,
}

/// Tensor to write to the file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tensor {
    pub name: String,
    pub tensor_type: TensorType,
    /// Dimensions in GGUF order. The first dimension is the length of a row.
    pub shape: Vec<u64>,
    pub bytes: u64,
    pub values_like: Values,
}

impl Tensor {
    /// Returns the number of values in the tensor.
    pub fn values(&self) -> u64 {
        self.shape.iter().product()
    }
}

impl Preset {
    /// Returns the preset as a Llama model in Q8_0.
    pub fn shape(self) -> Shape {
        let (layers, width, heads, kv_heads, ffn, vocabulary, context) = match self {
            Preset::Tiny => (2, 256, 4, 2, 512, 512, 512),
            Preset::M300 => (16, 1024, 16, 4, 3840, 32000, 2048),
            Preset::B1_1 => (22, 2048, 32, 4, 5632, 32000, 2048),
            Preset::B7 => (32, 4096, 32, 8, 14336, 32000, 32768),
            Preset::B70 => (80, 8192, 64, 8, 28672, 32000, 4096),
            Preset::B1A03 => (16, 1024, 16, 4, 512, 32000, 4096),
            Preset::B30A3 => (48, 2048, 32, 4, 768, 151_936, 32768),
            Preset::DeepseekV2Lite => (27, 2048, 16, 1, 1408, 102_400, 32768),
            Preset::GptOss20 => (24, 2880, 64, 8, 2880, 201_088, 131_072),
            Preset::Qwen35B27 => (64, 5120, 24, 4, 17408, 248_320, 32768),
            Preset::Qwen35B35A3 => (40, 2048, 16, 2, 512, 248_320, 32768),
        };
        let (experts, used_experts) = match self {
            Preset::B1A03 | Preset::GptOss20 => (32, 4),
            Preset::B30A3 => (128, 8),
            Preset::DeepseekV2Lite => (64, 6),
            Preset::Qwen35B35A3 => (256, 8),
            _ => (0, 0),
        };
        let architecture = match self {
            Preset::DeepseekV2Lite => Architecture::Deepseek2,
            Preset::GptOss20 => Architecture::GptOss,
            Preset::Qwen35B27 => Architecture::Qwen35,
            Preset::Qwen35B35A3 => Architecture::Qwen35Moe,
            _ if experts > 0 => Architecture::Qwen3Moe,
            _ => Architecture::Llama,
        };
        let head_width = match self {
            Preset::DeepseekV2Lite => 192,
            Preset::B30A3 => 128,
            Preset::GptOss20 => 64,
            Preset::Qwen35B27 | Preset::Qwen35B35A3 => 256,
            _ => width / heads,
        };
        let tensor_type = TensorType::Q8_0;
        Shape {
            architecture,
            tensor_type,
            layers,
            width,
            heads,
            kv_heads,
            head_width,
            ffn,
            experts,
            used_experts,
            vocabulary,
            context,
        }
    }
}

impl Architecture {
    fn name(self) -> &'static str {
        match self {
            Architecture::Llama => "llama",
            Architecture::Bitnet => "bitnet",
            Architecture::Qwen3Moe => "qwen3moe",
            Architecture::Deepseek2 => "deepseek2",
            Architecture::GptOss => "gpt-oss",
            Architecture::Qwen35 => "qwen35",
            Architecture::Qwen35Moe => "qwen35moe",
        }
    }

    /// Returns whether models of this architecture are mixtures of experts.
    fn has_experts(self) -> bool {
        use Architecture::{Deepseek2, GptOss, Qwen3Moe, Qwen35Moe};
        matches!(self, Qwen3Moe | Deepseek2 | GptOss | Qwen35Moe)
    }

    /// Returns whether models of this architecture have gated delta nets.
    fn is_hybrid(self) -> bool {
        matches!(self, Architecture::Qwen35 | Architecture::Qwen35Moe)
    }
}

impl Shape {
    /// Writes the hyperparameters of the model to a GGUF header.
    pub(crate) fn describe(&self, header: &mut Writer) {
        let arch = self.architecture.name();
        header.put("general.architecture", arch);
        header.put("general.name", "synthetic");
        header.put("general.file_type", self.tensor_type.gguf_file_type());
        header.put("general.quantization_version", 2u32);
        let is_latent = self.architecture == Architecture::Deepseek2;
        let head_width = if is_latent { RANK + ROTATING } else { self.head_width };
        let is_hybrid = self.architecture.is_hybrid();
        if is_hybrid {
            for (key, number) in [
                ("full_attention_interval", PERIOD),
                ("ssm.conv_kernel", TAPS),
                ("ssm.state_size", STATE),
                ("ssm.group_count", KEY_HEADS),
                ("ssm.time_step_rank", self.value_heads()),
                ("ssm.inner_size", STATE * self.value_heads()),
            ] {
                header.put(&format!("{arch}.{key}"), number);
            }
            // Other programs require this key. Positions of text are the same in all sections.
            header.put(&format!("{arch}.rope.dimension_sections"), &[11i32, 11, 10, 0][..]);
        }
        if self.architecture == Architecture::Qwen35Moe {
            header.put(&format!("{arch}.expert_shared_feed_forward_length"), self.ffn);
        }
        if is_latent {
            header.put(&format!("{arch}.attention.kv_lora_rank"), RANK);
            header.put(&format!("{arch}.attention.key_length_mla"), self.head_width);
            header.put(&format!("{arch}.attention.value_length_mla"), self.head_width - ROTATING);
            header.put(&format!("{arch}.expert_shared_count"), SHARED);
        }
        if self.experts > 0 {
            header.put(&format!("{arch}.expert_count"), self.experts);
            header.put(&format!("{arch}.expert_used_count"), self.used_experts);
            header.put(&format!("{arch}.expert_feed_forward_length"), self.ffn);
        }
        let numbers = [
            ("block_count", self.layers),
            ("context_length", self.context),
            ("embedding_length", self.width),
            ("feed_forward_length", self.ffn),
            ("attention.head_count", self.heads),
            ("attention.head_count_kv", self.kv_heads),
            ("attention.key_length", head_width),
            ("attention.value_length", if is_latent { RANK } else { head_width }),
            (
                "rope.dimension_count",
                if is_latent { ROTATING } else { head_width / if is_hybrid { 4 } else { 1 } },
            ),
            ("vocab_size", self.vocabulary),
        ];
        for (key, number) in numbers {
            header.put(&format!("{arch}.{key}"), number);
        }
        if self.architecture == Architecture::GptOss {
            header.put("gpt-oss.attention.sliding_window", 128u32);
            header.put("gpt-oss.rope.scaling.type", "yarn");
            header.put("gpt-oss.rope.scaling.factor", 32f32);
            header.put("gpt-oss.rope.scaling.original_context_length", 4096u32);
        }
        header.put(&format!("{arch}.rope.freq_base"), 10000f32);
        header.put(&format!("{arch}.attention.layer_norm_rms_epsilon"), 1e-5f32);
    }

    /// Returns all tensors of the model in file order.
    ///
    /// # Errors
    /// Returns an error if the dimensions are inconsistent.
    pub(crate) fn tensors(&self) -> Result<Vec<Tensor>, String> {
        self.check()?;
        let width = u64::from(self.width);
        let bitnet = self.architecture == Architecture::Bitnet;
        // Ternary embeddings are useless, and no real file has them.
        let ternary = matches!(self.tensor_type, TensorType::TQ1_0 | TensorType::TQ2_0);
        let embedding = if ternary { TensorType::F16 } else { self.dense_type() };
        let vocabulary = u64::from(self.vocabulary);
        let mut tensors = vec![matrix("token_embd.weight".into(), embedding, width, vocabulary, 1.0)?];
        for layer in 0..self.layers {
            self.layer(layer, bitnet, &mut tensors)?;
        }
        tensors.push(norm("output_norm.weight".into(), width));
        if !bitnet {
            tensors.push(matrix("output.weight".into(), embedding, width, vocabulary, 1.0)?);
        }
        Ok(tensors)
    }

    /// Returns the type of the matrices other than experts.
    pub(crate) fn dense_type(&self) -> TensorType {
        let is_released = self.architecture == Architecture::GptOss && self.tensor_type == TensorType::MXFP4;
        if is_released { TensorType::Q8_0 } else { self.tensor_type }
    }

    fn layer(&self, layer: u32, bitnet: bool, tensors: &mut Vec<Tensor>) -> Result<(), String> {
        let (width, head) = (u64::from(self.width), u64::from(self.head_width));
        let (mut q_width, kv_width) = (head * u64::from(self.heads), head * u64::from(self.kv_heads));
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        let kind = self.dense_type();
        // Matrices that add to the residual stream get smaller weights, scaled by the number of additions.
        let residual = 1.0 / (2.0 * self.layers as f32).sqrt();
        tensors.push(norm(name("attn_norm"), width));
        if self.architecture.is_hybrid() && !(layer + 1).is_multiple_of(PERIOD) {
            tensors.extend(self.delta_net(layer, residual)?);
            tensors.push(norm(name("post_attention_norm"), width));
            return self.network(layer, residual, tensors);
        }
        let gates = if self.architecture.is_hybrid() { 2 } else { 1 };
        tensors.push(matrix(name("attn_q"), kind, width, gates * q_width, 1.0)?);
        if self.architecture == Architecture::Deepseek2 {
            tensors.extend(self.latent(layer)?);
            q_width -= u64::from(ROTATING * self.heads);
        } else {
            tensors.push(matrix(name("attn_k"), kind, width, kv_width, 1.0)?);
            tensors.push(matrix(name("attn_v"), kind, width, kv_width, 1.0)?);
        }
        if bitnet {
            tensors.push(norm(name("attn_sub_norm"), width));
        }
        if self.architecture == Architecture::Qwen3Moe || self.architecture.is_hybrid() {
            tensors.extend(["attn_q_norm", "attn_k_norm"].map(|part| norm(name(part), head)));
        }
        tensors.push(matrix(name("attn_output"), kind, q_width, width, residual)?);
        let is_gpt_oss = self.architecture == Architecture::GptOss;
        if is_gpt_oss {
            self.extras_of_gpt_oss(layer, tensors);
        }
        let is_post = is_gpt_oss || self.architecture.is_hybrid();
        tensors.push(norm(name(if is_post { "post_attention_norm" } else { "ffn_norm" }), width));
        self.network(layer, residual, tensors)
    }

    /// Returns the number of value heads of a gated delta net.
    fn value_heads(&self) -> u32 {
        if self.experts > 0 { 2 * KEY_HEADS } else { 3 * KEY_HEADS }
    }

    /// Returns the tensors of a gated delta net.
    fn delta_net(&self, layer: u32, residual: f32) -> Result<Vec<Tensor>, String> {
        let [width, heads, keys] = [self.width, self.value_heads(), 2 * KEY_HEADS * STATE].map(u64::from);
        let (kind, values) = (self.dense_type(), heads * u64::from(STATE));
        let name = |part: &str| format!("blk.{layer}.{part}");
        let vector = |part: &str, shape: Vec<u64>, deviation: f32| {
            let (bytes, values_like) = (shape.iter().product::<u64>() * 4, Values::Random { deviation });
            Tensor { name: name(part), tensor_type: TensorType::F32, shape, bytes, values_like }
        };
        let columns = keys + values;
        Ok(vec![
            matrix(name("attn_qkv.weight"), kind, width, columns, 1.0)?,
            matrix(name("attn_gate.weight"), kind, width, values, 1.0)?,
            matrix(name("ssm_beta.weight"), kind, width, heads, 1.0)?,
            matrix(name("ssm_alpha.weight"), kind, width, heads, 1.0)?,
            vector("ssm_conv1d.weight", vec![u64::from(TAPS), columns], 0.5),
            vector("ssm_dt.bias", vec![heads], 0.5),
            // Near zero, states hardly decay. A positive value would let them grow.
            vector("ssm_a", vec![heads], 1e-4),
            norm(name("ssm_norm.weight"), u64::from(STATE)),
            matrix(name("ssm_out.weight"), kind, values, width, residual)?,
        ])
    }

    /// Adds the tensors of a feed-forward network.
    fn network(&self, layer: u32, residual: f32, tensors: &mut Vec<Tensor>) -> Result<(), String> {
        let (width, ffn, kind) = (u64::from(self.width), u64::from(self.ffn), self.dense_type());
        let bitnet = self.architecture == Architecture::Bitnet;
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        if self.experts > 0 {
            let count = u64::from(self.experts);
            // Logits of a router differ by more than those of a trained head.
            tensors.push(matrix(name("ffn_gate_inp"), TensorType::F32, width, count, 2.0)?);
            for (part, columns, rows, gain) in [
                ("ffn_gate_exps", width, ffn, 1.0),
                ("ffn_up_exps", width, ffn, 1.0),
                ("ffn_down_exps", ffn, width, residual),
            ] {
                tensors.push(matrices(name(part), self.tensor_type, [columns, rows, count], gain)?);
            }
            let is_gated = self.architecture == Architecture::Qwen35Moe;
            if is_gated {
                tensors.push(matrix(name("ffn_gate_inp_shexp"), TensorType::F32, width, 1, 1.0)?);
            }
            if is_gated || self.architecture == Architecture::Deepseek2 {
                let shared = if is_gated { ffn } else { u64::from(SHARED) * ffn };
                tensors.push(matrix(name("ffn_gate_shexp"), kind, width, shared, 1.0)?);
                tensors.push(matrix(name("ffn_up_shexp"), kind, width, shared, 1.0)?);
                tensors.push(matrix(name("ffn_down_shexp"), kind, shared, width, residual)?);
            }
            return Ok(());
        }
        tensors.push(matrix(name("ffn_gate"), kind, width, ffn, 1.0)?);
        tensors.push(matrix(name("ffn_up"), kind, width, ffn, 1.0)?);
        if bitnet {
            tensors.push(norm(name("ffn_sub_norm"), ffn));
        }
        tensors.push(matrix(name("ffn_down"), kind, ffn, width, residual)?);
        Ok(())
    }

    /// Returns the tensors of a latent, from which the keys and values of all heads are computed.
    fn latent(&self, layer: u32) -> Result<Vec<Tensor>, String> {
        let [width, heads, rank] = [self.width, self.heads, RANK].map(u64::from);
        let plain = u64::from(self.head_width - ROTATING);
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        Ok(vec![
            matrix(name("attn_kv_a_mqa"), self.tensor_type, width, rank + u64::from(ROTATING), 1.0)?,
            norm(name("attn_kv_a_norm"), rank),
            matrices(name("attn_k_b"), self.tensor_type, [plain, rank, heads], 1.0)?,
            matrices(name("attn_v_b"), self.tensor_type, [rank, plain, heads], 1.0)?,
        ])
    }

    /// Adds the biases and sinks of a layer of gpt-oss.
    fn extras_of_gpt_oss(&self, layer: u32, tensors: &mut Vec<Tensor>) {
        let (width, ffn, experts) = (u64::from(self.width), u64::from(self.ffn), u64::from(self.experts));
        let heads = [self.heads, self.kv_heads].map(u64::from);
        let [q_width, kv_width] = heads.map(|heads| heads * u64::from(self.head_width));
        for (part, shape) in [
            ("attn_q.bias", vec![q_width]),
            ("attn_k.bias", vec![kv_width]),
            ("attn_v.bias", vec![kv_width]),
            ("attn_output.bias", vec![width]),
            ("attn_sinks.weight", vec![heads[0]]),
            ("ffn_gate_inp.bias", vec![experts]),
            ("ffn_gate_exps.bias", vec![ffn, experts]),
            ("ffn_up_exps.bias", vec![ffn, experts]),
            ("ffn_down_exps.bias", vec![width, experts]),
        ] {
            let (name, bytes) = (format!("blk.{layer}.{part}"), shape.iter().product::<u64>() * 4);
            let values_like = Values::Random { deviation: 0.02 };
            tensors.push(Tensor { name, tensor_type: TensorType::F32, shape, bytes, values_like });
        }
    }

    fn check(&self) -> Result<(), String> {
        let Shape { layers, width, heads, kv_heads, head_width, ffn, context, .. } = *self;
        if [layers, width, heads, kv_heads, ffn, context].contains(&0) {
            return Err("layers, width, heads, kv-heads, ffn and context must be positive".into());
        }
        if !head_width.is_multiple_of(2) || head_width == 0 {
            return Err(format!("width {width} cannot be split into {heads} heads of an even width"));
        }
        if self.architecture.has_experts() != (self.experts > 0) {
            return Err(
                "qwen3moe, qwen35moe, deepseek2 and gpt-oss need experts, and other architectures have none"
                    .into(),
            );
        }
        if self.architecture == Architecture::Deepseek2 && head_width <= ROTATING {
            return Err(format!("heads of deepseek2 need more than {ROTATING} dimensions"));
        }
        if self.used_experts > self.experts || (self.experts > 0 && self.used_experts == 0) {
            return Err(format!("each token cannot use {} of {} experts", self.used_experts, self.experts));
        }
        if !heads.is_multiple_of(kv_heads) {
            return Err(format!("{heads} heads cannot share {kv_heads} kv-heads evenly"));
        }
        if self.vocabulary < vocabulary::LEAST {
            return Err(format!("the vocabulary needs at least {} tokens", vocabulary::LEAST));
        }
        Ok(())
    }
}

fn norm(name: String, width: u64) -> Tensor {
    let tensor_type = TensorType::F32;
    Tensor { name, tensor_type, shape: vec![width], bytes: width * 4, values_like: Values::Ones }
}

/// Returns matrices in one tensor, whose shape has the columns, the rows and the number of the matrices. If rows are not
/// whole blocks, the type is Q8_0: converters also fall back to types with blocks of 32 values.
fn matrices(
    name: String,
    tensor_type: TensorType,
    [columns, rows, count]: [u64; 3],
    gain: f32,
) -> Result<Tensor, String> {
    let is_whole = columns.is_multiple_of(tensor_type.block_values() as u64);
    let one = matrix(name, if is_whole { tensor_type } else { TensorType::Q8_0 }, columns, rows, gain)?;
    Ok(Tensor { shape: vec![columns, rows, count], bytes: one.bytes * count, ..one })
}

/// Returns a matrix of random values whose product with normalised activations has a standard deviation of
/// `gain`.
fn matrix(
    name: String,
    tensor_type: TensorType,
    columns: u64,
    rows: u64,
    gain: f32,
) -> Result<Tensor, String> {
    let row = tensor_type.bytes(columns).ok_or_else(|| {
        format!(
            "{name}: rows of {columns} cannot be split into blocks of {} ({tensor_type})",
            tensor_type.block_values()
        )
    })?;
    let values_like = Values::Random { deviation: gain / (columns as f32).sqrt() };
    Ok(Tensor { name, tensor_type, shape: vec![columns, rows], bytes: row * rows, values_like })
}
