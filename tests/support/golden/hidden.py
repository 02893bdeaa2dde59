"""Writes hidden.json beside this file: embeddings of tiny models, computed by `transformers` in float64.

    python3 hidden.py

Needs the packages torch and transformers. The rows of the last norm are pooled as the row of the last token and as the
mean of all rows, and divided by their length.
"""

import json, pathlib

import torch, transformers

FOLDER = pathlib.Path(__file__).parent
# An RMS norm, one with the weights less 1, and a layer norm.
MODELS = ["tiny-qwen3", "tiny-gemma2", "tiny-command-r"]

out = {}
for name in MODELS:
    model = transformers.AutoModel.from_pretrained(FOLDER / name, dtype=torch.float64, attn_implementation="eager")
    ids = json.loads((FOLDER / name / "ids.json").read_text())["ids"]
    with torch.no_grad():
        rows = model(torch.tensor([ids])).last_hidden_state[0]
    pooled = {"last": rows[-1], "mean": rows.mean(0)}
    out[name] = {key: [round(value, 8) for value in (row / row.norm()).tolist()] for key, row in pooled.items()}
(FOLDER / "hidden.json").write_text(json.dumps(out) + "\n")
