//! Constrained answers, demanded calls, log probabilities, penalties and biases over HTTP.

use super::{Server, chat};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

fn fish() -> Value {
    json!({
        "type": "object",
        "properties": {
            "colour": { "enum": ["red", "blue"] },
            "scales": { "$ref": "#/$defs/count" },
            "wishes": { "type": "array", "items": { "type": "boolean" }, "maxItems": 3 },
        },
        "required": ["colour", "scales", "wishes"],
        "additionalProperties": false,
        "$defs": { "count": { "type": "integer", "minimum": 1, "maximum": 9 } },
    })
}

fn is_fish(text: &str) -> bool {
    let fish: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    let names: Vec<_> = fish.as_object().unwrap().keys().collect();
    names == ["colour", "scales", "wishes"]
        && ["red", "blue"].contains(&fish["colour"].as_str().unwrap())
        && (1..=9).contains(&fish["scales"].as_u64().unwrap())
        && fish["wishes"].as_array().unwrap().iter().all(Value::is_boolean)
}

#[test]
fn answers_obey_schemas_and_grammars_in_every_api() {
    let server = Server::start(&[]);
    let text_of = |path: &str, body: Value| {
        let answer = server.post(path, &body);
        assert_eq!(answer.status, 200, "{body}: {}", answer.body);
        let answer = answer.json();
        let text =
            ["/choices/0/message/content", "/choices/0/text", "/content/0/text", "/output/0/content/0/text"];
        let text = text.into_iter().find_map(|at| answer.pointer(at)?.as_str());
        text.unwrap_or_else(|| panic!("{answer}")).to_owned()
    };
    let named = json!({ "type": "json_schema", "json_schema": { "name": "fish", "schema": fish() } });
    let flat = json!({ "type": "json_schema", "name": "fish", "schema": fish(), "strict": true });
    for seed in 0..3 {
        let more = |field: &str, value: &Value| json!({ field: value, "max_tokens": 200, "seed": seed });
        assert!(is_fish(&text_of(CHAT, chat(more("response_format", &named)))));
        assert!(is_fish(&text_of(CHAT, chat(more("json_schema", &fish())))));
        assert!(is_fish(&text_of(CHAT, chat(more("structured_outputs", &json!({ "json": fish() }))))));
    }
    let response = json!({ "input": "Once", "text": { "format": flat }, "max_output_tokens": 200 });
    assert!(is_fish(&text_of("/v1/responses", response)));
    let format = json!({ "format": { "type": "json_schema", "schema": fish() } });
    assert!(is_fish(&text_of("/v1/messages", chat(json!({ "output_config": format, "max_tokens": 200 })))));
    let object =
        chat(json!({ "response_format": { "type": "json_object" }, "max_tokens": 1, "temperature": 0 }));
    assert!(text_of(CHAT, object).starts_with('{'));
    let text = |more: Value| {
        let mut body = json!({ "prompt": "Once", "max_tokens": 40 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        text_of(TEXT, body)
    };
    let letters = text(json!({ "structured_outputs": { "regex": "[a-c]{2}-[0-9]" } }));
    assert!(letters.len() == 4 && letters.as_bytes()[2] == b'-', "{letters}");
    assert!(["yes", "no"].contains(&&*text(json!({ "structured_outputs": { "choice": ["yes", "no"] } }))));
    assert_eq!(text(json!({ "grammar": "root ::= \"a\" b\nb ::= \"\\n\"{2}" })), "a\n\n");
    assert_eq!(text(json!({ "structured_outputs": { "grammar": "start: \"x\" \"y\"" } })), "xy");
    // A stream has the same text, and the end of the grammar is the end of the answer.
    let body = json!({ "grammar": "root ::= \"abc\"", "stream": true, "max_tokens": 40 });
    let stream = server.post(CHAT, &chat(body)).body;
    assert!(stream.contains("\"finish_reason\":\"stop\""), "{stream}");
}

#[test]
fn a_constraint_that_cannot_be_compiled_is_refused() {
    let server = Server::start(&[]);
    let deep = (0..200).fold(json!({}), |schema, _| json!({ "items": schema }));
    for more in [
        json!({ "json_schema": { "$ref": "https://example.com/schema.json" } }),
        json!({ "json_schema": { "type": "string", "pattern": "(" } }),
        json!({ "json_schema": deep }),
        json!({ "grammar": format!("root ::= {}", "(".repeat(100_000)) }),
        json!({ "structured_outputs": { "regex": "(a" } }),
        json!({ "structured_outputs": { "regex": "a", "json_object": true } }),
        json!({ "response_format": { "type": "xml" } }),
        json!({ "logit_bias": { "999999": 1 } }),
        json!({ "logit_bias": { "1": 101 } }),
        json!({ "top_logprobs": 2 }),
        json!({ "logprobs": true, "top_logprobs": 21 }),
        json!({ "frequency_penalty": 2.5 }),
    ] {
        let answer = server.post(CHAT, &chat(more));
        assert_eq!(answer.status, 400, "{}", answer.body);
    }
    assert_eq!(server.post(CHAT, &chat(json!({}))).status, 200, "the server still answers");
}

/// Returns a short schema, because the context of the model also holds the tools.
fn coloured() -> Value {
    json!({
        "type": "object",
        "properties": { "colour": { "$ref": "#/$defs/colour" } },
        "required": ["colour"],
        "additionalProperties": false,
        "$defs": { "colour": { "enum": ["red", "blue"] } },
    })
}

fn is_coloured(text: &str) -> bool {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    value == json!({ "colour": "red" }) || value == json!({ "colour": "blue" })
}

#[test]
fn a_demanded_call_is_made() {
    let template = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/tools.jinja");
    let server = Server::start(&["--template", template]);
    let function = json!({ "name": "catch", "parameters": coloured() });
    let other = json!({ "type": "function", "function": { "name": "other" } });
    let tools = json!([{ "type": "function", "function": function }, other]);
    let named = json!({ "type": "function", "function": { "name": "catch" } });
    let ask = |more: Value| {
        let mut body = chat(json!({ "tools": tools, "max_tokens": 200, "parallel_tool_calls": false }));
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.post(CHAT, &body)
    };
    for choice in [json!("required"), named] {
        let answer = ask(json!({ "tool_choice": choice })).json();
        let message = &answer["choices"][0]["message"];
        let call = &message["tool_calls"][0]["function"];
        assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls", "{answer}");
        assert!(
            message["content"].is_null() && message["tool_calls"].as_array().unwrap().len() == 1,
            "{answer}"
        );
        let arguments = call["arguments"].as_str().unwrap();
        match call["name"].as_str() {
            Some("catch") => assert!(is_coloured(arguments)),
            name => {
                // The grammar permits spaces between the braces.
                let arguments: Value = serde_json::from_str(arguments).unwrap();
                assert_eq!((name, arguments), (Some("other"), json!({})));
            }
        }
    }
    let stream = ask(json!({ "tool_choice": "required", "stream": true })).body;
    assert!(stream.contains("\"tool_calls\":[{"), "{stream}");
    assert_eq!(ask(json!({ "tool_choice": { "type": "function", "name": "none" } })).status, 400);
    // The model may call, or answer in the format.
    let either =
        ask(json!({ "response_format": { "type": "json_schema", "json_schema": { "schema": coloured() } } }));
    let message = &either.json()["choices"][0]["message"];
    assert!(
        message["tool_calls"].is_array() || is_coloured(message["content"].as_str().unwrap()),
        "{message}"
    );
    let claude = json!({
        "messages": [{ "role": "user", "content": "Once" }],
        "max_tokens": 200,
        "tools": [{ "name": "catch", "input_schema": coloured() }],
        "tool_choice": { "type": "any", "disable_parallel_tool_use": true },
    });
    let used = server.post("/v1/messages", &claude).json();
    assert_eq!(
        (&used["stop_reason"], &used["content"][0]["name"]),
        (&json!("tool_use"), &json!("catch")),
        "{used}"
    );
    assert!(is_coloured(&used["content"][0]["input"].to_string()));
}

#[test]
fn log_probabilities_describe_the_prompt_and_the_answer() {
    let server = Server::start(&[]);
    let ask = |path: &str, body: Value| server.post(path, &body).json();
    let greedy = json!({ "temperature": 0, "logprobs": true, "top_logprobs": 2 });
    let choice = ask(CHAT, chat(greedy))["choices"][0].take();
    let logs = choice["logprobs"]["content"].as_array().unwrap();
    let bytes = logs.iter().flat_map(|log| log["bytes"].as_array().unwrap());
    let text = String::from_utf8(bytes.map(|byte| byte.as_u64().unwrap() as u8).collect()).unwrap();
    assert_eq!(text.trim(), choice["message"]["content"].as_str().unwrap().trim());
    for log in logs {
        let top = log["top_logprobs"].as_array().unwrap();
        assert_eq!(
            (top.len(), &top[0]["logprob"]),
            (2, &log["logprob"]),
            "greedy tokens are the most likely ones"
        );
        assert!(
            top[0]["logprob"].as_f64() >= top[1]["logprob"].as_f64() && log["logprob"].as_f64() <= Some(0.0)
        );
    }
    let body = json!({ "prompt": "Once upon a time", "max_tokens": 2, "temperature": 0, "logprobs": 1, "echo": true });
    let echoed = ask(TEXT, body)["choices"][0]["logprobs"].take();
    let values = echoed["token_logprobs"].as_array().unwrap();
    assert!(values[0].is_null() && values[1..].iter().all(|value| value.as_f64() <= Some(0.0)), "{echoed}");
    // A generated token has the same probability as the same token in a prompt.
    let plain = json!({ "prompt": "Once upon a time", "max_tokens": 2, "temperature": 0, "logprobs": 1 });
    let plain = ask(TEXT, plain)["choices"][0]["logprobs"].take();
    assert_eq!(plain["token_logprobs"].as_array().unwrap()[..], values[values.len() - 2..]);
}

#[test]
fn penalties_biases_and_stop_strings_have_their_effects() {
    let server = Server::start(&[]);
    let text = |more: Value| {
        let mut body = json!({ "prompt": "Once upon a time", "max_tokens": 30, "temperature": 0 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.post(TEXT, &body).json()["choices"][0]["text"].as_str().unwrap().to_owned()
    };
    let free = text(json!({}));
    assert_ne!(text(json!({ "presence_penalty": 2, "frequency_penalty": 2 })), free);
    assert_eq!(text(json!({ "presence_penalty": 0, "logit_bias": {} })), free);
    let only = server.post("/tokenize", &json!({ "content": "wolf" })).json()["tokens"].clone();
    let token = only.as_array().unwrap().last().unwrap().to_string();
    let biased = text(json!({ "logit_bias": { token.as_str(): 100 }, "max_tokens": 3 }));
    let three = vec![token.parse::<u32>().unwrap(); 3];
    let again = server.post("/detokenize", &json!({ "tokens": three })).json();
    assert_eq!(biased.trim(), again["content"].as_str().unwrap().trim());
    let body = json!({
        "messages": [{ "role": "user", "content": "Once upon a time" }],
        "max_tokens": 40,
        "temperature": 0,
        "stop_sequences": ["never occurs", "e", "a"],
    });
    let stopped = server.post("/v1/messages", &body).json();
    let text = stopped["content"][0]["text"].as_str().unwrap_or_default();
    assert_eq!(stopped["stop_reason"], "stop_sequence", "{stopped}");
    assert!(
        ["e", "a"].contains(&stopped["stop_sequence"].as_str().unwrap()) && !text.contains(['e', 'a']),
        "{stopped}"
    );
}
