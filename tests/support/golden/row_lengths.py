"""Writes row_lengths.json: configurations of models whose rows are no multiples of 32 values, and the logits that `transformers` computes for
them in float64. All weights follow from a formula (`weight`), so that no file has to hold them. F32, F16 and BF16 hold them exactly.

    pip install torch transformers
    python3 row_lengths.py"""
import json, pathlib, torch, transformers

IDS = [(7 * at + at * at) % 50 for at in range(21)]
COMMON = dict(
    vocab_size=50, num_hidden_layers=2, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    num_attention_heads=2, num_key_value_heads=1, attention_dropout=0.0)
MODELS = {
    # hidden size, intermediate size, size of a head
    "Llama": dict(shape=(16, 48, 8)), "Mistral": dict(shape=(80, 72, 40), sliding_window=None),
    "Qwen2": dict(shape=(33, 99, 6), tie_word_embeddings=True), "Qwen3": dict(shape=(48, 20, 24)),
    "Gemma2": dict(shape=(24, 50, 12), sliding_window=9, query_pre_attn_scalar=12),
    "Gemma3": dict(shape=(100, 1, 10), sliding_window=9, query_pre_attn_scalar=10),
    "Phi3": dict(shape=(40, 56, 20)), "Granite": dict(shape=(1, 31, 2), logits_scaling=2.0),
    "Olmo2": dict(shape=(72, 36, 36)), "SmolLM3": dict(shape=(63, 65, 14)),
    "Starcoder2": dict(shape=(36, 88, 18), use_bias=True, sliding_window=None), "Cohere": dict(shape=(44, 28, 22), logit_scale=0.5),
}


def weight(tensor, at, is_norm):
    value = ((at + 1) * 7919 + (tensor + 1) * 104729) % 65537 % 257 - 128
    return 1 + value // 2 / 128 if is_norm else value / 256


def main():
    out = {"ids": IDS, "models": {}}
    for name, more in MODELS.items():
        hidden, intermediate, head = more["shape"]
        more = {key: value for key, value in more.items() if key != "shape"}
        class_of = lambda kind: getattr(transformers, f"{name}{'Text' if name == 'Gemma3' and kind == 'Config' else ''}{kind}")
        config = class_of("Config")(**COMMON, hidden_size=hidden, intermediate_size=intermediate, head_dim=head, **more)
        config._attn_implementation = "eager"
        model = class_of("ForCausalLM")(config).double().eval()
        tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
        weights = {key: value for key, value in model.state_dict().items() if key not in tied}
        with torch.no_grad():
            for tensor, key in enumerate(sorted(weights)):
                count, is_norm = weights[key].numel(), weights[key].ndim == 1 and key.endswith("norm.weight")
                values = torch.tensor([weight(tensor, at, is_norm) for at in range(count)], dtype=torch.float64)
                weights[key].copy_(values.view(weights[key].shape))
            logits = model(torch.tensor([IDS]), use_cache=False).logits[0, -1]
        shapes = {key: list(weights[key].shape) for key in sorted(weights)}
        found = config.to_dict()
        found["architectures"] = [f"{name}ForCausalLM"]
        found = {key: value for key, value in found.items() if not key.startswith("_") and key != "dtype"}
        out["models"][name] = {"config": found, "shapes": shapes, "logits": [float(f"{x:.8g}") for x in logits]}
        print(name, float(logits.abs().max()))
    path = pathlib.Path(__file__).with_name("row_lengths.json")
    path.write_text(json.dumps(out, separators=(",", ":")) + "\n")


main()
