"""Writes pre_tokenizers.json.zst beside this file: digests of what `transformers` makes of texts, with the tokenizer settings
of released models.

    python3 pre_tokenizers.py

Needs the package transformers. Each case has the normalizer, pre-tokenizer, post-processor and decoder of a model's
tokenizer.json, and special tokens like those of the model. Vocabularies are small ones: a byte-level one that is trained
here without any splitting, so that its tokens cross every place where a pre-tokenizer may split; and that of tiny-hf.
"""

import json, os, pathlib, subprocess, tempfile

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers
import transformers

HERE = pathlib.Path(__file__).parent
SPM = json.loads((HERE / "../../../tests/support/golden/tiny-hf/tokenizer.json").read_text())["model"]
OLD_TEXTS = json.loads(subprocess.check_output(["zstd", "-dcq", HERE / "byte-level.json.zst"]))["texts"]
NEW_TEXTS = [
    # Scripts.
    "Ελληνικά: ΟΔΥΣΣΕΥΣ ὀδυσσεύς", "Привет, мир! Ёлка — ёлка.", "שָׁלוֹם עוֹלָם", "مرحبا بالعالم، ١٢٣٤", "नमस्ते दुनिया १२३४", "বাংলা ভাষা ৪৫৬",
    "தமிழ் மொழி", "తెలుగు", "ภาษาไทยไม่มีช่องว่าง ๑๒๓", "ລາວ ၁၂၃ မြန်မာ", "ខ្មែរ", "ქართული ენა", "Հայերեն", "አማርኛ ፩፪፫", "ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ", "ᚠᛇᚻ᛫ᛒᛦᚦ",
    "日本語のテキスト、カタカナ・ひらがな。", "漢字かな交じり文123と、ｶﾀｶﾅ", "𠀀𠀁 㐀㐁 豈更", "한국어 띄어쓰기 ㄱㄴㄷ", "ᄒ\u1161\u11ab글", "ꦗꦮ ꧑꧒", "Tiếng Việt: được không?",
    "Zażółć gęślą jaźń", "Ǆungla ǅep ǆak ʰˢ", "e\u0301e\u0301 n\u0303 A\u030a \u1100\u1161", "Ω K Å ﷺ ﬃ ℌ", "İstanbul ıI ẞß", "ЁЖ\u0306й", "ａｂｃ　ＤＥＦ　１２３",
    # Whitespace and line ends.
    "\n\n\n\n", "\r", "\r\n", "\r\n\r\n\r\n", "a\r\nb\rc\n\rd", "  \n  \n\n  ", "\t", "\t\t\t\ta", " \t \t ", "a \u2009\u200a b", "\u3000\u3000。\u3000", "\x0b\x0c\x1c\x85a", "end \n", "end\t\n\t",
    "a" + " " * 31 + "b" + " " * 17 + "\n" + " " * 8, "line one  \nline two\\\n  three", "x\n\n\n\ny  \n\n z", "\u2028\u2029\n", " \u00a0 \u00a0",
    # Emoji, joiners, selectors, rare and unassigned code points.
    "👨‍👩‍👧‍👦👍🏽🏳️‍🌈❤️‍🔥", "☺️ ✌🏿 1️⃣ #️⃣", "🇺🇳🇪🇺🇯", "\u200d\u200c\u200b\ufeff", "\ufeff\ufeffBOM", "\ufffd\ufffe\uffff", "\U0010ffff\U000e0041\U000f0000", "\ue000\uf8ff", "\u0378\u0379", "𝒳𝔘𝟛𝟜 ①②Ⅳ½²", "\u202eabc\u202c", "\x00\x01\x1b[31m\x7f",
    "a\u0300\u0301\u0302\u0303\u0304b", "\u0301start", "🏴󠁧󠁢󠁥󠁮󠁧󠁿",
    # Code.
    "fn main() {\n    let x: Vec<u8> = vec![0; 1024];\n    println!(\"{x:?}\");\n}\n", "if (a&&b||!c) { return a->b[i++] ?: 0x1F; } // ok", "SELECT * FROM t WHERE id IN (1,22,333);--x", "<div class=\"a b\">&amp;</div>\n",
    "#!/bin/sh\nfor f in *.txt; do\techo \"$f\"; done", "camelCaseXMLHttpRequest2_snake_case__init__", "a=b/c\\d//e/*f*/", "{\"k\": [1, -2.5e10, null]}\n\n", "```python\nprint('it''s')\n```", "e.g. i.e., U.S.A. 3.14.15 v1.2.3-rc4", "$x->{'y'} .= \"z\"; @_ %h",
    # Digits and contractions.
    "0", "00 000 0000 00000", "1,234,567.89", "123456789012345678901234567890", "a1b22c333d4444", "2024-01-31T12:34:56Z", "٠١٢٣٤٥٦٧٨٩ ०१२३४५ ०१", "x² y₃ ⅔ Ⅻ ㊿", "12 345 6789",
    "I'm you're he's we'd they'll I've can't", "I'M YOU'RE HE'S WE'D THEY'LL I'VE CAN'T", "'s 't're've'm'll'd 'S'T'RE", "it’s don’t ’tis", "rock'n'roll o'clock 'tis 'twas", "'sauce 'dog 'lleno",
    # Punctuation.
    "...!!!???", "—–-‐‑ «a» „b“ ‹c› 「d」", "a,b;c:d.e!f?g", "(a)[b]{c}<d>", "+-*/=<>^~|`$", "!a !b\n?c\n\n", "，。！？；：“”‘’（）", "..\n...\n\n.", "\"quoted\" 'single' `tick`", "a…b⋯c · • § ¶ † ‡ № ™ © € £ ¥ ₿",
    # Special tokens.
    "<s>a</s> b <s> </s>", "<|end|> \n a<|end|>b  <|end|>", "<|im_start|>user\nHi<|im_end|>\n", "[gMASK]<sop><|user|>\nx", "<bos>a<eos>", "<tool_call>\n{}\n</tool_call>", "a  <table>  b", "<|im_start|", "<<|im_end|>>", "▁a ▁▁b▁", "<0x41><0xE2>", "<unk>",
]
TEXTS = OLD_TEXTS + NEW_TEXTS

LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace("{1,3}", "")
QWEN35 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def cased(contractions, digits):
    one = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{one}{UPPER}*{LOWER}+{contractions}|{one}{UPPER}+{LOWER}*{contractions}|{digits}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


DEEPSEEK3 = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CASED_LETTERS = (
    r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\x{1F7D}ᾀ-ᾴᾶ-ᾼ\x{1FBE}ῂ-ῄῆ-ῌῐ-\x{1FD3}ῖ-\x{1FDB}ῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\x{2126}ℨ\x{212A}-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+"
)


def split(regex, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": behavior, "invert": invert}


def byte_level(use_regex=False):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def sequence(*parts):
    return {"type": "Sequence", "pretokenizers": list(parts)}


DIGITS = {"type": "Digits", "individual_digits": True}
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
BYTES = [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
LLAMA2 = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, REPLACE]}
CHAT = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", ("<tool_call>", "shown"), ("</tool_call>", "shown")]

# Name; names of the pre-tokenizer in GGUF files; pre-tokenizer; tokens, each with flags; and the rest of the settings.
# `before` lists the tokens that a text begins with.
CASES = [
    ("llama-3, smollm3, bitnet-b1.58-2B-4T", ["llama-bpe"], sequence(split(LLAMA3), byte_level()), ["<bos>", "<eos>", "<|end|>"], dict(before=["<bos>"], ignore_merges=True)),
    ("qwen2, qwen3", ["qwen2"], sequence(split(QWEN2), byte_level()), CHAT, dict(normalizer={"type": "NFC"})),
    ("qwen3.5", ["qwen35"], sequence(split(QWEN35), byte_level()), CHAT, dict(normalizer={"type": "NFC"})),
    ("starcoder2, granite-3, smollm2", ["starcoder", "refact", "smollm"], sequence(DIGITS, byte_level(True)), CHAT, {}),
    ("command-r", ["command-r"], sequence(DIGITS, byte_level(True)), ["<bos>", "<|end|>"], dict(before=["<bos>"], normalizer={"type": "NFC"})),
    ("olmo-2, granite-4", ["dbrx"], sequence(split(LLAMA3), byte_level()), [*CHAT, ("|||IP_ADDRESS|||", "shown"), ("a…b", "shown normalized")], {}),
    ("glm-4", ["glm4", "chatglm-bpe"], sequence(split(LLAMA3), byte_level()), ["[gMASK]", "<sop>", "<|user|>"], dict(before=["[gMASK]", "<sop>"])),
    ("mistral-nemo", ["tekken"], sequence(split(cased("", r"\p{N}")), byte_level()), ["<s>", "</s>"], dict(before=["<s>"], ignore_merges=True)),
    ("phi-4-mini", ["gpt-4o"], sequence(split(cased("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", r"\p{N}{1,3}")), byte_level()), ["<|endoftext|>", ("<|end|>", "rstrip")], {}),
    ("deepseek-llm", ["deepseek-llm"], sequence(split("[\r\n]"), split(CASED_LETTERS), split(r"\s?[!-/:-~！-／：-～‘-‟　-。]+"), split(r"\s+$"), split("[一-龥ࠀ-一가-퟿]+"), DIGITS, byte_level()), ["<s>", "</s>"], dict(before=["<s>"])),
    ("deepseek-coder", ["deepseek-coder"], sequence(split("[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"), split("[一-龥ࠀ-一가-퟿]+"), DIGITS, byte_level()), ["<s>", "</s>"], dict(before=["<s>"])),
    ("deepseek-v3", ["deepseek-v3"], sequence(split(r"\p{N}{1,3}"), split("[一-龥぀-ゟ゠-ヿ]+"), split(DEEPSEEK3), byte_level()), ["<s>", ("<tool_call>", "shown normalized")], dict(before=["<s>"])),
    ("gpt-2", ["gpt-2", "olmo"], byte_level(True), ["<|endoftext|>"], {}),
    ("llama-2", [], None, [], dict(spm=True, before=["<s>"], normalizer=LLAMA2, decoder=[*BYTES, STRIP])),
    ("phi-3", [], None, [("<|end|>", "rstrip"), "<|user|>", "<|endoftext|>"], dict(spm=True, normalizer=LLAMA2, decoder=[*BYTES, STRIP])),
    ("mistral-v0.3", [], {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}, ["[INST]"], dict(spm=True, before=["<s>"], decoder=[*BYTES, STRIP])),
    (
        "gemma-2, gemma-3", [], {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False},
        ["<bos>", "<eos>", *((text, "shown") for text in ("\n\n", "\n\n\n", "▁▁", "▁▁▁▁", "\t\t", "<table>"))],
        dict(spm=True, before=["<bos>"], normalizer=REPLACE, decoder=BYTES),
    ),
]


def train():
    """The letters of all bytes, and merges that cross the limits of words."""
    whole = tokenizers.Tokenizer(models.BPE())
    whole.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=256 + 500, initial_alphabet=letters, max_token_length=6, show_progress=False)
    whole.train_from_iterator(TEXTS * 2, trainer)
    # A special token must not be a word of the vocabulary, too.
    special = {entry if isinstance(entry, str) else entry[0] for case in CASES for entry in case[3]} | {"<s>", "</s>"}
    known, merges = set(letters), []
    for left, right in json.loads(whole.to_str())["model"]["merges"]:
        if left in known and right in known and left + right not in special:
            known.add(left + right)
            merges.append((left, right))
    return letters, merges


LETTERS, MERGES = train()
WHOLE = ["ĠYOU", "McDonald", "123456"]  # tokens that no merges make
TOKENS = list(dict.fromkeys([*LETTERS, *("".join(merge) for merge in MERGES), *WHOLE]))


def document(case):
    """The tokenizer.json of a case, with a model called "byte-level" or "tiny-hf" instead of its vocabulary."""
    name, pre, cuts, added, more = case
    count = len(SPM["vocab"]) if more.get("spm") else len(TOKENS)
    own = [(SPM["vocab"][text], text, "") for text in ("<unk>", "<s>", "</s>")] if more.get("spm") else []
    own += [(count + i, *((entry, "") if isinstance(entry, str) else entry)) for i, entry in enumerate(added)]
    ids = {text: id for id, text, _ in own}
    parts = [{"SpecialToken": {"id": text, "type_id": 0}} for text in more.get("before", [])]
    template = {
        "type": "TemplateProcessing", "single": [*parts, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {t: {"id": t, "ids": [ids[t]], "tokens": [t]} for t in more.get("before", [])},
    }
    decoder = {"type": "Sequence", "decoders": more["decoder"]} if "decoder" in more else byte_level(True)
    return {
        "added_tokens": [
            {
                "id": id, "content": text, "single_word": False, "lstrip": False, "rstrip": "rstrip" in flags,
                "normalized": "normalized" in flags, "special": "shown" not in flags,
            }
            for id, text, flags in own
        ],
        "normalizer": more.get("normalizer"), "pre_tokenizer": cuts, "post_processor": template, "decoder": decoder,
        "model": {"vocabulary": "tiny-hf" if more.get("spm") else "byte-level", "ignore_merges": more.get("ignore_merges", False)},
    }


def vocabulary(model):
    if model["vocabulary"] == "tiny-hf":
        return SPM
    vocab = {token: i for i, token in enumerate(TOKENS)}
    return {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": "",
        "fuse_unk": False, "byte_fallback": False, "ignore_merges": model["ignore_merges"], "vocab": vocab, "merges": MERGES,
    }


def digest(*parts):
    """16 bits of the 64-bit FNV-1a hash."""
    value = 0xCBF29CE484222325
    for byte in "|".join(parts).encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return f"{value & 0xFFFF:04x}"


def run(case):
    document_ = document(case)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "tokenizer.json")
        pathlib.Path(path).write_text(json.dumps({"version": "1.0", **document_, "model": vocabulary(document_["model"])}))
        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=path)
    assert (tokenizer._tokenizer.to_str().count('"Metaspace"') > 0) == ("Metaspace" in json.dumps(document_))
    show = lambda ids: ",".join(map(str, ids))
    all_digests, plain_digests = [], []
    for text in TEXTS:
        ids = tokenizer.encode(text)
        text_of = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        all_digests.append(digest(show(ids), text_of))
        tokenizer._tokenizer.encode_special_tokens = True
        ids = tokenizer._tokenizer.encode(text, add_special_tokens=False).ids
        tokenizer._tokenizer.encode_special_tokens = False
        text_of = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        plain_digests.append(digest(show(ids), text_of))
    del document_["post_processor"]["pair"]
    for token in document_["added_tokens"]:
        for flag in [flag for flag, value in token.items() if value is False]:
            del token[flag]
    return {"name": case[0], "pre": case[1], "document": document_, "all": "".join(all_digests), "plain": "".join(plain_digests)}


def main():
    cases = [run(case) for case in CASES]
    kept = {
        "letters": "".join(LETTERS), "merges": [" ".join(merge) for merge in MERGES], "whole": WHOLE,
        "texts": NEW_TEXTS, "cases": cases,
    }
    lines = [f"{json.dumps(key)}:{json.dumps(value, ensure_ascii=False, separators=(',', ':'))}" for key, value in kept.items()]
    text = "{" + ",\n".join(lines) + "}\n"
    subprocess.run(["zstd", "-q", "-19", "-f", "-o", HERE / "pre_tokenizers.json.zst"], input=text, text=True, check=True)


main()
