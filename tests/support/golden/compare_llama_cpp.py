"""Compares the logits of llama.cpp with those of `transformers` for the tiny models beside this file.

    python3 compare_llama_cpp.py                  every folder with model.gguf, ids.json and logits.npy
    python3 compare_llama_cpp.py tiny-qwen2 ...   some of them

Unpack the models before with `pack.py`. Needs the packages numpy, gguf, and llama-cpp-python or llama-cpp-py-sync (which contains a built library). Prints the
relative error of llama.cpp's logits for each model, with a cache in float32, against the reference in float64. A model that
llama.cpp refuses is listed with its message. Exits with 1 if the error of a model exceeds 1e-3.
"""

import json, pathlib, sys, tempfile

import gguf, numpy

HERE = pathlib.Path(__file__).parent
MOST = 1e-3
# llama.cpp has no window for these architectures: only positions within the first window are compared.
UNWINDOWED = ["tiny-mistral", "tiny-phi3", "tiny-starcoder2"]
HEAD = 32  # dimensions per head of the tiny Gemma models


def plain(path, to):
    """Writes a copy in float32, because llama.cpp rounds activations to the type of the weights. In the copy, every row of
    the embedding has a token, as llama.cpp demands."""
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(to, reader.get_field("general.architecture").contents())
    rows = next(int(tensor.shape[1]) for tensor in reader.tensors if tensor.name == "token_embd.weight")
    for name, field in reader.fields.items():
        # llama.cpp expects certain tokens in models whose names contain "phi3".
        if name.startswith("GGUF.") or name in ("general.architecture", "general.name"):
            continue
        value, sub_type = field.contents(), field.types[-1] if len(field.types) > 1 else None
        if name == "tokenizer.ggml.tokens":
            value = value + [f"<unused{i}>" for i in range(len(value), rows)]
        if name == "tokenizer.ggml.token_type":
            value = value + [gguf.TokenType.UNUSED] * (rows - len(value))
        writer.add_key_value(name, value, field.types[0], sub_type)
    # llama.cpp derives the factor of Gemma's scores from the head size. The copy multiplies queries by the rest.
    gemma = reader.get_field("gemma2.attention.scale") or reader.get_field("gemma3.attention.scale")
    norms = any("attn_q_norm" in tensor.name for tensor in reader.tensors)
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(numpy.float32)
        if gemma and tensor.name.endswith("attn_q_norm.weight" if norms else "attn_q.weight"):
            values = values * (gemma.contents() * HEAD**0.5)
        writer.add_tensor(tensor.name, values.astype(numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return to


def logits(path, ids):
    """The logits of all positions, one row per token."""
    try:
        import llama_cpp
    except ImportError:
        return logits_by_sync(path, ids)
    f32 = llama_cpp.GGML_TYPE_F32
    model = llama_cpp.Llama(
        str(path), n_ctx=len(ids), n_gpu_layers=0, logits_all=True, type_k=f32, type_v=f32, flash_attn=False, verbose=False,
    )
    model.eval(ids)
    return numpy.array(model.scores[: len(ids)])


def logits_by_sync(path, ids):
    import llama_cpp_py_sync
    from llama_cpp_py_sync._cffi_bindings import ffi

    model = llama_cpp_py_sync.Llama(str(path), n_ctx=512, n_gpu_layers=0, type_k="f32", type_v="f32", verbose=False)
    rows = []
    # One token per batch: the wrapper keeps only the logits of the last one.
    for position, token in enumerate(ids):
        model._eval_tokens([token], position)
        row = model._lib.llama_get_logits_ith(model._ctx, 0)
        rows.append(numpy.frombuffer(ffi.buffer(row, 4 * model.n_vocab), numpy.float32).copy())
    return numpy.stack(rows)


def main(names):
    folders = [HERE / name for name in names] or sorted(path.parent for path in HERE.glob("*/model.gguf"))
    failed = []
    for folder in folders:
        ids = json.loads((folder / "ids.json").read_text())["ids"]
        reference = numpy.load(folder / "logits.npy").astype(numpy.float64)
        try:
            with tempfile.TemporaryDirectory() as scratch:
                found = logits(plain(folder / "model.gguf", pathlib.Path(scratch) / "model.gguf"), ids)
        except Exception as refused:
            print(f"{folder.name}: refused: {refused}")
            continue
        if folder.name in UNWINDOWED:
            window = json.loads((folder / "config.json").read_text())["sliding_window"]
            found, reference = found[:window], reference[:window]
        error = numpy.linalg.norm(found - reference) / numpy.linalg.norm(reference)
        print(f"{folder.name}: relative error {error:.1e}")
        failed += [folder.name] if not error <= MOST else []
    sys.exit(f"more than {MOST}: {', '.join(failed)}" if failed else 0)


main(sys.argv[1:])
