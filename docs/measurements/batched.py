"""Measures decode of many sequences, beside llama.cpp in the same run.

    python3 batched.py --models DIR --out batched.jsonl [--ragtag ragtag] [--llama llama-batched-bench]
                       [--types f16,q8_0,q4_0,q4_k,mxfp4] [--device cuda:0]

DIR holds 7b-f16.gguf and so on, as `cargo xtask synth-model --preset 7b --type f16 -o 7b-f16.gguf` writes them. Each
line of the result is one measurement in tokens per second of all sequences together. Measurements that the file
already has are skipped, so a run that was cut short goes on where it ended. Prints the table of the file.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

WIDTHS = [1, 8, 16, 32, 64, 128, 256]
TOKENS = 64


def ragtag(options, model, width):
    command = [options.ragtag, "bench", model, "--device", options.device, "-p", "0", "-n", str(TOKENS), "-r", "3"]
    command += ["--parallel", str(width), "--json"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if run.returncode:
        return {"error": run.stderr[-300:]}
    [measured] = json.loads(run.stdout)["measurements"]
    return {key: measured[key] for key in ("median_tokens_per_s", "deviation_tokens_per_s")}


def llama(options, model, width):
    command = [options.llama, "-m", model, "-ngl", "99", "-npp", "1", "-ntg", str(TOKENS), "-npl", str(width)]
    command += ["-c", str((TOKENS + 1) * width), "--output-format", "jsonl"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=600)
    lines = [line for line in run.stdout.splitlines() if line.startswith("{")]
    if run.returncode or not lines:
        return {"error": run.stderr[-300:]}
    return {"median_tokens_per_s": json.loads(lines[-1])["speed_tg"]}


def table(rows):
    rates = {(r["engine"], r["type"], r["sequences"]): r.get("median_tokens_per_s") for r in rows}
    for engine, kind in sorted({key[:2] for key in rates}):
        of = [rates.get((engine, kind, width)) for width in WIDTHS]
        print(f"| {engine} {kind} | " + " | ".join("" if r is None else f"{r:,.0f}" for r in of) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--ragtag", default="ragtag")
    parser.add_argument("--llama")
    parser.add_argument("--types", default="f16,q8_0,q4_0,q4_k,mxfp4")
    parser.add_argument("--device", default="cuda:0")
    options = parser.parse_args()
    rows = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    key = lambda r: (r["engine"], r["type"], r["sequences"])
    have = {key(r) for r in rows if "error" not in r}
    engines = {"ragtag": ragtag} | ({"llama.cpp": llama} if options.llama else {})
    for kind in options.types.split(","):
        model = str(options.models / f"7b-{kind}.gguf")
        for width in WIDTHS:
            for name, measure in engines.items():
                row = {"engine": name, "type": kind, "sequences": width}
                if key(row) in have:
                    continue
                row |= measure(options, model, width)
                with options.out.open("a") as out:
                    out.write(json.dumps(row) + "\n")
                rows.append(row)
                print(json.dumps(row), file=sys.stderr)
    table(rows)


if __name__ == "__main__":
    main()
