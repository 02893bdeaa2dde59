"""Writes hybrids.json and kimi.json: configurations of models with recurrent layers, and the logits that `transformers` computes for them in float64. All weights
follow from a formula (`weight`), so that no file has to hold them. F32, F16 and BF16 hold them exactly. The script takes token ids whose logits move by
more than 1e-2 when a feature of the model is switched off, and for which no choice of an expert is close.

    pip install torch transformers
    python3 hybrids.py"""
import copy, json, pathlib, sys, torch, transformers

COMMON = dict(
    vocab_size=40, num_hidden_layers=3, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2, num_attention_heads=2,
    num_key_value_heads=1, hidden_size=64, intermediate_size=96, attention_dropout=0.0)
DELTA = dict(
    layer_types=["linear_attention", "linear_attention", "full_attention"], head_dim=64, linear_key_head_dim=32, linear_value_head_dim=32,
    linear_num_key_heads=2, linear_num_value_heads=4, linear_conv_kernel_dim=4,
    rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.25))
MAMBA = dict(
    layer_types=["linear_attention", "full_attention", "linear_attention"], mamba_n_heads=4, mamba_n_groups=2, mamba_d_state=16, mamba_d_head=32,
    mamba_d_conv=4, mamba_expand=2, shared_intermediate_size=64, embedding_multiplier=2.0, residual_multiplier=0.5, attention_multiplier=0.25,
    logits_scaling=0.5, num_experts_per_tok=2, tie_word_embeddings=True, rope_parameters=dict(rope_type="default", rope_theta=10000.0))
# The reference clamps Δ of whole passes at `time_step_min`, but not that of single steps. Without the clamp, both agree.
NEMOTRON = dict(
    head_dim=64, mamba_num_heads=4, mamba_head_dim=32, n_groups=2, ssm_state_size=16, conv_kernel=4, time_step_min=1e-12, layer_norm_epsilon=1e-5)
NEMOTRON_EXPERTS = dict(
    NEMOTRON, n_routed_experts=8, num_experts_per_tok=2, moe_intermediate_size=32, moe_shared_expert_intermediate_size=64, n_group=2, topk_group=1,
    routed_scaling_factor=2.5)
# Features, and what switches each of them off: settings, or the end of a weight's name and its values.
GATES = {"A_log": -20.0, "dt_bias": -20.0, "conv1d.weight": 0.125, "q_norm.weight": 5.0, "linear_attn.norm.weight": 1.0}
MODELS = {
    "Qwen3_5": (DELTA, {**GATES, "rotation": dict(rope_parameters=dict(DELTA["rope_parameters"], partial_rotary_factor=0.5))}),
    "Qwen3_5Moe": (
        dict(DELTA, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=64),
        {"A_log": -20.0, "shared_expert_gate.weight": 0.0, "shared_expert.down_proj.weight": 0.0}),
    "Qwen3Next": (
        dict(DELTA, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=64),
        {"A_log": -20.0, "dt_bias": -20.0, "shared_expert_gate.weight": 0.0, "renormalisation": dict(norm_topk_prob=False)}),
    "Lfm2": (
        dict(layer_types=["conv", "full_attention", "conv"], block_auto_adjust_ff_dim=False, conv_L_cache=3),
        {"conv.conv.weight": 0.125, "q_layernorm.weight": 5.0, "embedding_norm.weight": 1.0}),
    "Lfm2Moe": (
        dict(layer_types=["conv", "full_attention", "conv"], num_dense_layers=1, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=32),
        {"expert_bias": 0.0, "renormalisation": dict(norm_topk_prob=False), "conv.conv.weight": 0.125}),
    "GraniteMoeHybrid": (
        dict(MAMBA, num_local_experts=6, intermediate_size=64),
        {"A_log": -20.0, "dt_bias": -20.0, "mamba.D": 0.0, "conv1d.bias": 0.0, "mamba.norm.weight": 1.0, "shared_mlp.output_linear.weight": 0.0,
         "rotation": dict(position_embedding_type="rope")}),
    # Without experts, with RoPE.
    "GraniteMoeHybrid-Dense": (
        dict(MAMBA, num_local_experts=0, position_embedding_type="rope"),
        {"A_log": -20.0, "mamba.D": 0.0, "rotation": dict(position_embedding_type=None)}),
    # Each layer is one of four kinds.
    "NemotronH": (
        dict(NEMOTRON, layers_block_type=["linear_attention", "full_attention", "mlp"]),
        {"A_log": -20.0, "dt_bias": -20.0, "mixer.D": 0.0, "conv1d.bias": 0.0, "mixer.norm.weight": 1.0, "o_proj.weight": 0.0,
         "square": dict(mlp_hidden_act="relu")}),
    "NemotronH-Moe": (
        dict(NEMOTRON_EXPERTS, layers_block_type=["linear_attention", "moe", "full_attention"]),
        {"A_log": -20.0, "e_score_correction_bias": 0.0, "shared_experts.down_proj.weight": 0.0, "square": dict(mlp_hidden_act="relu"),
         "renormalisation": dict(norm_topk_prob=False), "scale": dict(routed_scaling_factor=1.0), "groups": dict(n_group=1, topk_group=1)}),
    # Experts with rows of another length.
    "NemotronH-Latent": (
        dict(NEMOTRON_EXPERTS, layers_block_type=["full_attention", "linear_attention", "moe"], moe_latent_size=32),
        {"A_log": -20.0, "fc2_latent_proj.weight": 0.0, "shared_experts.down_proj.weight": 0.0}),
}
KIMI = {
    "KimiLinear": (
        dict(layer_types=["linear_attention", "full_attention", "linear_attention"], mlp_layer_types=["dense", "sparse", "sparse"], linear_head_dim=32,
             linear_num_heads=2, linear_conv_kernel_dim=4, kv_lora_rank=32, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=32, num_key_value_heads=2,
             num_local_experts=8, num_experts_per_tok=2, moe_intermediate_size=32, n_shared_experts=1, n_group=2, topk_group=1, routed_scaling_factor=2.0),
        {"A_log": -20.0, "dt_bias": -20.0, "f_b_proj.weight": 0.0, "g_b_proj.weight": 0.0, "b_proj.weight": 0.0, "conv1d.weight": 0.125,
         "o_norm.weight": 1.0, "kv_a_layernorm.weight": 1.0, "e_score_correction_bias": 0.0, "shared_experts.down_proj.weight": 0.0,
         "renormalisation": dict(norm_topk_prob=False), "groups": dict(n_group=1, topk_group=1)}),
}
# Fields that change no results, and one whose value is no JSON.
UNUSED = ("dtype", "transformers_version", "id2label", "label2id", "output_hidden_states", "return_dict", "chunk_size_feed_forward", "is_encoder_decoder",
          "initializer_range", "use_cache", "output_attentions", "attention_dropout", "bos_token_id", "pad_token_id", "eos_token_id", "output_router_logits",
          "router_aux_loss_coef", "chunk_size", "mamba_chunk_size", "use_mamba_kernels", "num_logits_to_keep", "time_step_limit")
ROUTERS = ("mlp.gate.weight", "router.layer.weight", "router.weight", "feed_forward.gate.weight", "mixer.gate.weight")


def weight(tensor, at, key):
    value = ((at + 1) * 7919 + (tensor + 1) * 104729) % 65537 % 257 - 128
    if key.endswith(("norm.weight", "norm_f.weight", "kv_a_layernorm.weight", "mamba.D", "mixer.D")):
        return 1 + value // 2 / 128
    for end, divisor in (("expert_bias", 256), ("conv.conv.weight", 128), ("conv1d.weight", 128), ("A_log", 64), ("dt_bias", 64), ("conv1d.bias", 128),
                         ("q_proj.weight", 128), ("k_proj.weight", 128), ("v_proj.weight", 128), ("o_proj.weight", 128), ("experts.down_proj", 64), ("experts.gate_up_proj", 128),
                         ("feed_forward.gate.weight", 256), ("e_score_correction_bias", 256), ("experts.up_proj", 128),
                         ("f_a_proj.weight", 128), ("f_b_proj.weight", 128), ("g_a_proj.weight", 128), ("g_b_proj.weight", 128), ("b_proj.weight", 128)):
        if key.endswith(end):
            return value / divisor
    return value / (32 if key.endswith(ROUTERS) else 512)


def build(name, changes, neutral=None):
    name = name.split("-")[0]
    names = {"Qwen3_5": "Qwen3_5Text", "Qwen3_5Moe": "Qwen3_5MoeText"}
    config = getattr(transformers, f"{names.get(name, name)}Config")(**copy.deepcopy({**COMMON, **changes}))
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    model = getattr(transformers, f"{name}ForCausalLM")(config).double().eval()
    weights = model.state_dict()
    with torch.no_grad():
        for tensor, key in enumerate(sorted(weights)):
            values = torch.tensor([weight(tensor, at, key) for at in range(weights[key].numel())], dtype=torch.float64)
            if neutral and key.endswith(neutral[0]):
                values.fill_(neutral[1])
            weights[key].copy_(values.view(weights[key].shape))
    return model


def run(model, prompts):
    """Logits of the last token of each prompt, and the least distance between the values of a chosen expert and another."""
    margins, hooks = [torch.full((len(prompts),), 9.0, dtype=torch.float64)], []
    used, groups = getattr(model.config, "num_experts_per_tok", 0), getattr(model.config, "n_group", 1)

    def note(values, count):
        top = values.topk(count + 1, dim=-1).values
        margins.append((top[:, count - 1] - top[:, count]).view(len(prompts), -1).min(dim=1).values)
    for module in model.modules():
        if "TopKRouter" not in type(module).__name__ and "TopkRouter" not in type(module).__name__:
            continue

        def hook(gate, inputs, output):
            values = inputs[0].reshape(-1, gate.weight.shape[1]) @ gate.weight.T
            bias = inputs[1] if len(inputs) > 1 else getattr(gate, "e_score_correction_bias", None)
            if bias is not None:
                values = values.sigmoid() + bias
            if groups > 1:
                split = values.view(len(values), groups, -1)
                best = split.topk(2, dim=-1).values.sum(-1)
                note(best, model.config.topk_group)
                kept = torch.zeros_like(best).scatter(1, best.topk(model.config.topk_group, dim=-1).indices, 1)
                values = split.masked_fill(kept[:, :, None] == 0, -100.0).view(len(values), -1)
            note(values, used)
        hooks.append(module.register_forward_hook(hook))
    with torch.no_grad():
        logits = model(torch.tensor(prompts), use_cache=False).logits[:, -1]
    for hook in hooks:
        hook.remove()
    return logits, torch.stack(margins).min(dim=0).values


def main(file, models):
    out = {}
    for name, (changes, features) in models.items():
        model = build(name, changes)
        tried = [[(a * at + b * at * at + 7 * a + b) % 37 + 3 for at in range(9)] for a in range(1, 30) for b in range(1, 20)]
        tried = [ids for ids in tried if len(set(ids)) == len(ids)]
        all_logits, margins = run(model, tried)
        is_good = margins > (0.005 if any("_bias" in feature for feature in features) else 0.05)
        for feature, change in features.items():
            other = build(name, {**changes, **change}) if isinstance(change, dict) else build(name, changes, (feature, change))
            moved = (run(other, tried)[0] - all_logits).norm(dim=-1) / all_logits.norm(dim=-1)
            print(f"{name} without {feature}: {float(moved.median()):.3f}")
            is_good &= moved > 1e-2
        print(name, int(is_good.sum()), "of", len(tried), "prompts, margins up to", float(margins.max()))
        assert is_good.any(), name
        best = int((margins * is_good).argmax())
        ids, logits, margin = tried[best], all_logits[best], float(margins[best])
        config = {key: value for key, value in model.config.to_dict().items() if not key.startswith("_") and value is not None}
        config.update(changes)
        for unused in UNUSED:
            config.pop(unused, None)
        config["architectures"] = [f"{name.split('-')[0]}ForCausalLM"]
        shapes = {key: list(value.shape) for key, value in sorted(model.state_dict().items())}
        out[name] = {"config": config, "ids": ids, "shapes": shapes, "logits": [float(f"{x:.7g}") for x in logits]}
        print(name, "largest logit", float(logits.abs().max()), "least margin", margin)
    path = pathlib.Path(__file__).with_name(file)
    path.write_text(json.dumps(out, separators=(",", ":")) + "\n")
    print(path.stat().st_size, "bytes")


for file, models in [("hybrids.json", MODELS), ("kimi.json", KIMI)]:
    if not sys.argv[1:] or file in sys.argv[1:]:
        main(file, models)
