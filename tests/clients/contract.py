"""Checks that `ragtag serve` keeps its contracts: the OpenAPI document, and the JSON schemas of requests.

python contract.py RAGTAG SMOLLM2.gguf SEED  (packages: openai, schemathesis, jsonschema_rs)
"""

import concurrent.futures
import contextlib
import json
import random
import signal
import subprocess
import sys
import tempfile

import jsonschema_rs
import openai

RAGTAG, MODEL, SEED = sys.argv[1], sys.argv[2], int(sys.argv[3])
# Positive data may name another model, and negative data may be harmless, so these statuses say nothing.
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
SCHEMAS = 100
WORDS = ["name", "city", "size", "über", "a b", "tags", "x-1", 'quo"te']


@contextlib.contextmanager
def serving(*arguments):
    """Starts a server. Yields its URL."""
    command = [RAGTAG, "serve", *arguments, "--port", "0", "--device", "cpu", "--quiet"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield server.stdout.readline().removeprefix("listening on ").strip()
    finally:
        server.send_signal(signal.SIGTERM)
        code = server.wait(60)
    assert code == 0, code


def check_document():
    """Sends random requests, and compares the answers with the OpenAPI document."""
    # The tool writes its database of examples to the current folder.
    with serving("--deadline", "5") as url, tempfile.TemporaryDirectory() as folder:
        program = "import sys; from schemathesis.cli import schemathesis; sys.exit(schemathesis())"
        arguments = ["run", url + "/openapi.json", "--seed", str(SEED % 2**32), "--checks", CHECKS]
        limits = ["--max-examples", "15", "--phases", "examples,fuzzing", "--request-timeout", "120"]
        # On a busy machine, making requests takes long.
        limits += ["--suppress-health-check", "too_slow"]
        subprocess.run([sys.executable, "-c", program, *arguments, *limits], check=True, cwd=folder)


def scalar(rng):
    """Returns a random schema of a value without parts."""
    low = rng.randint(-100, 100)
    return rng.choice(
        [
            {"type": "string", "maxLength": rng.randint(1, 12)},
            {"type": "string", "pattern": "^[a-c]{2}-[0-9]{1,3}$"},
            {"type": "string", "format": rng.choice(["date", "time", "uuid", "ipv4"])},
            {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 2000)},
            {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
            {"type": "boolean"},
            {"type": "null"},
            {"enum": rng.sample([1, "one", None, True, [1], {"a": 1}, "zwölf\n"], 3)},
            {"const": rng.choice(WORDS)},
        ]
    )


def schema(rng, depth=0):
    """Returns a random schema whose documents are short."""
    kind = rng.choice(["scalar", "scalar", "array", "object", "union", "ref"]) if depth else "object"
    if kind == "scalar" or depth > 2:
        return scalar(rng)
    if kind == "array":
        return {"type": "array", "items": schema(rng, depth + 1), "minItems": rng.randint(0, 1), "maxItems": rng.randint(1, 2)}
    if kind == "union":
        return {"anyOf": [schema(rng, depth + 1) for _ in range(2)]}
    if kind == "ref":
        return {"$ref": "#/$defs/" + rng.choice(["one", "other"])}
    names = rng.sample(WORDS, rng.randint(1, 3))
    required = [name for name in names if rng.random() < 0.7]
    return {
        "type": "object",
        "properties": {name: schema(rng, depth + 1) for name in names},
        "required": required,
        "additionalProperties": False,
    }


def check_schema(client, model, rng):
    """Generates a document, and validates it with an independent judge. Returns whether it ended."""
    wanted = schema(rng)
    wanted["$defs"] = {"one": scalar(rng), "other": scalar(rng)}
    described = {"type": "json_schema", "json_schema": {"name": "wanted", "strict": True, "schema": wanted}}
    messages = [{"role": "user", "content": "Write a short example."}]
    answer = client.chat.completions.create(
        model=model, messages=messages, response_format=described, max_tokens=160, seed=rng.randint(0, 2**31)
    ).choices[0]
    if answer.finish_reason != "stop":
        return False
    validator = jsonschema_rs.Draft202012Validator(wanted, validate_formats=True)
    document = json.loads(answer.message.content)
    assert validator.is_valid(document), (wanted, answer.message.content)
    return True


def check_schemas():
    """Checks documents for random schemas."""
    with serving(MODEL, "--ctx", "512") as url:
        client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=600)
        model = client.models.list().data[0].id
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            seeds = [random.Random(f"{SEED} {index}") for index in range(SCHEMAS)]
            ended = sum(pool.map(lambda rng: check_schema(client, model, rng), seeds))
    assert ended > SCHEMAS * 3 // 4, f"only {ended} of {SCHEMAS} documents ended"
    return ended


check_document()
print(check_schemas(), "of", SCHEMAS, "documents ended, and all of them are valid; seed", SEED)
