"""Writes a tiny random model beside this file: a safetensors directory, the same model as GGUF, and its logits.

    python3 tiny.py qwen2

Needs the packages torch, transformers and gguf. The folder tiny-NAME has random weights in bfloat16 (vectors of the GGUF
file in float32), a byte-level tokenizer, token ids in ids.json, and in logits.npy the logits of `transformers` in
float64. Where Ragtag reads other weights than bfloat16, ROUNDED rounds the weights of linear layers to these, and
logits.npy has the logits of the rounded weights. Prints how far the logits move without each optional part: a part that moves nothing would go untested.
"""

import copy, json, pathlib, shutil, sys

import gguf, numpy, safetensors.torch, torch, transformers

# Quick to run and small to store: one key-value head for two query heads, and rows of 32 values.
SHAPE = dict(
    vocab_size=264, hidden_size=32, intermediate_size=64, num_hidden_layers=2, max_position_embeddings=512,
    rms_norm_eps=1e-6, rope_parameters={"rope_type": "default", "rope_theta": 1e6}, eos_token_id=261,
)
THETA = SHAPE["rope_parameters"]["rope_theta"]
HEADS = dict(num_attention_heads=2, num_key_value_heads=1)
LONG = 44  # longer than windows and original contexts


def rope(kind, **more):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 1e4, **more}}


# Every tiny model: class; GGUF architecture, or none; its own shape; the parts that set it apart, each with changes to
# its configuration, or with the neutral value of weights; and the number of token ids.
LLAMA = dict(HEADS, tie_word_embeddings=True, num_hidden_layers=2)
MODELS = {
    "qwen2": (
        "Qwen2", gguf.MODEL_ARCH.QWEN2, dict(HEADS, tie_word_embeddings=True),
        {"q_proj.bias": 0.0, "k_proj.bias": 0.0, "v_proj.bias": 0.0}, 25,
    ),
    "qwen3": (
        "Qwen3", gguf.MODEL_ARCH.QWEN3,
        dict(num_attention_heads=4, num_key_value_heads=2, head_dim=16, tie_word_embeddings=False),
        {"q_norm.weight": 1.0, "k_norm.weight": 1.0}, 25,
    ),
    "qwen3-window": (
        "Qwen3", None,
        dict(HEADS, head_dim=16, tie_word_embeddings=True, use_sliding_window=True, sliding_window=9, max_window_layers=1),
        {"window": dict(use_sliding_window=False), "layers": dict(max_window_layers=0)}, LONG,
    ),
    "llama3": (
        "Llama", gguf.MODEL_ARCH.LLAMA,
        dict(LLAMA, **rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)),
        {"scaling": rope("default")}, LONG,
    ),
    "llama-linear": (
        "Llama", gguf.MODEL_ARCH.LLAMA, dict(LLAMA, **rope("linear", factor=3.0)), {"scaling": rope("default")}, 30,
    ),
    "llama-yarn": (
        "Llama", gguf.MODEL_ARCH.LLAMA,
        dict(LLAMA, **rope("yarn", factor=16.0, original_max_position_embeddings=32)),
        {
            "scaling": rope("default"),
            "magnitude": rope("yarn", factor=16.0, original_max_position_embeddings=32, attention_factor=1.0),
        }, LONG,
    ),
    "mistral": (
        "Mistral", gguf.MODEL_ARCH.LLAMA,
        dict(HEADS, head_dim=48, sliding_window=19, tie_word_embeddings=True),
        {"window": dict(sliding_window=None)}, LONG,
    ),
    "gemma2": (
        "Gemma2", gguf.MODEL_ARCH.GEMMA2,
        dict(
            HEADS, head_dim=32, sliding_window=13, query_pre_attn_scalar=24, attn_logit_softcapping=5.0,
            final_logit_softcapping=3.0, num_hidden_layers=2, hidden_activation="gelu_pytorch_tanh",
        ),
        {
            "window": dict(sliding_window=500), "cap of scores": dict(attn_logit_softcapping=None),
            "cap of logits": dict(final_logit_softcapping=None), "query scale": dict(query_pre_attn_scalar=32),
            "GELU": dict(hidden_activation="silu"), "post_attention_layernorm.weight": 0.0,
            "pre_feedforward_layernorm.weight": 0.0, "post_feedforward_layernorm.weight": 0.0,
        }, LONG,
    ),
    "gemma3": (
        "Gemma3", gguf.MODEL_ARCH.GEMMA3,
        dict(
            HEADS, head_dim=32, sliding_window=13, query_pre_attn_scalar=24, num_hidden_layers=3,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
            rope_parameters={
                "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        ),
        {
            "window": dict(sliding_window=500), "layer types": dict(layer_types=["sliding_attention"] * 3),
            "query scale": dict(query_pre_attn_scalar=32), "GELU": dict(hidden_activation="silu"),
            "own base": {"rope_parameters": {
                kind: {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e6}
                for kind in ("full_attention", "sliding_attention")
            }},
            "q_norm.weight": 0.0, "k_norm.weight": 0.0, "post_feedforward_layernorm.weight": 0.0,
        }, LONG,
    ),
    "phi3": (
        "Phi3", gguf.MODEL_ARCH.PHI3,
        dict(
            HEADS, head_dim=16, sliding_window=29, tie_word_embeddings=True, pad_token_id=0,
            original_max_position_embeddings=32,
            **rope(
                "longrope", partial_rotary_factor=0.5, original_max_position_embeddings=32,
                short_factor=[1.0, 1.1, 1.2, 1.5], long_factor=[1.0, 2.0, 5.0, 9.0],
            ),
        ),
        {
            "window": dict(sliding_window=None),
            "factors": rope("default", partial_rotary_factor=0.5),
            "partial rotation": rope(
                "longrope", partial_rotary_factor=1.0, original_max_position_embeddings=32,
                short_factor=[1.0, 1.1, 1.2, 1.5] * 2, long_factor=[1.0, 2.0, 5.0, 9.0] * 2,
            ),
            "long factors": rope(
                "longrope", partial_rotary_factor=0.5, original_max_position_embeddings=32,
                short_factor=[1.0, 1.1, 1.2, 1.5], long_factor=[1.0, 1.1, 1.2, 1.5],
            ),
            "magnitude": rope(
                "longrope", partial_rotary_factor=0.5, original_max_position_embeddings=32, attention_factor=1.0,
                short_factor=[1.0, 1.1, 1.2, 1.5], long_factor=[1.0, 2.0, 5.0, 9.0],
            ),
        }, LONG,
    ),
    "granite": (
        "Granite", gguf.MODEL_ARCH.GRANITE,
        dict(
            HEADS, tie_word_embeddings=True, embedding_multiplier=3.0, residual_multiplier=0.22, attention_multiplier=0.5,
            logits_scaling=4.0,
        ),
        {
            "embedding": dict(embedding_multiplier=1.0), "residual": dict(residual_multiplier=1.0),
            "attention": dict(attention_multiplier=0.25), "logits": dict(logits_scaling=1.0),
        }, 25,
    ),
    "olmo2": (
        "Olmo2", gguf.MODEL_ARCH.OLMO2,
        dict(num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=False, pad_token_id=0),
        {
            "q_norm.weight": 1.0, "k_norm.weight": 1.0, "post_attention_layernorm.weight": 1.0,
            "post_feedforward_layernorm.weight": 1.0,
        }, 25,
    ),
    "smollm3": (
        "SmolLM3", gguf.MODEL_ARCH.SMOLLM3,
        dict(
            HEADS, num_hidden_layers=4, intermediate_size=32, tie_word_embeddings=True, no_rope_layer_interval=4,
            pad_token_id=0, bos_token_id=None,
        ),
        {"layers without RoPE": dict(no_rope_layers=[1, 1, 1, 1])}, 25,
    ),
    "glm4": (
        "Glm4", gguf.MODEL_ARCH.GLM4,
        dict(
            HEADS, head_dim=16, attention_bias=True, tie_word_embeddings=False, pad_token_id=0,
            **rope("default", partial_rotary_factor=0.5),
        ),
        {
            "partial rotation": rope("default", partial_rotary_factor=1.0), "q_proj.bias": 0.0, "k_proj.bias": 0.0,
            "v_proj.bias": 0.0, "post_self_attn_layernorm.weight": 1.0, "post_mlp_layernorm.weight": 1.0,
        }, 25,
    ),
    "fp8": (
        "Qwen3", None,
        dict(num_attention_heads=4, num_key_value_heads=2, head_dim=16, hidden_size=64, intermediate_size=96, tie_word_embeddings=True),
        {"q_norm.weight": 1.0, "k_norm.weight": 1.0}, 25,
    ),
    "bitnet": (
        "BitNet", None,
        dict(HEADS, hidden_size=64, intermediate_size=256, tie_word_embeddings=True, hidden_act="relu2", bos_token_id=1),
        {"attn_sub_norm.weight": 1.0, "ffn_sub_norm.weight": 1.0, "squared ReLU": dict(hidden_act="silu")}, 25,
    ),
    "command-r": (
        "Cohere", gguf.MODEL_ARCH.COMMAND_R,
        dict(HEADS, tie_word_embeddings=True, logit_scale=0.25, layer_norm_eps=1e-5, pad_token_id=0, bos_token_id=1),
        {"logit scale": dict(logit_scale=1.0), "input_layernorm.weight": 1.0, "norm.weight": 1.0}, 7,
    ),
    "command-r-plus": (
        "Cohere", gguf.MODEL_ARCH.COMMAND_R,
        dict(
            num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=1, intermediate_size=32, use_qk_norm=True,
            tie_word_embeddings=True, logit_scale=0.25, layer_norm_eps=1e-5, pad_token_id=0, bos_token_id=1,
        ),
        {"q_norm.weight": 1.0, "k_norm.weight": 1.0, "norms of queries and keys": dict(use_qk_norm=False)}, 7,
    ),
    "starcoder2": (
        "Starcoder2", gguf.MODEL_ARCH.STARCODER2,
        dict(
            HEADS, sliding_window=17, tie_word_embeddings=True, use_bias=True, hidden_act="gelu_pytorch_tanh",
            bos_token_id=None,
        ),
        {
            "window": dict(sliding_window=None), "GELU": dict(hidden_act="silu"), "q_proj.bias": 0.0, "k_proj.bias": 0.0,
            "v_proj.bias": 0.0, "o_proj.bias": 0.0, "c_fc.bias": 0.0, "c_proj.bias": 0.0, "layernorm.bias": 0.0,
            "norm.bias": 0.0,
        }, LONG,
    ),
}
WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
MERGES = [("Ġ", "t"), ("h", "e"), ("Ġt", "he"), ("i", "n"), ("e", "r")]
SPECIAL = ["<|endoftext|>"]


def build(kind, shape):
    """A model with random weights that bfloat16 holds exactly. Vectors are about 1 in size, so that none is negligible."""
    torch.manual_seed(7)
    config = getattr(transformers, "Gemma3TextConfig" if kind == "Gemma3" else f"{kind}Config")(**copy.deepcopy({**SHAPE, **shape}))
    config._attn_implementation = "eager"
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if value.dim() == 2 and not name.endswith("norm.weight"):
                random = torch.randn(value.shape) * (1.0 if "embed" in name else 1.5 * value.shape[1] ** -0.5)
            elif name.endswith("bias"):
                random = torch.randn(value.shape)
            else:
                random = 0.5 + 1.5 * torch.rand(value.shape) - (1.0 if kind.startswith("Gemma") else 0.0)
            value.copy_(random.bfloat16())
    return model.eval()


TILE = (48, 64)  # rows and columns that share a scale


def to_fp8(model):
    """Rounds linear layers to F8_E4M3 with a scale per tile. Returns the tensors and the configuration of the checkpoint."""
    stored = {}
    for name, value in linear(model):
        scales = torch.zeros([-(-size // tile) for size, tile in zip(value.shape, TILE)])
        codes = torch.zeros(value.shape, dtype=torch.float8_e4m3fn)
        for i, j in numpy.ndindex(*scales.shape):
            part = (slice(i * TILE[0], (i + 1) * TILE[0]), slice(j * TILE[1], (j + 1) * TILE[1]))
            scales[i, j] = value[part].abs().max() / 448
            codes[part] = (value[part] / scales[i, j]).to(torch.float8_e4m3fn)
            value[part] = codes[part].double() * scales[i, j].double()
        stored |= {name: codes, f"{name}_scale_inv": scales}
    return stored, {
        "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": TILE,
        "modules_to_not_convert": ["lm_head"],
    }


def to_ternary(model):
    """Like `to_fp8`, with the weights -1, 0 and 1 and a scale per layer. Activations keep their precision."""
    stored = {}
    for name, value in linear(model):
        scale = value.abs().mean().bfloat16()
        codes = (value / scale.double()).round().clamp(-1, 1)
        value.copy_(codes * scale.double())
        quarters = (codes + 1).to(torch.uint8).reshape(4, -1, value.shape[1])
        stored |= {name: sum(part << 2 * i for i, part in enumerate(quarters)), f"{name}_scale": scale.reshape(1)}
    return stored, {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "offline"}


ROUNDED = {"fp8": to_fp8, "bitnet": to_ternary}


def linear(model):
    return [(name, value.data) for name, value in model.named_parameters() if name.endswith("_proj.weight")]


def logits(model, ids):
    with torch.no_grad():
        return copy.deepcopy(model).double()(torch.tensor([ids])).logits[0]


def letters():
    """The characters for the bytes 0 to 255 in byte-level vocabularies."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte if byte in plain else next(others)) for byte in range(256)]


def tokenizer(tokens):
    special = dict(single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
    bytes_of = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": WORDS}, "behavior": "Isolated", "invert": False}
    count = len(tokens) - len(SPECIAL)
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": count + i, "content": text, **special} for i, text in enumerate(SPECIAL)],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, bytes_of]},
        "post_processor": bytes_of, "decoder": bytes_of,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
            "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens[:count])}, "merges": [list(pair) for pair in MERGES],
        },
    }


# Architectures whose GGUF files have the rows of query and key projections in another order: dimensions that rotate
# together are neighbours.
PERMUTED = ["llama", "granite", "smollm3"]
# Tensors that the table of the package does not know, or knows under another name than llama.cpp's converter.
OWN_NAMES = {
    "glm4": {
        "post_self_attn_layernorm": "post_attention_norm", "post_mlp_layernorm": "post_ffw_norm",
        "post_attention_layernorm": "ffn_norm",
    },
    "gemma2": {"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm"},
    "gemma3_text": {"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm"},
    "olmo2": {"post_attention_layernorm": "post_attention_norm", "post_feedforward_layernorm": "post_ffw_norm"},
}


def write_rope(writer, config, parameters, head):
    """The keys and tensors of rotary position embedding, as llama.cpp's converter writes them."""
    dims = int(head * parameters.get("partial_rotary_factor", 1.0))
    writer.add_rope_dimension_count(dims)
    writer.add_rope_freq_base(parameters["rope_theta"])
    kind, factor = parameters["rope_type"], parameters.get("factor")
    if kind == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(factor)
    elif kind == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(factor)
        writer.add_rope_scaling_orig_ctx_len(parameters["original_max_position_embeddings"])
    elif kind == "llama3":
        turns = 2 * numpy.pi * parameters["rope_theta"] ** (numpy.arange(0, dims, 2) / dims)
        context, low, high = (parameters[k] for k in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor"))
        smooth = numpy.clip((context / turns - low) / (high - low), 0, 1)
        writer.add_tensor("rope_freqs.weight", (1 / ((1 - smooth) / factor + smooth)).astype(numpy.float32))
    elif kind == "longrope":
        context = parameters["original_max_position_embeddings"]
        writer.add_rope_scaling_orig_ctx_len(context)
        ratio = config.max_position_embeddings / context
        writer.add_rope_scaling_attn_factors(float(numpy.sqrt(1 + numpy.log(ratio) / numpy.log(context))))
        for size in ("long", "short"):
            writer.add_tensor(f"rope_factors_{size}.weight", numpy.array(parameters[f"{size}_factor"], numpy.float32))


def write_gguf(path, arch, model, tokens):
    config, name = model.config, gguf.MODEL_ARCH_NAMES[arch]
    writer = gguf.GGUFWriter(path, name)
    writer.add_name(path.parent.name)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    parameters = config.rope_parameters
    if "full_attention" in parameters:
        writer.add_float32(f"{name}.rope.freq_base_swa", parameters["sliding_attention"]["rope_theta"])
        parameters = parameters["full_attention"]
    write_rope(writer, config, parameters, head)
    of_layer_norms = getattr(config, "norm_epsilon", getattr(config, "layer_norm_eps", None))
    if of_layer_norms:
        writer.add_layer_norm_eps(of_layer_norms)
    else:
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if getattr(config, "head_dim", None):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    if getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)
    if config.model_type == "gemma3_text":
        writer.add_array(f"{name}.attention.sliding_window_pattern", [t == "sliding_attention" for t in config.layer_types])
    if config.model_type.startswith("gemma"):
        # The key is that of Granite, because llama.cpp has the scale of Gemma models built in.
        writer.add_attention_scale(config.query_pre_attn_scalar ** -0.5)
    if getattr(config, "attn_logit_softcapping", None):
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
    if getattr(config, "final_logit_softcapping", None):
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if config.model_type == "cohere":
        writer.add_logit_scale(config.logit_scale)
    if config.model_type == "granite":
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    control = [gguf.TokenType.CONTROL if token in SPECIAL else gguf.TokenType.NORMAL for token in tokens]
    writer.add_token_types(control)
    writer.add_token_merges([" ".join(pair) for pair in MERGES])
    writer.add_eos_token_id(config.eos_token_id)
    writer.add_add_bos_token(False)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    for key, value in model.state_dict().items():
        if key == "lm_head.weight" and config.tie_word_embeddings:
            continue
        ours = OWN_NAMES.get(config.model_type, {}).get(key.split(".")[-2])
        ours = f"blk.{key.split('.')[2]}.{ours}.weight" if ours else names.get_name(key, try_suffixes=(".weight", ".bias"))
        value = value.float().numpy()
        if key.endswith("norm.weight") and config.model_type.startswith("gemma"):
            value = value + 1
        if name in PERMUTED and key.endswith(("q_proj.weight", "k_proj.weight")):
            heads = config.num_attention_heads if "q_proj" in key else config.num_key_value_heads
            value = value.reshape(heads, 2, -1, value.shape[1]).swapaxes(1, 2).reshape(value.shape)
        if value.ndim == 2 and not key.endswith("norm.weight"):
            kind = gguf.GGMLQuantizationType.BF16
            writer.add_tensor(ours, gguf.quants.quantize(value, kind), raw_dtype=kind)
        else:
            writer.add_tensor(ours, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main(name):
    kind, arch, shape, parts, count = MODELS[name]
    folder = pathlib.Path(__file__).parent / f"tiny-{name}"
    shutil.rmtree(folder, ignore_errors=True)
    rounded = ROUNDED.get(name)
    model = build(kind, shape)
    copy.deepcopy(model).bfloat16().save_pretrained(folder)
    if rounded:
        model = model.double()
        stored, quantization = rounded(model)
        file = folder / "model.safetensors"
        safetensors.torch.save_file({**safetensors.torch.load_file(file), **stored}, file, {"format": "pt"})
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "quantization_config": quantization}, indent=2) + "\n")
    tokens = letters() + ["".join(pair) for pair in MERGES] + SPECIAL
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer(tokens), ensure_ascii=False))
    if arch is not None:
        write_gguf(folder / "model.gguf", arch, model, tokens)
    ids = [(i * i * 37 + 11 * i + 5) % 256 for i in range(count)]
    (folder / "ids.json").write_text(json.dumps({"ids": ids}) + "\n")
    golden = logits(model, ids)
    numpy.save(folder / "logits.npy", golden.float().numpy())
    # Every norm and every bias counts, too, under the last two parts of its name.
    vectors = {".".join(key.split(".")[-2:]) for key, value in model.named_parameters() if value.dim() == 1}
    of_norms = 0.0 if kind.startswith("Gemma") else 1.0
    parts = {part: 0.0 if part.endswith("bias") else of_norms for part in sorted(vectors)} | parts
    for part, neutral in parts.items():
        without = build(kind, {**shape, **neutral}) if isinstance(neutral, dict) else copy.deepcopy(model)
        if rounded and isinstance(neutral, dict):
            rounded(without.double())
        with torch.no_grad():
            for key, value in without.named_parameters():
                if not isinstance(neutral, dict) and key.endswith(part):
                    value.fill_(neutral)
        moved = (logits(without, ids) - golden).norm() / golden.norm()
        assert moved > 1e-3, (part, moved)
        print(f"{name}: without {part} the logits move by {moved:.1e}")


main(sys.argv[1])
