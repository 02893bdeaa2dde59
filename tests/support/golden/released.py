"""Writes the golden data of released models, which `cargo xtask real-models` compares with Ragtag.

    python3 released.py LIBRARIES FOLDER NAME ...

LIBRARIES is the folder of llama.cpp's libraries, as npm's `@node-llama-cpp/linux-x64` 3.21.1 contains them in
`bins/linux-x64`. FOLDER is the folder of `.ci/install-models`. A NAME is `smollm2`, `gemma3`, `tokens` or `templates`. Needs
the packages numpy, gguf, jinja2, tokenizers, blake3, torch, transformers and accelerate. The truth for a model is
`transformers` on the dequantised weights, in float64. llama.cpp on these weights in F32 is no truth for Gemma: its logits differ
by up to 7e-3.
"""

import ctypes, datetime, json, pathlib, re, struct, sys

import blake3, gguf, jinja2, jinja2.ext, jinja2.sandbox, numpy, tokenizers

HERE = pathlib.Path(__file__).parent / "released"
MODELS = {"smollm2": "SmolLM2-135M-Instruct.Q4_1.gguf", "gemma3": "gemma-3-270m-q4_k_m.gguf"}
LONG, GREEDY, BEST, CONTEXT, PIECE, TEXT_BYTES = 1500, 24, 16, 2048, 256, 8192
MIN_MARGIN = 0.01  # between the two best logits


class Params(ctypes.Structure):
    """Parameters by value. The library exports no layout; these offsets are of version 0.4.0."""

    _fields_ = [("bytes", ctypes.c_uint8 * 256)]

    def set(self, offset, value, form="i"):
        struct.pack_into(f"={form}", self.bytes, offset, value)


def library(folder):
    folder = pathlib.Path(folder)
    base = ctypes.CDLL(str(folder / "libggml-base.so"), ctypes.RTLD_GLOBAL)
    ggml = ctypes.CDLL(str(next(folder.glob("libggml.v*.so"))), ctypes.RTLD_GLOBAL)
    llama = ctypes.CDLL(str(next(folder.glob("libllama.v*.so"))), ctypes.RTLD_GLOBAL)
    ggml.ggml_backend_load_all_from_path(str(folder).encode())
    for name in "model_default_params", "context_default_params":
        getattr(llama, f"llama_{name}").restype = Params
    for name in "model_load_from_file", "init_from_model", "model_get_vocab", "get_memory":
        getattr(llama, f"llama_{name}").restype = ctypes.c_void_p
    llama.llama_version.restype = ctypes.c_char_p
    assert llama.llama_version().startswith(b"0.4.0"), llama.llama_version()
    llama.llama_get_logits_ith.restype = ctypes.POINTER(ctypes.c_float)
    quiet = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)
    llama.quiet, llama.base = quiet, base
    llama.llama_log_set(quiet, None)
    llama.llama_backend_init()
    return llama


class Batch(ctypes.Structure):
    _fields_ = [("n", ctypes.c_int32)] + [(name, ctypes.c_void_p) for name in ("token", "embd", "pos", "counts", "sequences", "logits")]


class Model:
    def __init__(self, llama, path, vocabulary_only=False):
        self.llama = llama
        params = llama.llama_model_default_params()
        params.set(72, vocabulary_only, "?")
        self.model = ctypes.c_void_p(llama.llama_model_load_from_file(str(path).encode(), params))
        assert self.model.value, f"llama.cpp refuses {path}"
        self.vocabulary = ctypes.c_void_p(llama.llama_model_get_vocab(self.model))
        self.size = llama.llama_vocab_n_tokens(self.vocabulary)
        if vocabulary_only:
            return
        params = llama.llama_context_default_params()
        for offset, value in (0, CONTEXT), (4, CONTEXT), (24, CONTEXT), (28, 1), (32, 1):
            params.set(offset, value)
        self.context = ctypes.c_void_p(llama.llama_init_from_model(self.model, params))
        assert self.context.value, "no context"

    def close(self):
        self.llama.llama_free(self.context)
        self.llama.llama_model_free(self.model)

    def tokens(self, text, special=True, parse=False):
        raw = text.encode()
        ids = (ctypes.c_int32 * (len(raw) + 16))()
        n = self.llama.llama_tokenize(self.vocabulary, raw, len(raw), ids, len(ids), special, parse)
        assert n >= 0
        return list(ids[:n])

    def text(self, ids):
        piece, text = ctypes.create_string_buffer(256), b""
        for i in ids:
            count = self.llama.llama_token_to_piece(self.vocabulary, i, piece, len(piece), 0, True)
            text += piece.raw[:count]
        return text.decode()

    def logits(self, ids):
        """The logits of all positions."""
        self.llama.llama_memory_clear(ctypes.c_void_p(self.llama.llama_get_memory(self.context)), True)
        n = len(ids)
        one = (ctypes.c_int32 * 1)(0)
        parts = [
            (ctypes.c_int32 * n)(*ids),
            (ctypes.c_int32 * n)(*range(n)),
            (ctypes.c_int32 * n)(*[1] * n),
            (ctypes.c_void_p * n)(*[ctypes.addressof(one)] * n),
            (ctypes.c_int8 * n)(*[1] * n),
        ]
        token, position, counts, sequences, wanted = map(ctypes.addressof, parts)
        assert self.llama.llama_decode(self.context, Batch(n, token, None, position, counts, sequences, wanted)) == 0
        rows = [self.llama.llama_get_logits_ith(self.context, i) for i in range(n)]
        return numpy.stack([numpy.ctypeslib.as_array(row, (self.size,)).copy() for row in rows])


class Truth:
    """`transformers` on the dequantised weights, in float64."""

    def __init__(self, path):
        import torch, transformers

        self.torch, load = torch, transformers.AutoModelForCausalLM.from_pretrained
        self.model = load(path.parent, gguf_file=path.name, dtype=torch.float32).double().eval()

    def logits(self, ids, start=0):
        """The logits of all positions. The positions before `start` are in the cache."""
        with self.torch.no_grad():
            output = self.model(self.torch.tensor([ids]), past_key_values=self.past if start else None, use_cache=True)
        self.past = output.past_key_values
        return output.logits[0].numpy()


def log_probabilities(logits):
    """Natural logarithms of the softmax, in float64, one row at a time to save memory."""
    for row in logits:
        row = row.astype(numpy.float64) - row.max()
        yield row - numpy.log(numpy.exp(row).sum())


def case(model, name, ids):
    """Greedy continuation of a prompt, the best token of each position, and the best tokens of some positions."""
    print(name, len(ids), flush=True)
    parts, greedy = [model.logits(ids)], []
    while len(greedy) < GREEDY:
        greedy.append(int(parts[-1][-1].argmax()))
        parts.append(model.logits(greedy[-1:], len(ids) + len(greedy) - 1))
    logits = numpy.concatenate(parts)
    pairs = numpy.array([numpy.sort(numpy.partition(row, -2)[-2:]) for row in logits])
    clear = pairs[:, 1] - pairs[:, 0] >= MIN_MARGIN
    positions = numpy.linspace(0, len(logits) - 1, 10 if name == "long" else 6).astype(int)
    top = []
    for position, row in zip(positions, log_probabilities(logits[positions])):
        best = numpy.argsort(-row, kind="stable")[:BEST]
        top.append({"position": int(position), "ids": best.tolist(), "logs": [round(float(row[i]), 6) for i in best]})
    best = [int(i) if c else -1 for i, c in zip(logits.argmax(-1), clear)]
    return {"name": name, "ids": ids, "greedy": greedy, "best": best, "top": top}, logits


def perplexity(model, ids, first):
    """The perplexity of pieces of a text, whose first token becomes `first` if it is not None."""
    losses = []
    for start in range(0, len(ids) - PIECE + 1, PIECE):
        piece = ids[start : start + PIECE]
        piece[0] = piece[0] if first is None else first
        rows = log_probabilities(model.logits(piece)[PIECE // 2 : -1])
        losses += [-row[token] for row, token in zip(rows, piece[PIECE // 2 + 1 :])]
    return round(float(numpy.exp(numpy.mean(losses))), 4)


def write_model(llama, folder, name):
    path = folder / MODELS[name]
    texts = json.loads((HERE / "prompts.json").read_text())
    held = (HERE.parent / "held.txt").read_bytes()[:TEXT_BYTES].decode()
    default, truth = Model(llama, path), Truth(path)
    ids = default.tokens(held)
    first = ids[0] if llama.llama_vocab_get_add_bos(default.vocabulary) else None
    prompts = {key: default.tokens(text) for key, text in texts.items()} | {"long": ids[:LONG]}
    exact, found, cases = perplexity(truth, ids, first), [], []
    for key, prompt in prompts.items():
        golden, logits = case(truth, key, prompt)
        rows = log_probabilities(default.logits(golden["ids"] + golden["greedy"]))
        found.append([(float((numpy.exp(p) * (p - q)).sum()), p.argmax() == q.argmax()) for p, q in zip(log_probabilities(logits), rows)])
        golden["kl_of_llama_cpp"] = round(float(numpy.mean([kl for kl, _ in found[-1]])), 7)
        cases.append(golden)
    text = default.text(cases[0]["greedy"])
    kls, equal = zip(*sum(found, []))
    golden = {
        "file": MODELS[name],
        "text": texts["english"] + text,
        "perplexity": exact,
        "cases": cases,
    }
    print(name, len(kls), "positions: llama.cpp's KL", numpy.mean(kls), "same first token", numpy.mean(equal))
    print("perplexity", exact, "llama.cpp's", perplexity(default, ids, first))
    dump(golden, HERE / f"{name}.json")


def write_tokens(llama, folder):
    """Tokens of the strings for each vocabulary: as plain text, with the special tokens around, and with control tokens."""
    strings, golden = json.loads((HERE / "strings.json").read_text()), {}
    for path in sorted((folder / "vocabularies").glob("*.gguf")):
        model = Model(llama, path, vocabulary_only=True)
        # llama.cpp replaces a character by the first of its canonical decomposition, so it loses letters of Korean.
        pieces = word_pieces(path) if path.stem.endswith("bert-bge") else None
        plain = lambda text: pieces(text) if pieces and "[CLS]" not in text else model.tokens(text, special=False)
        golden[path.stem.removeprefix("ggml-vocab-")] = {
            "plain": [plain(text) for text in strings],
            "special": model.tokens("Hello, world!"),
            "control": [model.tokens(text, special=False, parse=True) for text in strings if text.startswith("<")],
        }
    dump(golden, HERE / "tokens.json")


def word_pieces(path):
    """A function from texts to tokens by `tokenizers`, for a vocabulary of BERT. GGUF marks the starts of words instead of the rest."""
    words = gguf.GGUFReader(path).get_field("tokenizer.ggml.tokens").contents()
    names = [word[1:] if word.startswith("▁") else word if re.fullmatch(r"\[.*\]", word) else f"##{word}" for word in words]
    tokenizer = tokenizers.BertWordPieceTokenizer({name: i for i, name in enumerate(names)}, lowercase=True)
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def write_templates(folder):
    """Digests of rendered conversations for each template, or null where it refuses. As `transformers` renders them."""
    def refuse(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    now = datetime.datetime(2025, 3, 9, 8, 5, 7)
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    # `safe` makes Jinja escape the texts that are added to its result, even in templates that escape nothing. Neither Ragtag
    # nor llama.cpp does that.
    environment.filters |= {"tojson": tojson, "safe": str}
    environment.globals.update(raise_exception=refuse, strftime_now=now.strftime)
    read = lambda name: json.loads((HERE / f"{name}.json").read_text())
    plain, tools = {"messages": read("plain-messages")}, {"messages": read("tools-messages"), "tools": read("tools-tools")}
    golden = {}
    for path in sorted((folder / "templates").glob("*.jinja")):
        template, digests = environment.from_string(path.read_text()), {}
        for name, conversation in ("plain", plain), ("tools", tools):
            try:
                text = template.render({"tools": None, "documents": None, "add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>"} | conversation)
                (folder / "rendered").mkdir(exist_ok=True)
                (folder / "rendered" / f"{path.stem}.{name}").write_bytes(text.encode())
                digests[name] = blake3.blake3(text.encode()).hexdigest()[:32]
            except Exception as error:
                print(path.stem, name, type(error).__name__, error)
                digests[name] = None
        golden[path.stem] = digests
    (HERE / "templates.json").write_text(json.dumps(golden, indent=1) + "\n")


class Generation(jinja2.ext.Extension):
    """`{% generation %}`, which `transformers` renders as its content."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


def dump(value, path):
    """Writes JSON with one line per list of numbers."""
    text = json.dumps(value, ensure_ascii=False, indent=0)
    text = re.sub(r"\[\s*(-?[\d.][^\[\]{}\"]*?)\s*\]", lambda m: "[" + re.sub(r"\s+", "", m[1]) + "]", text)
    path.write_text(text + "\n")


if __name__ == "__main__":
    llama, folder = library(sys.argv[1]), pathlib.Path(sys.argv[2])
    others = {"tokens": lambda: write_tokens(llama, folder), "templates": lambda: write_templates(folder)}
    for name in sys.argv[3:]:
        others.get(name, lambda: write_model(llama, folder, name))()
