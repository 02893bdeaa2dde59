//! Tests models with recurrent layers. The expected logits are those of `transformers` in float64, which
//! `tests/support/golden/hybrids.py` wrote. The weights follow from a formula.

mod kimi;
mod nemotron;

use crate::experts::{Golden, bytes_of, interleaved, read};
use crate::gpus::{LAVAPIPE, POCL, gpus_and};
use crate::support::{Setup, block_on, engine, greedy, listen, relative_error};
use ragtag::{Granularity, Model, Prompt};
use ragtag_graph::gguf::Writer;
use ragtag_kernels::{Activations, NumericsClass, TensorType};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Returns the models, with the names of published checkpoints.
fn golden() -> Vec<Golden> {
    let mut all = read("hybrids.json", weight);
    all.extend(read("kimi.json", weight));
    for golden in &mut all {
        if golden.name == "KimiLinear" {
            kimi::publish(golden);
            continue;
        }
        if nemotron::is_nemotron(golden) {
            nemotron::publish(golden);
            continue;
        }
        let renamed = |key: String| {
            let names = [
                ("moe.experts.gate_up_proj", "moe.input_linear.weight"),
                ("moe.experts.down_proj", "moe.output_linear.weight"),
                ("moe.router.weight", "moe.router.layer.weight"),
            ];
            names.into_iter().fold(key, |key, (from, to)| key.replace(from, to))
        };
        let tensors = std::mem::take(&mut golden.tensors).into_iter();
        golden.tensors = tensors.map(|(key, tensor)| (renamed(key), tensor)).collect();
    }
    all
}

/// Divisors of the weights whose names end like this.
const DIVISORS: [(&str, f32); 21] = [
    ("expert_bias", 256.0),
    ("conv.conv.weight", 128.0),
    ("conv1d.weight", 128.0),
    ("A_log", 64.0),
    ("dt_bias", 64.0),
    ("conv1d.bias", 128.0),
    ("q_proj.weight", 128.0),
    ("k_proj.weight", 128.0),
    ("v_proj.weight", 128.0),
    ("o_proj.weight", 128.0),
    ("experts.down_proj", 64.0),
    ("experts.gate_up_proj", 128.0),
    ("feed_forward.gate.weight", 256.0),
    ("e_score_correction_bias", 256.0),
    ("experts.up_proj", 128.0),
    ("f_a_proj.weight", 128.0),
    ("f_b_proj.weight", 128.0),
    ("g_a_proj.weight", 128.0),
    ("g_b_proj.weight", 128.0),
    ("b_proj.weight", 128.0),
    ("", 512.0),
];

/// Returns weight number `at` of a tensor. All types without blocks hold it exactly.
fn weight(_: &str, tensor: usize, at: usize, key: &str) -> f32 {
    let value = (((at + 1) * 7919 + (tensor + 1) * 104_729) % 65_537 % 257) as i32 - 128;
    if ["norm.weight", "norm_f.weight", "kv_a_layernorm.weight", "mamba.D", "mixer.D"]
        .iter()
        .any(|end| key.ends_with(end))
    {
        return 1.0 + value.div_euclid(2) as f32 / 128.0;
    }
    let is_router =
        ["mlp.gate.weight", "router.weight", "mixer.gate.weight"].iter().any(|end| key.ends_with(end));
    let divisor = DIVISORS.iter().find(|(end, _)| key.ends_with(end)).map_or(1.0, |(_, divisor)| *divisor);
    value as f32 / if is_router { 32.0 } else { divisor }
}

/// Returns the models of these tests, each with whether a GGUF file or a directory holds it, and the file with its logits.
pub fn verified() -> Vec<(Model, bool, &'static str)> {
    let opened = |golden: Golden| {
        let (_file, gguf) = open_gguf(&golden);
        let (_folder, directory) = golden.open(&golden.tensors, TensorType::F32);
        [(gguf, true, golden.file), (directory, false, golden.file)]
    };
    golden().into_iter().flat_map(opened).collect()
}

fn setup() -> Setup<'static> {
    Setup { context: 64, ..Setup::default() }
}

/// Writes a GGUF file, and opens it.
fn open_gguf(golden: &Golden) -> (TempDir, Model) {
    let (mut writer, mut data) = (Writer::new(), Vec::new());
    put_metadata(golden, &mut writer);
    for (key, (shape, values)) in &golden.tensors {
        for (name, shape, values) in gguf_tensors(golden, key, shape, values) {
            let bytes = bytes_of(TensorType::F32, &values);
            let sizes: Vec<u64> = shape.iter().rev().map(|size| *size as u64).collect();
            writer.tensor(&name, TensorType::F32, &sizes, bytes.len() as u64);
            data.extend_from_slice(&bytes);
            data.resize(data.len() + writer.padding(bytes.len() as u64) as usize, 0);
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("m.gguf");
    std::fs::write(&file, [writer.header(), data].concat()).unwrap();
    let model = Model::open(file).unwrap();
    (folder, model)
}

fn count(golden: &Golden, key: &str) -> Option<u32> {
    golden.config[key].as_u64().map(|count| count as u32)
}

fn put_metadata(golden: &Golden, writer: &mut Writer) {
    let architecture = match &*golden.name {
        "Qwen3_5" => "qwen35",
        "Qwen3_5Moe" => "qwen35moe",
        "Qwen3Next" | "Qwen3Next-Older" => "qwen3next",
        "Lfm2" => "lfm2",
        "Lfm2Moe" => "lfm2moe",
        "KimiLinear" => "kimi-linear",
        _ if nemotron::is_nemotron(golden) => nemotron::architecture(golden),
        _ => "granitehybrid",
    };
    writer.put("general.architecture", architecture);
    let is_moe = golden.name.ends_with("Moe") || golden.name == "GraniteMoeHybrid";
    let keys: [(&str, &[&str]); 18] = [
        ("block_count", &["num_hidden_layers"]),
        ("context_length", &["max_position_embeddings"]),
        ("embedding_length", &["hidden_size"]),
        ("attention.head_count", &["num_attention_heads"]),
        ("attention.key_length", &["head_dim"]),
        ("expert_count", &["num_experts", "num_local_experts", "n_routed_experts"]),
        ("expert_used_count", &["num_experts_per_tok"]),
        ("expert_group_count", &["n_group"]),
        ("expert_feed_forward_length", &["moe_intermediate_size"]),
        (
            "expert_shared_feed_forward_length",
            &["shared_expert_intermediate_size", "moe_shared_expert_intermediate_size"],
        ),
        ("leading_dense_block_count", &["num_dense_layers"]),
        ("ssm.conv_kernel", &["linear_conv_kernel_dim", "mamba_d_conv", "conv_kernel"]),
        ("ssm.state_size", &["linear_key_head_dim", "mamba_d_state", "ssm_state_size"]),
        ("ssm.group_count", &["linear_num_key_heads", "mamba_n_groups", "n_groups"]),
        ("ssm.time_step_rank", &["linear_num_value_heads", "mamba_n_heads", "mamba_num_heads"]),
        ("shortconv.l_cache", &["conv_L_cache"]),
        ("rope.dimension_count", &[]),
        ("feed_forward_length", &["intermediate_size"]),
    ];
    // The file of a dense model has the size of its only network, and that of Qwen has no size without experts.
    let is_dense_granite = golden.name == "GraniteMoeHybrid-Dense";
    let has_no_size = ["qwen35moe", "qwen3next"].contains(&architecture) || nemotron::is_nemotron(golden);
    let skipped = if has_no_size { "feed_forward_length" } else { "" };
    for (key, fields) in keys.into_iter().filter(|(key, _)| *key != skipped) {
        let fields = match key {
            "feed_forward_length" if is_dense_granite => &["shared_intermediate_size"],
            _ => fields,
        };
        if let Some(count) = fields.iter().find_map(|field| count(golden, field)) {
            writer.put(&format!("{architecture}.{key}"), count);
        }
    }
    let put =
        |writer: &mut Writer, key: &str, value: u32| writer.put(&format!("{architecture}.{key}"), value);
    let kinds = golden.config["layer_types"].as_array().into_iter().flatten();
    let kv_heads = count(golden, "num_key_value_heads").unwrap();
    let per_layer: Vec<u32> = kinds.map(|kind| if kind == "full_attention" { kv_heads } else { 0 }).collect();
    match architecture {
        "qwen35" | "qwen35moe" | "qwen3next" => {
            put(writer, "attention.head_count_kv", kv_heads);
            put(writer, "full_attention_interval", 3);
            put(writer, "rope.dimension_count", 16);
            put(writer, "ssm.inner_size", 128);
        }
        "kimi-linear" => kimi::put_metadata(writer),
        _ if nemotron::is_nemotron(golden) => nemotron::put_metadata(golden, writer),
        _ => writer.put(&format!("{architecture}.attention.head_count_kv"), &per_layer[..]),
    }
    if architecture == "granitehybrid" {
        put(writer, "ssm.inner_size", 128);
        let rotates = golden.config["position_embedding_type"] == json!("rope");
        writer.put("granitehybrid.rope.scaling.finetuned", rotates);
        if is_moe {
            put(writer, "expert_shared_feed_forward_length", 64);
        }
    }
    if architecture == "lfm2moe" {
        put(writer, "expert_gating_func", 2);
    }
    let float = |value: &Value| value.as_f64().unwrap() as f32;
    for (key, field) in [
        ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
        ("attention.layer_norm_rms_epsilon", "norm_eps"),
        ("attention.layer_norm_rms_epsilon", "layer_norm_epsilon"),
        ("embedding_scale", "embedding_multiplier"),
        ("residual_scale", "residual_multiplier"),
        ("attention.scale", "attention_multiplier"),
        ("logit_scale", "logits_scaling"),
    ] {
        if golden.config[field].is_number() {
            writer.put(&format!("{architecture}.{key}"), float(&golden.config[field]));
        }
    }
    if let Some(base) = golden.config["rope_parameters"]["rope_theta"].as_f64() {
        writer.put(&format!("{architecture}.rope.freq_base"), base as f32);
    }
}

/// Moves value heads that share a key head apart: in GGUF files, head h has key head h mod key heads. A head has `size` rows,
/// or columns if `columns` gives the length of a row.
fn tiled(values: &[f32], heads: usize, size: usize, columns: Option<usize>) -> Vec<f32> {
    let (keys, each) = (2, heads / 2);
    let of_line = |line: &[f32]| -> Vec<f32> {
        let unit = line.len() / heads;
        (0..heads).flat_map(|to| line[(to % keys * each + to / keys) * unit..][..unit].to_vec()).collect()
    };
    match columns {
        None => of_line(values),
        Some(columns) => {
            assert_eq!(columns, heads * size);
            values.chunks_exact(columns).flat_map(of_line).collect()
        }
    }
}

/// Returns the tensors of a GGUF file that hold a tensor of the model.
fn gguf_tensors(
    golden: &Golden,
    key: &str,
    shape: &[usize],
    values: &[f32],
) -> Vec<(String, Vec<usize>, Vec<f32>)> {
    if golden.name == "KimiLinear" {
        return kimi::gguf_tensors(golden, key, shape, values);
    }
    if nemotron::is_nemotron(golden) {
        return nemotron::gguf_tensors(golden, key, shape, values);
    }
    let is_qwen = golden.name.starts_with("Qwen3");
    let is_tiled = golden.name.starts_with("Qwen3_5");
    // The files of this architecture have 1 added to the weights of norms.
    let is_shifted = is_qwen && key.ends_with("norm.weight") && !key.ends_with("linear_attn.norm.weight");
    let values: Vec<f32> = values.iter().map(|value| if is_shifted { value + 1.0 } else { *value }).collect();
    let Some(rest) = key.strip_prefix("model.layers.") else {
        let name = match key {
            "lm_head.weight" => "output.weight",
            "model.norm.weight" => "output_norm.weight",
            "model.embedding_norm.weight" => "token_embd_norm.weight",
            _ => "token_embd.weight",
        };
        return vec![(name.into(), shape.to_vec(), values)];
    };
    let (layer, part) = rest.split_once('.').unwrap();
    let blk = |part: &str| format!("blk.{layer}.{part}");
    if part.ends_with("experts.gate_up_proj") || part.ends_with("input_linear.weight") {
        let is_shared = part.contains("shared_mlp");
        let is_only = is_shared && golden.name == "GraniteMoeHybrid-Dense";
        let end = if is_only {
            ""
        } else if is_shared {
            "_shexp"
        } else {
            "_exps"
        };
        let (at, columns) = (shape.len() - 2, shape[shape.len() - 1]);
        let half = shape[at] / 2 * columns;
        let mut sizes = shape.to_vec();
        sizes[at] /= 2;
        let part =
            |first: usize| values.chunks_exact(half).skip(first).step_by(2).flatten().copied().collect();
        let names = [format!("ffn_gate{end}.weight"), format!("ffn_up{end}.weight")];
        let names = names.into_iter().enumerate();
        return names.map(|(first, name)| (blk(&name), sizes.clone(), part(first))).collect();
    }
    if part == "linear_attn.in_proj_qkvz.weight" && golden.name == "Qwen3Next" {
        // Each of the two key heads has rows for its query, its key, its two values, and their gates.
        let parts = |of_head: &[(usize, usize)]| -> Vec<f32> {
            let rows = |(first, rows): &(usize, usize)| {
                let (start, end) = (first * 64, (first + rows) * 64);
                values.chunks_exact(192 * 64).flat_map(move |head| head[start..end].to_vec())
            };
            of_head.iter().flat_map(rows).collect()
        };
        let (qkv, gates) = (parts(&[(0, 32), (32, 32), (64, 64)]), parts(&[(128, 64)]));
        return vec![
            (blk("attn_qkv.weight"), vec![256, 64], qkv),
            (blk("attn_gate.weight"), vec![128, 64], gates),
        ];
    }
    let ffn_norm = if is_qwen { "post_attention_norm" } else { "ffn_norm" };
    let last = if golden.name == "GraniteMoeHybrid-Dense" { "ffn_down" } else { "ffn_down_shexp" };
    let names = [
        ("input_layernorm.weight", "attn_norm.weight"),
        ("operator_norm.weight", "attn_norm.weight"),
        ("ffn_norm.weight", "ffn_norm.weight"),
        ("self_attn.q_proj.weight", "attn_q.weight"),
        ("self_attn.k_proj.weight", "attn_k.weight"),
        ("self_attn.v_proj.weight", "attn_v.weight"),
        ("self_attn.o_proj.weight", "attn_output.weight"),
        ("self_attn.out_proj.weight", "attn_output.weight"),
        ("self_attn.q_norm.weight", "attn_q_norm.weight"),
        ("self_attn.k_norm.weight", "attn_k_norm.weight"),
        ("self_attn.q_layernorm.weight", "attn_q_norm.weight"),
        ("self_attn.k_layernorm.weight", "attn_k_norm.weight"),
        ("mlp.gate_proj.weight", "ffn_gate.weight"),
        ("mlp.up_proj.weight", "ffn_up.weight"),
        ("mlp.down_proj.weight", "ffn_down.weight"),
        ("feed_forward.w1.weight", "ffn_gate.weight"),
        ("feed_forward.w3.weight", "ffn_up.weight"),
        ("feed_forward.w2.weight", "ffn_down.weight"),
        ("feed_forward.gate.weight", "ffn_gate_inp.weight"),
        ("feed_forward.expert_bias", "exp_probs_b.bias"),
        ("feed_forward.experts.down_proj", "ffn_down_exps.weight"),
        ("block_sparse_moe.router.layer.weight", "ffn_gate_inp.weight"),
        ("block_sparse_moe.output_linear.weight", "ffn_down_exps.weight"),
        ("mlp.gate.weight", "ffn_gate_inp.weight"),
        ("mlp.experts.down_proj", "ffn_down_exps.weight"),
        ("mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp.weight"),
        ("mlp.shared_expert.gate_proj.weight", "ffn_gate_shexp.weight"),
        ("mlp.shared_expert.up_proj.weight", "ffn_up_shexp.weight"),
        ("mlp.shared_expert.down_proj.weight", "ffn_down_shexp.weight"),
        ("conv.in_proj.weight", "shortconv.in_proj.weight"),
        ("conv.conv.weight", "shortconv.conv.weight"),
        ("conv.out_proj.weight", "shortconv.out_proj.weight"),
        ("linear_attn.in_proj_qkv.weight", "attn_qkv.weight"),
        ("linear_attn.in_proj_z.weight", "attn_gate.weight"),
        ("linear_attn.in_proj_b.weight", "ssm_beta.weight"),
        ("linear_attn.in_proj_a.weight", "ssm_alpha.weight"),
        ("linear_attn.in_proj_ba.weight", "ssm_ba.weight"),
        ("linear_attn.in_proj_qkvz.weight", "ssm_in.weight"),
        ("mamba.in_proj.weight", "ssm_in.weight"),
        ("conv1d.weight", "ssm_conv1d.weight"),
        ("conv1d.bias", "ssm_conv1d.bias"),
        ("dt_bias", "ssm_dt.bias"),
        ("A_log", "ssm_a"),
        ("mamba.D", "ssm_d"),
        ("linear_attn.norm.weight", "ssm_norm.weight"),
        ("mamba.norm.weight", "ssm_norm.weight"),
        ("linear_attn.out_proj.weight", "ssm_out.weight"),
        ("mamba.out_proj.weight", "ssm_out.weight"),
    ];
    let name = match part {
        "post_attention_layernorm.weight" => format!("{ffn_norm}.weight"),
        "shared_mlp.output_linear.weight" => format!("{last}.weight"),
        _ => {
            let found = names.iter().find(|(theirs, _)| part.ends_with(theirs));
            found.unwrap_or_else(|| panic!("{key}")).1.to_owned()
        }
    };
    let values = if part.ends_with("A_log") { values.iter().map(|a| -a.exp()).collect() } else { values };
    let (sizes, values) = match &*name {
        "shortconv.conv.weight" | "ssm_conv1d.weight" => (vec![shape[0], shape[2]], values),
        "ssm_a" | "ssm_d" if !is_qwen => (vec![shape[0], 1], values),
        "ssm_norm.weight" if !is_qwen => (vec![2, shape[0] / 2], values),
        _ => (shape.to_vec(), values),
    };
    let values = match &*name {
        _ if !is_tiled => values,
        "attn_qkv.weight" | "ssm_conv1d.weight" => {
            // Queries and keys come first.
            let (before, of_values) = values.split_at(values.len() / 2);
            [before, &tiled(of_values, 4, 32, None)].concat()
        }
        "attn_gate.weight" | "ssm_alpha.weight" | "ssm_beta.weight" | "ssm_a" | "ssm_dt.bias" => {
            tiled(&values, 4, 32, None)
        }
        "ssm_out.weight" => tiled(&values, 4, 32, Some(shape[1])),
        _ => values,
    };
    let rotates = golden.name.starts_with("Granite") && ["attn_q.weight", "attn_k.weight"].contains(&&*name);
    let heads = if name == "attn_q.weight" { 2 } else { 1 };
    let values = if rotates { interleaved(&values, heads, shape[1]) } else { values };
    vec![(blk(&name), sizes, values)]
}

#[test]
fn logits_of_hybrids_are_those_of_transformers() {
    for golden in golden() {
        for tensor_type in [TensorType::F32, TensorType::F16, TensorType::BF16] {
            let (_folder, model) = golden.open(&golden.tensors, tensor_type);
            golden.check(&model, &setup(), &format!("{tensor_type}"));
            for activations in [Activations::Int8, Activations::F16] {
                let what = format!("{tensor_type}, {activations}");
                golden.check(&model, &Setup { activations, ..setup() }, &what);
            }
        }
        let (_folder, gguf) = open_gguf(&golden);
        golden.check(&gguf, &setup(), "GGUF");
        if golden.name == "Qwen3Next" {
            let mut older = golden.clone();
            older.name = "Qwen3Next-Older".into();
            let (_folder, gguf) = open_gguf(&older);
            golden.check(&gguf, &setup(), "older GGUF");
        }
        if golden.name == "KimiLinear" {
            let mut newer = golden.clone();
            newer.config = read("kimi.json", weight)[0].config.clone();
            let (_folder, model) = newer.open(&newer.tensors, TensorType::F32);
            golden.check(&model, &setup(), "configuration of transformers 5");
        }
    }
}

/// Checks that each cut gives the same logits bit for bit, and that chunks of any size and steps of one token agree.
#[test]
fn cuts_and_chunks_do_not_change_the_logits_of_hybrids() {
    for golden in golden() {
        let (_folder, model) = open_gguf(&golden);
        let halves = Setup { granularity: Granularity::HalfBlock, ..setup() };
        let ids: Vec<u32> = (0..60).map(|at| (at * 7 + at / 5) % 37 + 3).collect();
        let logits = |setup: &Setup<'_>| block_on(engine(&model, setup).session().logits(&ids)).unwrap();
        let whole = logits(&Setup { chunk: 60, ..halves.clone() });
        // Layers with one half are not divided.
        let last = model.graph().with_granularity(Granularity::HalfBlock).segment_count() - 1;
        for cut in 1..=last {
            let split = format!("0-{}=cpu:0,{cut}-{last}=cpu:1", cut - 1);
            let setup = Setup { chunk: 60, split: Some(&split), cpu_devices: 2, ..halves.clone() };
            assert!(logits(&setup) == whole, "{}, cut {cut}", golden.name);
        }
        for chunk in [1, 2, 3, 7, 16, 59] {
            let error = relative_error(&logits(&Setup { chunk, ..setup() }), &whole);
            assert!(error <= NumericsClass::Exact.tolerance(), "{}, chunks of {chunk}: {error}", golden.name);
        }
    }
}

#[test]
fn hybrids_run_on_every_device() {
    for adapter in gpus_and(&[POCL, LAVAPIPE]) {
        let label = adapter.label();
        let types = [TensorType::F32, TensorType::F16, TensorType::BF16].into_iter().cycle();
        for (golden, tensor_type) in golden().into_iter().zip(types) {
            let (_folder, model) = golden.open(&golden.tensors, tensor_type);
            for chunk in [5, 1] {
                let setup = Setup { devices: &label, chunk, ..setup() };
                golden.check(&model, &setup, &format!("{tensor_type} on {label}, chunks of {chunk}"));
            }
            let devices = format!("{label},cpu:0");
            let split = format!("0-2={label},3-4=cpu:0");
            let cut = Setup { devices: &devices, split: Some(&split), chunk: 4, ..setup() };
            golden.check(&model, &cut, &format!("{tensor_type} on {label} and the CPU"));
            let fast = Setup { devices: &label, activations: Activations::Int8, ..setup() };
            golden.check(&model, &fast, &format!("{tensor_type} on {label}, int8"));
        }
    }
}

/// Checks that a later turn of a conversation goes on from the state of an earlier one, and gives the tokens of a run that
/// shares nothing.
#[test]
fn turns_of_a_conversation_go_on_from_states() {
    for golden in golden() {
        let (_folder, model) = open_gguf(&golden);
        let fresh = |ids: &[u32]| {
            let session = engine(&model, &setup()).session();
            block_on(listen(session.generate(Prompt::Tokens(ids), &greedy(4)).unwrap())).unwrap()
        };
        let engine = engine(&model, &Setup { sequences: 2, ..setup() });
        let session = engine.session();
        let mut ids: Vec<u32> = golden.ids.clone();
        for turn in 0..4 {
            let stream = session.generate(Prompt::Tokens(&ids), &greedy(4)).unwrap();
            let heard = block_on(listen(stream)).unwrap();
            assert_eq!(heard.ids, fresh(&ids).ids, "{}, turn {turn}", golden.name);
            // All but the tokens behind the previous reply were computed before.
            let expected = if turn == 0 { 0 } else { ids.len() - 4 };
            assert_eq!(heard.summary.cached_tokens as usize, expected, "{}, turn {turn}", golden.name);
            ids.extend(&heard.ids);
            ids.extend([3, 9, 21].map(|id| (id + turn) % 40));
        }
    }
}

/// Checks that conversations which branch off one trunk compute few of the tokens that they share with earlier ones, and
/// give the tokens of runs that share nothing.
#[test]
fn branching_conversations_share_their_trunk() {
    const TRUNK: u32 = 100;
    let mut golden = golden().into_iter().find(|golden| golden.name == "Qwen3_5").unwrap();
    golden.config["max_position_embeddings"] = json!(512);
    let (_folder, model) = golden.open(&golden.tensors, TensorType::F32);
    let setup = Setup { context: 256, sequences: 3, ..setup() };
    let (sharing, fresh) = (engine(&model, &setup), engine(&model, &setup));
    let reply = |engine: &ragtag::Engine, ids: &[u32], cache: bool| {
        let generation = ragtag::Generation { cache, ..greedy(3) };
        let stream = engine.session().generate(Prompt::Tokens(ids), &generation).unwrap();
        block_on(listen(stream)).unwrap()
    };
    let (mut shared, mut cached) = (0, 0);
    let mut replied: Vec<Vec<u32>> = Vec::new();
    for turn in 0..2 {
        for at in 0..20 {
            let more = (0..20).map(|i| (i * (at + 3) + turn + at) % 37 + 3);
            let mut ids: Vec<u32> = match turn {
                0 => (0..TRUNK).map(|i| (i * 11 + i / 7) % 37 + 3).collect(),
                _ => replied[at as usize].clone(),
            };
            shared += if turn == 0 { if at == 0 { 0 } else { TRUNK } } else { ids.len() as u32 };
            ids.extend(more);
            let heard = reply(&sharing, &ids, true);
            assert_eq!(heard.ids, reply(&fresh, &ids, false).ids, "conversation {at}, turn {turn}");
            cached += heard.summary.cached_tokens;
            let ids = [ids, heard.ids].concat();
            if turn == 0 { replied.push(ids) } else { replied[at as usize] = ids }
        }
    }
    println!("{cached} of {shared} shared tokens were in the cache");
    assert!(cached * 10 >= shared * 8, "{cached} of {shared}");
}

/// Checks that the planner counts the bytes of states and of parameter blocks that compiled stages have.
#[test]
fn states_are_in_the_memory_proof() {
    use ragtag_graph::{Lowering, WireType, compile};
    use ragtag_hal::pool::class_bytes;
    use ragtag_planner::cost::{RunSizes, StageCapacity};
    let caps = ragtag_hal::Caps {
        languages: [ragtag_hal::KernelLanguage::Host].into(),
        max_allocation_bytes: 1 << 40,
        max_binding_bytes: 1 << 40,
        ..ragtag_hal::Caps::default()
    };
    for golden in golden() {
        let (_folder, model) = open_gguf(&golden);
        let model = model.graph();
        let lowering = Lowering {
            activations: Activations::F32,
            kv: ragtag_kernels::KvType::F16,
            context: 64,
            sequences: 3,
            kv_blocks: Some(9),
            chunk: 16,
            logit_rows: 3,
            wire_type: WireType::F32,
        };
        let segments = model.segments(&lowering).unwrap();
        let capacity = StageCapacity {
            context: 64,
            sequences: 3,
            kv_blocks: 9,
            rows: 16,
            window: None,
            state_bytes: segments.iter().flat_map(|segment| segment.state_bytes).sum(),
            logit_rows: 3,
            slots: 1,
            row_bytes: 256,
            wire_type: WireType::F32,
            logit_row_bytes: 160,
            sequence_frequencies: 0,
            verified: false,
        };
        let compiled = compile(model, 0..segments.len(), &lowering, &caps).unwrap();
        let kv: u64 = compiled.kv_bytes.iter().copied().map(class_bytes).sum();
        let promised = RunSizes::new(&segments).kv_bytes(0, segments.len(), &capacity);
        assert_eq!((promised, capacity.params_bytes()), (kv, compiled.slot_buffers()[0]), "{}", golden.name);
        assert!(capacity.state_bytes > 0 && capacity.kv_ring() == compiled.kv_ring, "{}", golden.name);
    }
}
