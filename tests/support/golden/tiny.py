"""Writes a tiny random model beside this file: a safetensors directory, the same model as GGUF, and its logits.

    python3 tiny.py qwen2

Needs the packages torch, transformers and gguf. The folder tiny-NAME has random weights in bfloat16 (vectors of the GGUF
file in float32), a byte-level tokenizer, 25 token ids in ids.json, and in logits.npy the logits of `transformers` in
float64. Prints how far the logits move without each optional part: a part that moves nothing would go untested.
"""

import copy, json, pathlib, shutil, sys

import gguf, numpy, torch, transformers

# Quick to run and small to store: one key-value head for two query heads, and rows of 32 values.
SHAPE = dict(
    vocab_size=264, hidden_size=32, intermediate_size=64, num_hidden_layers=2, max_position_embeddings=512,
    rms_norm_eps=1e-6, rope_parameters={"rope_type": "default", "rope_theta": 1e6}, eos_token_id=261,
)
# Class, GGUF architecture, its own shape, and the parts that set it apart with their neutral value.
MODELS = {
    "qwen2": (
        "Qwen2", gguf.MODEL_ARCH.QWEN2,
        dict(num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=True),
        {"q_proj.bias": 0.0, "k_proj.bias": 0.0, "v_proj.bias": 0.0},
    ),
    "qwen3": (
        "Qwen3", gguf.MODEL_ARCH.QWEN3,
        dict(num_attention_heads=4, num_key_value_heads=2, head_dim=16, tie_word_embeddings=False),
        {"q_norm.weight": 1.0, "k_norm.weight": 1.0},
    ),
}
WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
MERGES = [("Ġ", "t"), ("h", "e"), ("Ġt", "he"), ("i", "n"), ("e", "r")]
SPECIAL = ["<|endoftext|>"]


def build(kind, shape):
    """A model with random weights that bfloat16 holds exactly. Vectors are about 1 in size, so that none is negligible."""
    torch.manual_seed(7)
    config = getattr(transformers, f"{kind}Config")(**SHAPE, **shape)
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if value.dim() == 2:
                random = torch.randn(value.shape) * (1.0 if "embed" in name else 1.5 * value.shape[1] ** -0.5)
            elif name.endswith("bias"):
                random = torch.randn(value.shape)
            else:
                random = 0.5 + 1.5 * torch.rand(value.shape)
            value.copy_(random.bfloat16())
    return model.eval()


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
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if getattr(config, "head_dim", None):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
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
        ours = names.get_name(key, try_suffixes=(".weight", ".bias"))
        value = value.float().numpy()
        if value.ndim == 2:
            kind = gguf.GGMLQuantizationType.BF16
            writer.add_tensor(ours, gguf.quants.quantize(value, kind), raw_dtype=kind)
        else:
            writer.add_tensor(ours, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main(name):
    kind, arch, shape, parts = MODELS[name]
    folder = pathlib.Path(__file__).parent / f"tiny-{name}"
    shutil.rmtree(folder, ignore_errors=True)
    model = build(kind, shape)
    copy.deepcopy(model).bfloat16().save_pretrained(folder)
    tokens = letters() + ["".join(pair) for pair in MERGES] + SPECIAL
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer(tokens), ensure_ascii=False))
    write_gguf(folder / "model.gguf", arch, model, tokens)
    ids = [(i * i * 37 + 11 * i + 5) % 256 for i in range(25)]
    (folder / "ids.json").write_text(json.dumps({"ids": ids}) + "\n")
    golden = logits(model, ids)
    numpy.save(folder / "logits.npy", golden.float().numpy())
    for part, neutral in parts.items():
        without = copy.deepcopy(model)
        with torch.no_grad():
            for key, value in without.named_parameters():
                if key.endswith(part):
                    value.fill_(neutral)
        moved = (logits(without, ids) - golden).norm() / golden.norm()
        assert moved > 1e-3, (part, moved)
        print(f"{name}: without {part} the logits move by {moved:.1e}")


main(sys.argv[1])
