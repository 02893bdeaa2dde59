"""Writes experts.json: configurations of mixtures of experts, and the logits that `transformers` computes for them in float64. All weights follow
from a formula (`weight`), so that no file has to hold them. F32, F16 and BF16 hold them exactly. Also writes recent.json, with other architectures.

A small error may choose another expert if the logits of two experts are close. The script takes the token ids whose chosen experts are the furthest
from the others, among those whose logits move by more than 1e-2 when a feature of the model is switched off. It fails if there are none with a distance
of 0.05, or of 0.005 between probabilities.

    pip install torch transformers
    python3 experts.py [experts] [recent]"""
import copy, functools, json, pathlib, sys, torch, transformers

COMMON = dict(
    vocab_size=40, num_hidden_layers=2, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2, num_attention_heads=2,
    num_key_value_heads=1, hidden_size=64, intermediate_size=96, attention_dropout=0.0, num_experts_per_tok=2)
LATENT = dict(
    num_hidden_layers=3, num_key_value_heads=2, kv_lora_rank=32, qk_rope_head_dim=16, qk_nope_head_dim=32, v_head_dim=32)


def yarn(**more):
    return dict(dict(rope_type="yarn", rope_theta=1e4, factor=4.0, original_max_position_embeddings=16), **more)


def weights_after(model):
    """Lets the router of Llama 4 multiply the results of experts instead of their inputs."""
    def forward(block, rows):
        rows = rows.reshape(-1, block.hidden_dim)
        scores = block.router(rows)[0].T
        results = block.experts(rows.repeat(len(scores), 1)).view(len(scores), *rows.shape)
        return block.shared_expert(rows) + (results * scores[:, :, None]).sum(0), None
    for layer in model.model.layers:
        if layer.is_moe_layer:
            layer.feed_forward.forward = functools.partial(forward, layer.feed_forward)


LLAMA3 = dict(rope_type="llama3", rope_theta=100.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=1.0, original_max_position_embeddings=8)
YARN = dict(rope_type="yarn", rope_theta=150000.0, factor=4.0, beta_fast=32.0, beta_slow=1.0, truncate=False, original_max_position_embeddings=16)
MODELS = {
    "Mixtral": (dict(num_local_experts=4), {}),
    "Qwen2Moe": (
        dict(num_experts=6, moe_intermediate_size=32, shared_expert_intermediate_size=64, norm_topk_prob=False),
        {"renormalisation": dict(norm_topk_prob=True), "shared_expert_gate.weight": 0.0, "shared_expert.down_proj.weight": 0.0}),
    "Qwen3Moe": (
        dict(num_experts=8, moe_intermediate_size=64, norm_topk_prob=True, head_dim=32),
        {"renormalisation": dict(norm_topk_prob=False), "q_norm.weight": 1.0}),
    "Olmoe": (dict(num_experts=5, norm_topk_prob=False, clip_qkv=None), {"renormalisation": dict(norm_topk_prob=True), "k_norm.weight": 1.0}),
    "GraniteMoe": (
        dict(num_local_experts=6, intermediate_size=64, embedding_multiplier=2.0, residual_multiplier=0.5, attention_multiplier=0.25, logits_scaling=0.5),
        {"residual factor": dict(residual_multiplier=1.0), "attention factor": dict(attention_multiplier=1.0)}),
    "Glm4Moe": (
        dict(n_routed_experts=8, n_group=4, topk_group=2, num_experts_per_tok=3, moe_intermediate_size=32, n_shared_experts=2, first_k_dense_replace=1,
             num_hidden_layers=3, routed_scaling_factor=1.5, norm_topk_prob=True, use_qk_norm=True, attention_bias=True, head_dim=32),
        {"groups": dict(topk_group=4), "scale": dict(routed_scaling_factor=1.0), "renormalisation": dict(norm_topk_prob=False),
         "dense layer": dict(first_k_dense_replace=0), "e_score_correction_bias": 0.0, "shared_experts.down_proj.weight": 0.0, "q_proj.bias": 0.0}),
    "MiniMaxM2": (
        dict(num_local_experts=8, intermediate_size=64, head_dim=32, rotary_dim=16),
        {"e_score_correction_bias": 0.0, "rotation": dict(rotary_dim=32), "q_norm.weight": 1.0}),
    "Ernie4_5_Moe": (
        dict(moe_num_experts=8, moe_intermediate_size=32, moe_num_shared_experts=1, moe_layer_start_index=1, moe_layer_end_index=3,
             moe_layer_interval=2, num_hidden_layers=4, tie_word_embeddings=True),
        {"e_score_correction_bias": 0.0, "shared_experts.down_proj.weight": 0.0, "interval": dict(moe_layer_interval=1)}),
    # With a query latent and groups; without them, as the small model of this class.
    "DeepseekV2": (
        dict(LATENT, n_routed_experts=8, n_group=4, topk_group=2, num_experts_per_tok=3, moe_intermediate_size=32, n_shared_experts=2,
             first_k_dense_replace=1, routed_scaling_factor=1.5, topk_method="group_limited_greedy", q_lora_rank=32,
             rope_parameters=yarn(mscale=0.7, mscale_all_dim=0.7)),
        {"groups": dict(topk_group=4), "scale": dict(routed_scaling_factor=1.0), "mscale": dict(rope_parameters=yarn(mscale=0.7)),
         "q_a_layernorm.weight": 1.0, "kv_a_layernorm.weight": 1.0}),
    "DeepseekV2-Lite": (
        dict(LATENT, n_routed_experts=8, n_group=1, topk_group=1, num_experts_per_tok=3, moe_intermediate_size=32, n_shared_experts=2,
             topk_method="greedy", q_lora_rank=None, kv_lora_rank=64, v_head_dim=64),
        {"rotation": dict(rope_parameters=dict(rope_type="default", rope_theta=1e9)), "kv_a_layernorm.weight": 1.0}),
    "DeepseekV3": (
        dict(LATENT, n_routed_experts=8, n_group=4, topk_group=2, num_experts_per_tok=3, moe_intermediate_size=32, n_shared_experts=1,
             first_k_dense_replace=1, routed_scaling_factor=1.5, q_lora_rank=64, num_mtp_layers=0,
             rope_parameters=yarn(mscale=1.0, mscale_all_dim=1.0)),
        {"groups": dict(topk_group=4), "scale": dict(routed_scaling_factor=1.0), "renormalisation": dict(norm_topk_prob=False),
         "dense layer": dict(first_k_dense_replace=0), "e_score_correction_bias": 0.0, "shared_experts.down_proj.weight": 0.0,
         "mscale": dict(rope_parameters=yarn(mscale=1.0)), "YaRN": dict(rope_parameters=dict(rope_type="default", rope_theta=1e4)),
         "interleaved pairs": dict(rope_interleave=False), "kv_a_layernorm.weight": 1.0}),
    # Its indexer chooses all positions of a prompt this short.
    "DeepseekV32": (
        dict(LATENT, n_routed_experts=8, n_group=4, topk_group=2, num_experts_per_tok=3, moe_intermediate_size=32, n_shared_experts=1,
             first_k_dense_replace=1, routed_scaling_factor=1.5, q_lora_rank=64, index_topk=64, index_head_dim=32, index_n_heads=2,
             rope_parameters=yarn(mscale=1.0, mscale_all_dim=1.0)),
        {"groups": dict(topk_group=4), "scale": dict(routed_scaling_factor=1.0), "renormalisation": dict(norm_topk_prob=False),
         "e_score_correction_bias": 0.0, "shared_experts.down_proj.weight": 0.0, "all positions": dict(index_topk=2),
         "YaRN": dict(rope_parameters=dict(rope_type="default", rope_theta=1e4)), "kv_a_layernorm.weight": 1.0}),
    "Glm4MoeLite": (
        dict(LATENT, num_attention_heads=3, num_key_value_heads=3, n_routed_experts=8, num_experts_per_tok=2, moe_intermediate_size=32,
             n_shared_experts=1, q_lora_rank=32, qk_nope_head_dim=64, v_head_dim=64, mlp_layer_types=["dense", "sparse", "sparse"]),
        {"scale": dict(routed_scaling_factor=1.0), "e_score_correction_bias": 0.0, "rotation": dict(rope_parameters=dict(rope_type="default", rope_theta=1e9)),
         "layers": dict(mlp_layer_types=["sparse"] * 3)}),
    "Mistral4": (
        dict(LATENT, n_routed_experts=8, num_experts_per_tok=2, moe_intermediate_size=32, n_shared_experts=1, q_lora_rank=32,
             rope_parameters=yarn(mscale=1.0, mscale_all_dim=1.0, original_max_position_embeddings=4, llama_4_scaling_beta=0.5)),
        {"renormalisation": dict(norm_topk_prob=False), "shared_experts.down_proj.weight": 0.0,
         "growth": dict(rope_parameters=yarn(mscale=1.0, mscale_all_dim=1.0, original_max_position_embeddings=4, llama_4_scaling_beta=0.0))}),
    "Llama4": (
        dict(num_local_experts=6, num_experts_per_tok=1, num_hidden_layers=4, head_dim=32, intermediate_size=64, intermediate_size_mlp=96,
             moe_layers=[1, 3], no_rope_layers=[1, 1, 1, 0], attention_chunk_size=3, floor_scale=2, attn_scale=8.0, rope_parameters=LLAMA3),
        {"chunks": dict(attention_chunk_size=64), "growth": dict(attn_temperature_tuning=False), "norm": dict(use_qk_norm=False),
         "layer without RoPE": dict(no_rope_layers=[1] * 4), "dense layers": dict(moe_layers=[0, 1, 2, 3]), "weights before experts": weights_after,
         "scaling": dict(rope_parameters=dict(rope_type="default", rope_theta=100.0)), "shared_expert.down_proj.weight": 0.0}),
    "GptOss": (
        dict(num_local_experts=6, intermediate_size=32, head_dim=32, sliding_window=3, rope_parameters=YARN),
        {"sinks": -1e30, "window": dict(sliding_window=64), "limit": dict(swiglu_limit=1e9), "factor in the gate": dict(swiglu_alpha=1.0),
         "router.bias": 0.0, "gate_up_proj_bias": 0.0, "down_proj_bias": 0.0, "q_proj.bias": 0.0, "o_proj.bias": 0.0,
         "scaling": dict(rope_parameters=dict(rope_type="default", rope_theta=150000.0)), "rounding": dict(rope_parameters={**YARN, "truncate": True})}),
}
WINDOWS = dict(sliding_window=3, layer_types=["sliding_attention", "full_attention"])
PLAIN = dict(rope_type="default", rope_theta=1e4)
def gemma4_ropes(part=0.25, base=20.0):
    """Small bases, because the sequence is short."""
    of_full = dict(rope_type="proportional", partial_rotary_factor=part, rope_theta=4.0)
    return dict(rope_parameters=dict(sliding_attention=dict(PLAIN, rope_theta=base), full_attention=of_full))


GEMMA4 = dict(
    gemma4_ropes(), num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=16, global_head_dim=32, num_global_key_value_heads=1, attention_k_eq_v=True,
    hidden_size_per_layer_input=0, vocab_size_per_layer_input=40, final_logit_softcapping=2.0, sliding_window=3,
    layer_types=["sliding_attention", "sliding_attention", "full_attention"])
GEMMA4_FEATURES = {
    "window": dict(sliding_window=64), "layer_scalar": 1.0, "cap": dict(final_logit_softcapping=None), "k_norm.weight": 1.0,
    "partial rotation": gemma4_ropes(part=1.0), "RoPE in windows": gemma4_ropes(base=1e9)}
RECENT = {
    "SeedOss": (dict(head_dim=32, attention_bias=True, attention_out_bias=False), {"q_proj.bias": 0.0, "v_proj.bias": 0.0}),
    "Exaone4": (
        dict(WINDOWS, num_hidden_layers=2), {"window": dict(sliding_window=64), "q_norm.weight": 1.0, "post_attention_layernorm.weight": 1.0,
        "RoPE in one layer": dict(layer_types=["sliding_attention"] * 2, sliding_window=64)}),
    "Olmo3": (
        dict(WINDOWS, rope_parameters=dict(sliding_attention=PLAIN, full_attention=yarn(attention_factor=1.5))),
        {"window": dict(sliding_window=64), "k_norm.weight": 1.0, "YaRN": dict(rope_parameters=dict(sliding_attention=PLAIN, full_attention=PLAIN)),
         "RoPE of windows": dict(rope_parameters=dict(sliding_attention=yarn(attention_factor=1.5), full_attention=yarn(attention_factor=1.5)))}),
    "HunYuanDenseV1": (
        dict(head_dim=32, rope_parameters=dict(rope_type="dynamic", rope_theta=1e4, factor=1.0, alpha=1000.0)),
        {"alpha": dict(rope_parameters=PLAIN), "query_layernorm.weight": 1.0, "key_layernorm.weight": 1.0}),
    "Apertus": (
        dict(rope_parameters=PLAIN), {"alpha_p": -9.0, "alpha_n": -9.0, "beta": 0.0, "k_norm.weight": 1.0}),
    "Gemma4-31B": (GEMMA4, GEMMA4_FEATURES),
    "Gemma4-E2B": (
        dict(GEMMA4, num_hidden_layers=5, num_key_value_heads=1, hidden_size_per_layer_input=32, num_kv_shared_layers=2, use_double_wide_mlp=True,
             attention_k_eq_v=False, layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention"]),
        dict(GEMMA4_FEATURES, **{
            "embed_tokens_per_layer.weight": 0.0, "per_layer_model_projection.weight": 0.0, "per_layer_projection_norm.weight": 1.0,
            "post_per_layer_input_norm.weight": 0.0, "shared layers": dict(num_kv_shared_layers=0, use_double_wide_mlp=False)})),
    "Gemma4-26B-A4B": (
        dict(GEMMA4, enable_moe_block=True, num_experts=8, top_k_experts=2, moe_intermediate_size=32),
        dict(GEMMA4_FEATURES, **{"router.scale": 1.0, "per_expert_scale": 1.0, "layernorm_2.weight": 1.0, "experts.down_proj": 0.0})),
}
# Fields that change no results.
UNUSED = ("dtype", "transformers_version", "id2label", "label2id", "output_hidden_states", "return_dict", "chunk_size_feed_forward", "is_encoder_decoder",
          "initializer_range", "use_cache", "output_attentions", "attention_dropout", "residual_dropout", "pretraining_tp", "bos_token_id", "eod_token_id")
ROUTERS = ("mlp.gate.weight", "router.layer.weight", "router.weight")
# Ends of the names of weights near 1.
NEAR_ONE = ("norm.weight", "layernorm_1.weight", "layernorm_2.weight", "layer_scalar", "router.scale", "per_expert_scale")
# Divisors of the weights of gpt-oss: its limits need large gates, and its sinks scores that differ.
GPT_OSS = {
    "sinks": 64, "gate_up_proj": 64, "gate_up_proj_bias": 64, "experts.down_proj": 8192, "q_proj.weight": 4096, "k_proj.weight": 4096, "q_proj.bias": 128}


def weight(name, tensor, at, key):
    value = ((at + 1) * 7919 + (tensor + 1) * 104729) % 65537 % 257 - 128
    if key.endswith(NEAR_ONE):
        return 1 + value // 2 / 128
    if key.endswith("e_score_correction_bias"):
        return value / 256
    for end, divisor in GPT_OSS.items() if name == "GptOss" else ():
        if key.endswith(end):
            return value / divisor
    if key.endswith(("router.proj.weight", "feed_forward.router.weight")):
        # The router of Gemma 4 divides its input, and that of Llama 4 chooses one expert. Its rows must differ more than the formula makes them differ.
        return ((at + 1) * (at + 3) * 7919 % 65537 % 257 - 128) / (512 if name == "Llama4" else 32)
    return value / (128 if key.endswith(ROUTERS) else 512)


def build(name, changes, neutral=None):
    name = name.split("-")[0]
    has_experts = not any(recent.split("-")[0] == name for recent in RECENT)
    common = {key: value for key, value in COMMON.items() if has_experts or key != "num_experts_per_tok"}
    of_class = f"{name}TextConfig" if name in ("Gemma4", "Llama4") else f"{name}Config"
    config = getattr(transformers, of_class)(**copy.deepcopy({**common, **changes}))
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    model = getattr(transformers, f"{name}ForCausalLM")(config).double().eval()
    weights = model.state_dict()
    with torch.no_grad():
        for tensor, key in enumerate(sorted(weights)):
            values = torch.tensor([weight(name, tensor, at, key) for at in range(weights[key].numel())], dtype=torch.float64)
            if neutral and key.endswith(neutral[0]):
                values.fill_(neutral[1])
            weights[key].copy_(values.view(weights[key].shape))
    return model


def run(model, prompts):
    """Logits of the last token of each prompt, and the least distance between the values of a chosen expert, or group of experts, and another."""
    margins, hooks = [], []
    config = model.config
    used = getattr(config, "num_experts_per_tok", None) or getattr(config, "top_k_experts", None)

    def note(values, count):
        if count < values.shape[-1]:
            top = values.topk(count + 1, dim=-1).values
            margins.append((top[:, count - 1] - top[:, count]).view(len(prompts), -1).min(dim=1).values)
    for layer in model.model.layers:
        block = getattr(layer, "mlp", None) or getattr(layer, "feed_forward", None) or layer.block_sparse_moe
        gate = getattr(block, "gate", None) or getattr(block, "router", None)
        if hasattr(layer, "router"):
            gate = layer.router.proj
        if gate is None:
            continue  # a layer without experts

        def hook(gate, inputs, _, block=block):
            logits = inputs[0].reshape(-1, gate.weight.shape[1]) @ gate.weight.T
            if "GptOss" in type(model).__name__:
                logits = logits + gate.bias
            bias = next((b for name, b in [*block.named_buffers(), *block.named_parameters()] if name.endswith("e_score_correction_bias")), None)
            if bias is not None:
                logits = (logits.softmax(-1) if "Ernie" in type(model).__name__ else logits.sigmoid()) + bias
            groups = getattr(config, "n_group", 1) or 1
            if groups > 1:
                split = logits.view(len(logits), groups, -1)
                values = split.topk(1 if bias is None else 2, dim=-1).values.sum(-1)
                note(values, config.topk_group)
                kept = torch.zeros_like(values).scatter(1, values.topk(config.topk_group, dim=-1).indices, 1)
                logits = split.masked_fill(kept[:, :, None] == 0, -100.0).view(len(logits), -1)
            note(logits, used)
        hooks.append(gate.register_forward_hook(hook))
    with torch.no_grad():
        logits = model(torch.tensor(prompts), use_cache=False).logits[:, -1]
    for hook in hooks:
        hook.remove()
    margins.append(torch.full((len(prompts),), float("inf")))
    return logits, torch.stack(margins).min(dim=0).values


def joined(shapes, layers):
    """Replaces tensors that have the same shape in all layers by one, with * instead of the number."""
    out = {}
    for key, shape in shapes.items():
        parts = key.split(".")
        if parts[1] == "layers":
            of_layer = [".".join(parts[:2] + [str(layer)] + parts[3:]) for layer in range(layers)]
            if all(shapes.get(other) == shape for other in of_layer):
                key = ".".join(parts[:2] + ["*"] + parts[3:])
        out[key] = shape
    return out


def write(file, models):
    out = {}
    for name, (changes, features) in models.items():
        model = build(name, changes)
        tried = [[(a * at + b * at * at + 3) % 40 for at in range(6)] for a in range(1, 40) for b in range(1, 26)]
        tried = [ids for ids in tried if len(set(ids)) == len(ids)]  # Equal tokens have equal values, which attention cannot tell apart.
        all_logits, margins = run(model, tried)
        least = 0.005 if "e_score_correction_bias" in features else 0.05
        is_good = margins > least
        print(f"{name}: {int(is_good.sum())} of {len(tried)} prompts have a clear choice")
        for feature, change in features.items():
            if callable(change):
                other = build(name, changes)
                change(other)
            else:
                other = build(name, {**changes, **change}) if isinstance(change, dict) else build(name, changes, (feature, change))
            moved = (run(other, tried)[0] - all_logits).norm(dim=-1) / all_logits.norm(dim=-1)
            print(f"{name} without {feature}: {float(moved.median()):.3f}")
            is_good &= moved > 1e-2
            print(f"  {int(is_good.sum())} prompts are left")
        assert is_good.any(), name
        best = int(torch.where(is_good, margins, -1.0).argmax())
        ids, logits, margin = tried[best], all_logits[best], float(margins[best])
        config = {key: value for key, value in model.config.to_dict().items() if not key.startswith("_") and value is not None}
        config.update(changes)
        if file == "recent":
            for unused in UNUSED:
                config.pop(unused, None)
            # The form of published files, and that of files which `transformers` writes.
            of_form = ["per_layer_config"] if name == "Gemma4-26B-A4B" else ["global_head_dim", "num_global_key_value_heads"]
            for field in of_form:
                config.pop(field, None)
        else:
            for unused in ("dtype", "transformers_version", "id2label", "label2id", "layer_types"):
                config.pop(unused, None)
        config["architectures"] = [f"{name.split('-')[0]}ForCausalLM"]
        shapes = joined({key: list(value.shape) for key, value in sorted(model.state_dict().items())}, len(model.model.layers))
        out[name] = {"config": config, "ids": ids, "shapes": shapes, "logits": [float(f"{x:.7g}") for x in logits]}
        print(name, "largest logit", float(logits.abs().max()), "least margin", margin)
    path = pathlib.Path(__file__).with_name(f"{file}.json")
    path.write_text(json.dumps(out, separators=(",", ":")) + "\n")
    print(path.stat().st_size, "bytes")


for file, models in [("experts", MODELS), ("recent", RECENT)]:
    if not sys.argv[1:] or file in sys.argv[1:]:
        write(file, models)
