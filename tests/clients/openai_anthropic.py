"""Checks `ragtag serve` with the official clients of OpenAI and Anthropic.

python openai_anthropic.py RAGTAG SMOLLM2.gguf  (packages: openai, anthropic)
"""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys

import typing

import anthropic
import openai
import pydantic

RAGTAG, MODEL = sys.argv[1:]
TEMPLATE = pathlib.Path(__file__).with_name("tools.jinja")
KEY = "a-key-of-the-test"
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
GREEDY = {"temperature": 0, "max_tokens": 40}


def refused(kind, call, *needles):
    try:
        call()
    except kind as error:
        assert all(needle in str(error) for needle in needles), error
        return
    raise AssertionError(f"not refused: {needles}")


def bias_of(client, text):
    """Returns a bias that bans the tokens of a text."""
    url = str(client.base_url).removesuffix("/v1/") + "/tokenize"
    tokens = client.post(url, cast_to=object, body={"content": text})["tokens"]
    return {str(token): -100 for token in tokens}


def check_openai(client, model):
    assert [m.id for m in client.models.list()] == [model] and client.models.retrieve(model).id == model
    messages = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
    whole = client.chat.completions.create(model=model, messages=messages, **GREEDY)
    assert "Paris" in whole.choices[0].message.content and whole.choices[0].finish_reason == "stop", whole
    options = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = list(client.chat.completions.create(model=model, messages=messages, **GREEDY, **options))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content, text
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens and not chunks[-1].choices
    several = client.chat.completions.create(model=model, messages=messages, n=2, seed=5, max_tokens=4)
    assert [c.index for c in several.choices] == [0, 1] and several.usage.completion_tokens <= 8
    cut = client.chat.completions.create(model=model, messages=messages, temperature=0, stop=["aris"])
    assert cut.choices[0].message.content.endswith("P"), cut

    prompts = ["Once upon", "One, two, three,"]
    done = client.completions.create(model=model, prompt=prompts, echo=True, **GREEDY)
    assert [c.text.startswith(p) for c, p in zip(done.choices, prompts)] == [True, True], done
    stream = client.completions.create(model=model, prompt=prompts, echo=True, stream=True, **GREEDY)
    texts = ["", ""]
    for chunk in stream:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert [c.text for c in done.choices] == texts, texts

    response = client.responses.create(model=model, input=messages, temperature=0, max_output_tokens=40)
    assert response.output_text == text and response.status == "completed", response
    with client.responses.stream(model=model, input=messages, temperature=0, max_output_tokens=40) as stream:
        streamed = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        assert streamed == stream.get_final_response().output_text == text, streamed

    chat = lambda **more: lambda: client.chat.completions.create(model=model, messages=messages, **more)
    refused(openai.BadRequestError, chat(logit_bias={"5": 101}), "logit-bias")
    refused(openai.BadRequestError, chat(logit_bias={"999999999": 1}), "vocabulary")
    refused(openai.BadRequestError, chat(top_logprobs=2), "logprobs")
    refused(openai.BadRequestError, chat(presence_penalty=3), "presence-penalty")
    remote = {"name": "x", "schema": {"$ref": "https://example.com/x.json"}}
    refused(openai.BadRequestError, chat(response_format={"type": "json_schema", "json_schema": remote}), "grammar")
    refused(openai.BadRequestError, chat(extra_body={"grammar": "root ::= other"}), "grammar")
    refused(openai.BadRequestError, chat(extra_body={"mirostat": 2}), "mirostat")
    refused(openai.NotFoundError, lambda: client.models.retrieve("other"), "other")
    refused(openai.BadRequestError, lambda: client.embeddings.create(model=model, input="a"), "--embeddings")
    refused(openai.AuthenticationError, client.with_options(api_key="wrong").models.list, "API key")


def check_tools(client, model):
    tools = [{"type": "function", "function": {"name": "get_weather", "parameters": CITY}}]
    messages = []
    for city in ["Paris", "London"]:
        call = {"name": "get_weather", "arguments": json.dumps({"city": city})}
        messages += [
            {"role": "user", "content": f"What is the weather in {city}?"},
            {"role": "assistant", "content": None, "tool_calls": [{"id": city, "type": "function", "function": call}]},
            {"role": "tool", "tool_call_id": city, "content": "sunny"},
            {"role": "assistant", "content": f"It is sunny in {city}."},
        ]
    messages.append({"role": "user", "content": "What is the weather in Rome?"})
    arguments = dict(model=model, messages=messages, tools=tools, **GREEDY)
    choice = client.chat.completions.create(**arguments).choices[0]
    call = choice.message.tool_calls[0].function
    assert choice.finish_reason == "tool_calls" and call.name == "get_weather", choice
    assert json.loads(call.arguments) == {"city": "Rome"}, call
    with client.chat.completions.stream(**arguments) as stream:
        deltas = [event for event in stream if event.type == "tool_calls.function.arguments.delta"]
        final = stream.get_final_completion().choices[0].message.tool_calls[0].function
    assert len(deltas) > 1 and json.loads(final.arguments) == {"city": "Rome"}, final
    none = client.chat.completions.create(**arguments, tool_choice="none").choices[0]
    assert none.message.tool_calls is None, none
    # Without an earlier call, only the constraint makes the model call.
    hello = {**arguments, "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 80, "parallel_tool_calls": False}
    named = {"type": "function", "function": {"name": "get_weather"}}
    for choice in ["required", named]:
        forced = client.chat.completions.create(**hello, tool_choice=choice).choices[0]
        assert forced.finish_reason == "tool_calls", forced
        assert type(json.loads(forced.message.tool_calls[0].function.arguments)["city"]) is str, forced
    unknown = {"type": "function", "function": {"name": "other"}}
    refused(openai.BadRequestError, lambda: client.chat.completions.create(**arguments, tool_choice=unknown), "other")


class Place(pydantic.BaseModel):
    country: typing.Literal["France", "Spain"]
    inhabitants: int
    cities: list[str] = pydantic.Field(max_length=2)


def check_constraints(client, model):
    messages = [{"role": "user", "content": "Where is Paris?"}]
    arguments = dict(model=model, messages=messages, temperature=0, max_tokens=120)
    parsed = client.chat.completions.parse(**arguments, response_format=Place).choices[0].message.parsed
    assert parsed.country in ("France", "Spain") and len(parsed.cities) <= 2, parsed
    response = client.responses.parse(model=model, input=messages, temperature=0, max_output_tokens=120, text_format=Place)
    assert response.output_parsed == parsed, response
    chat = lambda **more: client.chat.completions.create(**{**arguments, **more}).choices[0]
    question = [{"role": "user", "content": "Describe Paris as JSON with the keys city and country."}]
    described = chat(messages=question, response_format={"type": "json_object"})
    assert isinstance(json.loads(described.message.content), dict), described
    choice = {"structured_outputs": {"choice": ["north", "south"]}}
    assert chat(extra_body=choice).message.content in ("north", "south")
    assert chat(extra_body={"structured_outputs": {"regex": "[0-9]{3}"}}).message.content.isdecimal()
    grammar = 'root ::= "x" digit "y"\ndigit ::= [0-9]'
    assert chat(extra_body={"grammar": grammar}).message.content[::2] == "xy"
    done = client.completions.create(model=model, prompt="Paris is", max_tokens=9, extra_body={"json_schema": {"const": 5}})
    assert (done.choices[0].text, done.choices[0].finish_reason) == ("5", "stop"), done

    # Penalties and biases change what is likely.
    free = chat(max_tokens=30).message.content
    assert chat(max_tokens=30, presence_penalty=2, frequency_penalty=2).message.content != free
    first = client.completions.create(model=model, prompt="One, two,", temperature=0, max_tokens=1, logprobs=2).choices[0]
    biased = dict(model=model, prompt="One, two,", temperature=0, max_tokens=1)
    banned = client.post("/completions", cast_to=openai.types.Completion, body={**biased, "logit_bias": bias_of(client, first.text)})
    second = list(first.logprobs.top_logprobs[0])[1]
    assert banned.choices[0].text == second, (banned, first)


def check_logs(client, model):
    messages = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
    arguments = dict(model=model, messages=messages, **GREEDY, logprobs=True, top_logprobs=3)
    choice = client.chat.completions.create(**arguments).choices[0]
    content = choice.logprobs.content
    assert b"".join(bytes(t.bytes) for t in content).decode() == choice.message.content, choice
    for token in content:
        likely = [top.logprob for top in token.top_logprobs]
        assert len(likely) == 3 and likely == sorted(likely, reverse=True) and token.logprob == likely[0] <= 0, token
    streamed = []
    for chunk in client.chat.completions.create(**arguments, stream=True):
        streamed += chunk.choices[0].logprobs.content if chunk.choices[0].logprobs else []
    assert streamed == content, streamed
    prompt = "One, two, three,"
    arguments = dict(model=model, prompt=prompt, temperature=0, max_tokens=4, logprobs=2, echo=True)
    done = client.completions.create(**arguments).choices[0]
    logs = done.logprobs
    assert "".join(logs.tokens) == done.text and logs.text_offset[-1] == len(done.text) - len(logs.tokens[-1]), done
    assert logs.token_logprobs[0] is None and all(value <= 0 for value in logs.token_logprobs[1:]), done
    parts = [chunk.choices[0].logprobs for chunk in client.completions.create(**arguments, stream=True)]
    assert sum((part.tokens for part in parts if part), []) == logs.tokens, parts
    assert sum((part.text_offset for part in parts if part), []) == logs.text_offset, parts


def check_anthropic(client, model):
    messages = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
    greedy = {"max_tokens": 40, "extra_body": {"temperature": 0}}
    arguments = dict(model=model, messages=messages, **greedy)
    whole = client.messages.create(**arguments)
    assert "Paris" in whole.content[0].text and whole.stop_reason == "end_turn", whole
    with client.messages.stream(**arguments) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text and final.usage.output_tokens == whole.usage.output_tokens, final
    counted = client.messages.count_tokens(model=model, messages=messages).input_tokens
    assert counted == whole.usage.input_tokens + whole.usage.cache_read_input_tokens, counted

    tools = [{"name": "get_weather", "input_schema": CITY}]
    talk = []
    for city in ["Paris", "London"]:
        result = {"type": "tool_result", "tool_use_id": city, "content": "sunny"}
        talk += [
            {"role": "user", "content": f"What is the weather in {city}?"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": city, "name": "get_weather", "input": {"city": city}}]},
            {"role": "user", "content": [result]},
            {"role": "assistant", "content": f"It is sunny in {city}."},
        ]
    talk.append({"role": "user", "content": "What is the weather in Rome?"})
    with client.messages.stream(model=model, messages=talk, tools=tools, **greedy) as stream:
        final = stream.get_final_message()
    used = [block for block in final.content if block.type == "tool_use"]
    assert used[0].input == {"city": "Rome"} and final.stop_reason == "tool_use", final

    refused(anthropic.NotFoundError, lambda: client.messages.create(**{**arguments, "model": "other"}), "not_found_error")
    hello = {**greedy, "model": model, "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 80, "tools": tools}
    for choice in [{"type": "any"}, {"type": "tool", "name": "get_weather"}]:
        choice["disable_parallel_tool_use"] = True
        forced = client.messages.create(**hello, tool_choice=choice)
        # The schema allows further keys.
        assert forced.stop_reason == "tool_use" and type(forced.content[0].input["city"]) is str, forced
    shape = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
    output = {"format": {"type": "json_schema", "schema": shape}}
    whole = client.messages.create(**arguments, output_config=output)
    assert type(json.loads(whole.content[0].text)["n"]) is int and whole.stop_reason == "end_turn", whole
    stopped = client.messages.create(**arguments, stop_sequences=["never", "aris"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "aris"), stopped
    refused(anthropic.AuthenticationError, lambda: client.with_options(api_key="wrong").messages.create(**arguments), "API key")


def check_embeddings(client, model):
    texts = ["Paris is the capital of France.", "Rice needs much water."]
    create = lambda **more: client.embeddings.create(model=model, **{"input": texts, **more})
    # Without a format, the client asks for base64.
    vectors = [entry.embedding for entry in create().data]
    floats = [entry.embedding for entry in create(encoding_format="float").data]
    for vector, same in zip(vectors, floats, strict=True):
        assert abs(sum(value * value for value in vector) - 1) < 1e-4, vector
        assert max(abs(a - b) for a, b in zip(vector, same, strict=True)) < 1e-3, (vector, same)
    assert vectors[0] != vectors[1] and create().usage.total_tokens > 8
    width = len(vectors[0])
    one = create(input=texts[1], dimensions=width).data[0].embedding
    assert sum(a * b for a, b in zip(one, vectors[1], strict=True)) > 0.99, one
    refused(openai.BadRequestError, lambda: create(dimensions=width // 2), "dimensions")
    refused(openai.BadRequestError, lambda: client.completions.create(model=model, prompt="a"), "/v1/embeddings")


@contextlib.contextmanager
def serving(*arguments):
    """Starts a server. Yields its URL."""
    command = [RAGTAG, "serve", MODEL, "--port", "0", "--ctx", "1024", "--device", "cpu", *arguments]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "RAGTAG_API_KEY": KEY})
    try:
        yield server.stdout.readline().removeprefix("listening on ").strip()
    finally:
        server.send_signal(signal.SIGTERM)
        code = server.wait(60)
    assert code == 0, code


model = pathlib.Path(MODEL).stem
with serving("--template", str(TEMPLATE)) as url:
    client = openai.OpenAI(base_url=url + "/v1", api_key=KEY, max_retries=0)
    check_openai(client, model)
    check_tools(client, model)
    check_constraints(client, model)
    check_logs(client, model)
    check_anthropic(anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0), model)
with serving("--embeddings") as url:
    check_embeddings(openai.OpenAI(base_url=url + "/v1", api_key=KEY, max_retries=0), model)
print("openai", openai.__version__, "and anthropic", anthropic.__version__, "agree with the server")
