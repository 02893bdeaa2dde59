#!/usr/bin/env python3
"""Compares the prompts of ragtag-chat with those of the Python library transformers.

    python3 -m venv venv && venv/bin/pip install transformers jinja2
    cargo build -p ragtag-chat --example render
    venv/bin/python chat/tests/compare.py FOLDER                compares every FOLDER/*.jinja
    venv/bin/python chat/tests/compare.py chat/tests/templates --write
                                                                also writes chat/tests/expected.json.zst

Each template renders each conversation of chat/tests/conversations.json twice, with and without the prompt for
the assistant's next message. A prompt must be equal byte for byte. If the template calls raise_exception, its
message must be equal. If it fails in another way, it must fail here too.
"""

import argparse
import datetime
import json
import os
import subprocess
import sys
from pathlib import Path

os.environ["TRANSFORMERS_VERBOSITY"] = "error"

import jinja2  # noqa: E402
import transformers.utils.chat_template_utils as chat_template_utils  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402
from tokenizers.models import BPE  # noqa: E402
from transformers import PreTrainedTokenizerFast  # noqa: E402

HERE = Path(__file__).resolve().parent
RENDER = HERE.parent.parent / "target/debug/examples/render"
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
NOW = "2025-03-09T08:05:07"


class FixedTime(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromisoformat(NOW)


def render_with_transformers(tokenizer, template, conversation, add_generation_prompt):
    """Returns the prompt, the message of raise_exception, or another error."""
    try:
        prompt = tokenizer.apply_chat_template(
            conversation["messages"],
            tools=conversation.get("tools"),
            documents=conversation.get("documents"),
            chat_template=template,
            add_generation_prompt=add_generation_prompt,
            tokenize=False,
            **conversation.get("variables", {}),
        )
        return {"prompt": prompt}
    except jinja2.exceptions.TemplateError as error:
        # Only raise_exception raises this class itself.
        kind = "raised" if type(error) is jinja2.exceptions.TemplateError else "error"
        return {kind: str(error)}
    except Exception as error:  # noqa: BLE001 - a template can fail in any way
        return {"error": f"{type(error).__name__}: {error}"}


def render_with_ragtag(cases):
    lines = []
    for template, conversation, add_generation_prompt in cases:
        case = {
            "template": template,
            "messages": conversation["messages"],
            "tools": conversation.get("tools"),
            "documents": conversation.get("documents"),
            "add_generation_prompt": add_generation_prompt,
            "variables": {**TOKENS, **conversation.get("variables", {})},
            "now": NOW,
        }
        lines.append(json.dumps(case))
    done = subprocess.run([RENDER], input="\n".join(lines) + "\n", capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.split("\n") if line]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    chat_template_utils.datetime = FixedTime
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(BPE()), **TOKENS)
    conversations = json.loads((HERE / "conversations.json").read_text())
    cases, names = [], []
    for path in sorted(arguments.folder.glob("*.jinja")):
        template = path.read_bytes().decode()
        for conversation in conversations:
            for prompt in (False, True):
                cases.append((template, conversation, prompt))
                names.append((path.stem, conversation["name"], prompt))
    expected = [render_with_transformers(tokenizer, *case) for case in cases]
    found = render_with_ragtag(cases)
    counts = {"prompts": 0, "messages": 0, "errors": 0, "different": 0}
    for name, want, got in zip(names, expected, found, strict=True):
        if "error" in want and "error" in got:
            counts["errors"] += 1
        elif want == got:
            counts["prompts" if "prompt" in want else "messages"] += 1
        else:
            counts["different"] += 1
            print(f"DIFFERENT {name}\n  transformers {want}\n  ragtag       {got}")
    templates = len({name[0] for name in names})
    print(f"{templates} templates, {len(cases)} renderings: {counts}")
    if arguments.write:
        grouped = {}
        for (template, _, _), want in zip(names, expected, strict=True):
            # Messages of other errors differ.
            grouped.setdefault(template, []).append(want if "error" not in want else {"error": True})
        text = json.dumps(grouped, ensure_ascii=False, indent=0)
        subprocess.run(["zstd", "-q", "-19", "-f", "-o", HERE / "expected.json.zst"], input=text + "\n", text=True, check=True)
    sys.exit(1 if counts["different"] else 0)


if __name__ == "__main__":
    main()
