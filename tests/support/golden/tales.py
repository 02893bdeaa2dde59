"""Writes the golden data of the `tales` models in the architecture `llama`.

    python3 tales.py check MODEL.gguf     compare with the data beside this file, and write nothing
    python3 tales.py write MODEL.gguf     write MODEL.golden.json and MODEL.logits.npy

Needs the packages numpy, gguf and blake3. Shares no code with Ragtag: `gguf` dequantises the weights, and numpy computes in
float64. Prompts and their tokens come from `tales-q8_0.golden.json`, whose data another implementation computed. `check` on
`tales-q8_0.gguf` therefore validates this script. The integration tests make `tales-q4_0.gguf` and `tales-q4_k_m.gguf` in
`target/tmp`.
"""

import json, pathlib, sys

import blake3, gguf, numpy

HERE = pathlib.Path(__file__).parent
STEPS = 64
# Positions with golden logits, which keeps the repository small.
POSITIONS = 2


class Model:
    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        value = lambda key: reader.get_field(key).contents()
        self.layers, self.heads = value("llama.block_count"), value("llama.attention.head_count")
        self.groups, self.head = value("llama.attention.head_count_kv"), value("llama.attention.key_length")
        self.base, self.epsilon = value("llama.rope.freq_base"), value("llama.attention.layer_norm_rms_epsilon")
        self.tokens, self.types = value("tokenizer.ggml.tokens"), value("tokenizer.ggml.token_type")
        self.weights = {
            tensor.name.removesuffix(".weight"): gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(numpy.float64)
            for tensor in reader.tensors
        }

    def norm(self, x, name):
        return x / numpy.sqrt(numpy.mean(x * x, axis=-1, keepdims=True) + self.epsilon) * self.weights[name]

    def rope(self, x, start):
        """Rotates pairs of neighbouring dimensions. The shape of `x` is positions, heads, dimensions."""
        angles = numpy.arange(start, start + len(x))[:, None] * self.base ** (-numpy.arange(0, self.head, 2) / self.head)
        cos, sin = numpy.cos(angles)[:, None], numpy.sin(angles)[:, None]
        even, odd = x[..., 0::2], x[..., 1::2]
        return numpy.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1).reshape(x.shape)

    def attention(self, x, layer, past):
        start = len(past[layer][0]) if layer in past else 0
        matrix = lambda name: self.weights[f"blk.{layer}.attn_{name}"]
        part = lambda name: (x @ matrix(name).T).reshape(len(x), -1, self.head)
        share = self.heads // self.groups
        queries, keys = self.rope(part("q"), start), numpy.repeat(self.rope(part("k"), start), share, axis=1)
        values = numpy.repeat(part("v"), share, axis=1)
        if layer in past:
            keys, values = [numpy.concatenate(pair) for pair in zip(past[layer], (keys, values))]
        past[layer] = keys, values
        scores = numpy.einsum("qhd,khd->hqk", queries, keys) / numpy.sqrt(self.head)
        scores[:, numpy.triu(numpy.ones((len(x), len(keys)), bool), start + 1)] = -numpy.inf
        scores = numpy.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        return numpy.einsum("hqk,khd->qhd", scores, values).reshape(len(x), -1) @ matrix("output").T

    def logits(self, ids, past=None):
        """The logits of all positions, one row per token. `past` holds the keys and values of earlier tokens by layer."""
        past = {} if past is None else past
        x = self.weights["token_embd"][ids]
        for layer in range(self.layers):
            x = x + self.attention(self.norm(x, f"blk.{layer}.attn_norm"), layer, past)
            matrix = lambda name: self.weights[f"blk.{layer}.ffn_{name}"]
            h = self.norm(x, f"blk.{layer}.ffn_norm")
            gate = h @ matrix("gate").T
            x = x + (gate / (1 + numpy.exp(-gate)) * (h @ matrix("up").T)) @ matrix("down").T
        return self.norm(x, "output_norm") @ self.weights["token_embd"].T

    def text(self, ids):
        """The text of tokens, without the control tokens and the first space."""
        pieces = [
            bytes([int(self.tokens[i][3:5], 16)]) if self.types[i] == gguf.TokenType.BYTE else self.tokens[i].replace("▁", " ").encode()
            for i in ids
            if self.types[i] != gguf.TokenType.CONTROL
        ]
        return b"".join(pieces).decode(errors="replace").removeprefix(" ")


def case(model, golden):
    ids, past, greedy, margins = list(golden["prompt_ids"]), {}, [], []
    for _ in range(STEPS):
        row = model.logits(ids[len(past[0][0]) if past else 0 :], past)[-1]
        second, first = numpy.sort(row)[-2:]
        greedy.append(int(row.argmax()))
        margins.append(round(float(first - second), 4))
        ids.append(greedy[-1])
    return {
        "prompt": golden["prompt"],
        "prompt_ids": golden["prompt_ids"],
        "greedy_ids": greedy,
        "top2_margin": margins,
        "text": model.text(ids),
    }


def read(name):
    return json.loads((HERE / f"{name}.golden.json").read_text())


def check(path, model):
    """Fails if the logits differ from the golden ones, or a step with a clear margin has another token."""
    golden, failed = read(path.stem), []
    expected = numpy.load(HERE / f"{path.stem}.logits.npy").astype(numpy.float64)
    found = model.logits(golden["cases"][0]["prompt_ids"])[: len(expected)]
    error = numpy.linalg.norm(found - expected) / numpy.linalg.norm(expected)
    print(f"{path.stem}: relative error {error:.1e}")
    for one in golden["cases"]:
        ids, first = one["prompt_ids"] + one["greedy_ids"], len(one["prompt_ids"]) - 1
        best = model.logits(ids)[first:-1].argmax(-1)
        steps = zip(best, one["greedy_ids"], one["top2_margin"])
        failed += [(one["prompt"], margin) for token, expected, margin in steps if token != expected and margin >= 0.005]
        failed += [(one["prompt"], "text")] if model.text(ids) != one["text"] else []
    sys.exit(f"wrong: {error}, {failed}" if failed or not error <= 1e-5 else 0)


def write(path, model):
    # The tokenizers of all models are equal.
    cases = [case(model, golden) for golden in read("tales-q8_0")["cases"]]
    golden = {
        "file": path.name,
        "blake3": blake3.blake3(path.read_bytes()).hexdigest(),
        "note": "float64 evaluation of the file's dequantised weights by tales.py; ids include the leading BOS",
        "cases": cases,
    }
    (HERE / f"{path.stem}.golden.json").write_text(json.dumps(golden, indent=1, ensure_ascii=False) + "\n")
    numpy.save(HERE / f"{path.stem}.logits.npy", model.logits(cases[0]["prompt_ids"])[:POSITIONS].astype(numpy.float32))


path = pathlib.Path(sys.argv[2])
{"check": check, "write": write}[sys.argv[1]](path, Model(path))
