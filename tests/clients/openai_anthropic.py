"""Checks `ragtag serve` with the official clients of OpenAI and Anthropic.

python openai_anthropic.py RAGTAG SMOLLM2.gguf  (packages: openai, anthropic)
"""

import json
import os
import pathlib
import signal
import subprocess
import sys

import anthropic
import openai

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
    refused(openai.BadRequestError, chat(logit_bias={"5": 1}), "logit_bias")
    refused(openai.BadRequestError, chat(logprobs=True), "logprobs")
    refused(openai.BadRequestError, chat(presence_penalty=1), "presence_penalty")
    refused(openai.BadRequestError, chat(response_format={"type": "json_object"}), "response_format")
    refused(openai.BadRequestError, chat(extra_body={"mirostat": 2}), "mirostat")
    refused(openai.NotFoundError, lambda: client.models.retrieve("other"), "other")
    refused(openai.BadRequestError, lambda: client.embeddings.create(model=model, input="a"), "embeddings")
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
    refused(openai.BadRequestError, lambda: client.chat.completions.create(**arguments, tool_choice="required"), "auto")


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
    forced = {"type": "tool", "name": "get_weather"}
    call = lambda: client.messages.create(**arguments, tools=tools, tool_choice=forced)
    refused(anthropic.BadRequestError, call, "tool_choice")
    refused(anthropic.AuthenticationError, lambda: client.with_options(api_key="wrong").messages.create(**arguments), "API key")


command = [RAGTAG, "serve", MODEL, "--port", "0", "--ctx", "1024", "--template", str(TEMPLATE), "--device", "cpu"]
server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "RAGTAG_API_KEY": KEY})
try:
    url = server.stdout.readline().removeprefix("listening on ").strip()
    model = pathlib.Path(MODEL).stem
    client = openai.OpenAI(base_url=url + "/v1", api_key=KEY, max_retries=0)
    check_openai(client, model)
    check_tools(client, model)
    check_anthropic(anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0), model)
finally:
    server.send_signal(signal.SIGTERM)
    code = server.wait(60)
assert code == 0, code
print("openai", openai.__version__, "and anthropic", anthropic.__version__, "agree with the server")
