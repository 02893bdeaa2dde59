"""Writes rope_lengths.json: what `transformers` computes for sequences on both sides of the length at which RoPE frequencies change. For each
model it has the logits of the last row of prompts of some lengths, and the greedy tokens that follow a prompt (`generate`, with its cache).

    pip install torch transformers safetensors
    python3 rope_lengths.py"""
import json, pathlib, shutil, tempfile
import numpy, torch, transformers

HERE = pathlib.Path(__file__).parent
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
CASES = [
    # name, checkpoint, changes of config.json, lengths of prompts, length of the prompt before generated tokens
    ("longrope", "tiny-phi3", {}, [12, 32, 33, 44], 26),
    ("dynamic", "tiny-llama-yarn", {"max_position_embeddings": 16, "rope_parameters": DYNAMIC}, [12, 17, 40], 10),
]


def load(name, changes):
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(HERE / name / "model.safetensors", folder)
        config = json.loads((HERE / name / "config.json").read_text()) | changes
        pathlib.Path(folder, "config.json").write_text(json.dumps(config))
        return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def main():
    out = {}
    for name, checkpoint, changes, lengths, prompt in CASES:
        ids = json.loads((HERE / checkpoint / "ids.json").read_text())["ids"]
        rows = {}
        for length in lengths:
            # A model keeps frequencies of a longer sequence, so each sequence gets a fresh one.
            with torch.no_grad():
                row = load(checkpoint, changes)(torch.tensor([ids[:length]]), use_cache=False).logits[0, -1]
            rows[length] = [float(f"{x:.7g}") for x in row.double().numpy()]
        new = load(checkpoint, changes).generate(
            torch.tensor([ids[:prompt]]), max_new_tokens=16, do_sample=False, eos_token_id=None, pad_token_id=0,
            output_logits=True, return_dict_in_generate=True)
        greedy = new.sequences[0, prompt:].tolist()
        top = [torch.topk(step[0], 2).values for step in new.logits]
        print(name, greedy, "least margin", min(float(a - b) for a, b in top))
        out[name] = {"checkpoint": checkpoint, "changes": changes, "ids": ids, "rows": rows, "prompt": prompt, "greedy": greedy}
    (HERE / "rope_lengths.json").write_text(json.dumps(out) + "\n")


main()
