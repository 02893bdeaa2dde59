//! `ragtag serve`: the routes of its APIs, what it refuses, its limits, and its end.

mod constraints;
mod recovery;

use crate::support::{environment, model_path, ragtag, text};
use ragtag::{BUNDLED_MODEL, Model};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Time for a server to do what a test waits for.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running server.
struct Server {
    /// The process, unless this process is the server.
    child: Option<Child>,
    /// Host and port.
    address: String,
}

/// An answer over HTTP.
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|cause| panic!("{cause}: {}", self.body))
    }

    /// Returns the data of a stream's events.
    fn events(&self) -> Vec<Value> {
        let data = self.body.lines().filter_map(|line| line.strip_prefix("data: "));
        data.filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).unwrap()).collect()
    }
}

impl Server {
    fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ragtag"));
        for (name, value) in environment() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.env_remove("RAGTAG_API_KEY").args(["serve", "--port", "0", "--quiet"]).args(arguments);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on http://").unwrap_or_else(|| panic!("{line:?}"));
        Self { address: address.to_owned(), child: Some(child) }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Sends a request and returns the connection.
    fn send(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> TcpStream {
        let mut stream = self.connect();
        let host =
            if headers.contains("host:") { String::new() } else { format!("host: {}\r\n", self.address) };
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\n{host}{headers}content-length: {length}\r\nconnection: close\r\n\r\n"
        );
        // A server that refuses a large body closes the connection before it has read all.
        let _ = stream.write_all(&[head.as_bytes(), body].concat());
        stream
    }

    fn ask(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> Answer {
        answer(self.send(method, path, headers, body))
    }

    fn post(&self, path: &str, body: &Value) -> Answer {
        self.ask("POST", path, "", body.to_string().as_bytes())
    }

    fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, "", b"")
    }

    /// Returns the value of a metric.
    fn metric(&self, name: &str) -> f64 {
        let metrics = self.get("/metrics").body;
        let line = metrics.lines().find(|line| line.starts_with(&format!("{name}{{")));
        let line = line.unwrap_or_else(|| panic!("{name}: {metrics}"));
        line.rsplit_once(' ').unwrap().1.parse().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Reads an answer to its end.
fn answer(mut stream: TcpStream) -> Answer {
    let mut bytes = Vec::new();
    // A connection that the server has reset still holds the answer.
    let _ = stream.read_to_end(&mut bytes);
    let all = String::from_utf8(bytes).unwrap();
    let (head, mut rest) = all.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{all:?}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let mut body = String::new();
    if head.contains("transfer-encoding: chunked") {
        while let Some((length, after)) = rest.split_once("\r\n") {
            let length = usize::from_str_radix(length, 16).unwrap();
            body.push_str(&after[..length]);
            rest = &after[length + 2..];
        }
    } else {
        body.push_str(rest);
    }
    Answer { status, head: head.to_ascii_lowercase(), body }
}

fn until(what: &str, mut is_done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_done() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn chat(more: Value) -> Value {
    let mut body =
        json!({ "messages": [{ "role": "user", "content": "Once upon a time" }], "max_tokens": 8 });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn joined<'a>(texts: impl Iterator<Item = &'a Value>) -> String {
    texts.filter_map(Value::as_str).collect()
}

/// All APIs give the same text, whole and streamed, and count the same tokens.
#[test]
fn the_apis_agree_with_each_other_and_with_the_command() {
    let server = Server::start(&[]);
    let run = ["run", "-p", "Once upon a time", "-n", "8", "--temp", "0", "--no-echo", "--chat", "--json"];
    let output = ragtag().args(run).output().unwrap();
    let expected: Value = serde_json::from_slice(&output.stdout).unwrap();
    let (text, prompt) =
        (expected["text"].as_str().unwrap(), expected["prompt_tokens"].as_array().unwrap().len());

    let whole = server.post("/v1/chat/completions", &chat(json!({ "temperature": 0 }))).json();
    let choice = &whole["choices"][0];
    assert_eq!(
        (choice["message"]["content"].as_str(), &choice["finish_reason"]),
        (Some(text), &json!("length"))
    );
    assert_eq!(whole["usage"]["prompt_tokens"], prompt);
    assert_eq!(whole["usage"]["total_tokens"], prompt + 8);
    let stream =
        chat(json!({ "temperature": 0, "stream": true, "stream_options": { "include_usage": true } }));
    let streamed = server.post("/v1/chat/completions", &stream);
    assert!(streamed.body.ends_with("data: [DONE]\n\n"));
    let events = streamed.events();
    assert_eq!(joined(events.iter().map(|event| &event["choices"][0]["delta"]["content"])), text);
    assert_eq!(events.last().unwrap()["usage"]["total_tokens"], prompt + 8);
    assert!(events.iter().rev().skip(1).all(|event| event["usage"].is_null()));

    let mut messages = chat(json!({ "temperature": 0 }));
    let message = server.post("/v1/messages", &messages).json();
    assert_eq!(
        (message["content"][0]["text"].as_str(), &message["stop_reason"]),
        (Some(text), &json!("max_tokens"))
    );
    let read = message["usage"]["input_tokens"].as_u64().unwrap()
        + message["usage"]["cache_read_input_tokens"].as_u64().unwrap();
    assert_eq!(server.post("/v1/messages/count_tokens", &messages).json()["input_tokens"], read);
    messages["stream"] = true.into();
    let events = server.post("/v1/messages", &messages).events();
    assert_eq!(joined(events.iter().map(|event| &event["delta"]["text"])), text);
    let kinds: Vec<_> = events.iter().filter_map(|event| event["type"].as_str()).collect();
    assert_eq!(kinds[..2], ["message_start", "content_block_start"]);
    assert_eq!(kinds[kinds.len() - 3..], ["content_block_stop", "message_delta", "message_stop"]);

    let mut input = json!({ "input": "Once upon a time", "max_output_tokens": 8, "temperature": 0 });
    let response = server.post("/v1/responses", &input).json();
    assert_eq!(response["output"][0]["content"][0]["text"].as_str(), Some(text));
    assert_eq!(response["status"], "incomplete");
    input["stream"] = true.into();
    let events = server.post("/v1/responses", &input).events();
    assert_eq!(
        joined(events.iter().filter(|e| e["type"] == "response.output_text.delta").map(|e| &e["delta"])),
        text
    );
    assert!(events.iter().enumerate().all(|(at, event)| event["sequence_number"] == at));
    let last = &events.last().unwrap()["response"];
    assert_eq!(
        (last["output"][0]["content"][0]["text"].as_str(), &last["usage"]),
        (Some(text), &response["usage"])
    );
}

#[test]
fn completions_take_texts_and_tokens_and_echo_them() {
    let server = Server::start(&["--alias", "tales"]);
    let ask = |body: Value| server.post("/v1/completions", &body).json();
    let prompts = json!(["Once upon a time", "The old woman"]);
    let both = ask(json!({ "model": "tales", "prompt": prompts, "temperature": 0, "max_tokens": 6, "n": 2 }));
    let choices = both["choices"].as_array().unwrap();
    assert_eq!((choices.len(), &both["model"]), (4, &json!("tales")));
    assert_eq!(choices[0]["text"], choices[1]["text"]);
    assert_eq!(both["usage"]["completion_tokens"], 24);
    let tokens = server.post("/tokenize", &json!({ "content": "The old woman", "add_special": true })).json();
    let echoed = ask(json!({ "prompt": tokens["tokens"], "temperature": 0, "max_tokens": 6, "echo": true }));
    let text = choices[2]["text"].as_str().unwrap();
    assert_eq!(echoed["choices"][0]["text"].as_str().unwrap(), format!("The old woman{text}"));
    let back = server.post("/detokenize", &json!({ "tokens": tokens["tokens"] })).json();
    assert_eq!(back["content"], "The old woman");
    // The text of a stop string is left out.
    let stop = text.trim().split(' ').nth(1).unwrap();
    let cut = ask(json!({ "prompt": "The old woman", "temperature": 0, "max_tokens": 6, "stop": stop }));
    assert_eq!(cut["choices"][0]["text"].as_str().unwrap(), text.split_once(stop).unwrap().0);
    assert_eq!(cut["choices"][0]["finish_reason"], "stop");
    // A drawn seed is reported and repeats the text.
    let drawn = ask(json!({ "prompt": "Once", "max_tokens": 12 }));
    let seed = &drawn["choices"][0]["seed"];
    let again = ask(json!({ "prompt": "Once", "max_tokens": 12, "seed": seed }));
    assert_eq!(drawn["choices"][0]["text"], again["choices"][0]["text"]);
}

/// A request that the server cannot obey gets the status and the shape of its API, and names the field.
#[test]
fn what_cannot_be_obeyed_is_refused_by_name() {
    let server = Server::start(&["--max-body", "1", "--ctx", "64"]);
    let (openai, old, claude) = ("/v1/chat/completions", "/v1/completions", "/v1/messages");
    let long = "word ".repeat(100);
    let tool = json!([{ "type": "function", "function": { "name": "f" } }]);
    let cases: &[(&str, Value, u16, &str)] = &[
        (openai, chat(json!({ "logit_bias": { "x": 1 } })), 400, "logit_bias"),
        (openai, chat(json!({ "top_logprobs": 1 })), 400, "logprobs"),
        (openai, chat(json!({ "frequency_penalty": 2.5 })), 400, "frequency_penalty"),
        (openai, chat(json!({ "presence_penalty": -2.5 })), 400, "presence_penalty"),
        (openai, chat(json!({ "response_format": { "type": "json_schema" } })), 400, "response_format"),
        (openai, chat(json!({ "mirostat": 2 })), 400, "mirostat"),
        (openai, chat(json!({ "temperature": -1 })), 400, "temperature"),
        (openai, chat(json!({ "top_p": 2 })), 400, "top_p"),
        (openai, chat(json!({ "n": 0 })), 400, "n must be"),
        (openai, chat(json!({ "n": 1000 })), 400, "n must be"),
        (openai, chat(json!({ "stop": [""] })), 400, "stop"),
        (openai, chat(json!({ "tools": tool })), 400, "tools"),
        (openai, chat(json!({ "tool_choice": "required" })), 400, "tool_choice"),
        (openai, chat(json!({ "reasoning_effort": "high" })), 400, "reasoning_effort"),
        (openai, chat(json!({ "chat_template_kwargs": { "messages": true } })), 400, "chat_template_kwargs"),
        (openai, chat(json!({ "messages": [] })), 400, "messages"),
        (openai, chat(json!({ "messages": [{ "role": "</s>", "content": "" }] })), 400, "unknown role"),
        (openai, chat(json!({ "messages": [{ "role": "user" }] })), 400, "content"),
        (
            openai,
            chat(json!({ "messages": [{ "role": "user", "content": long }] })),
            400,
            "the context holds 64",
        ),
        (openai, chat(json!({ "model": "other" })), 404, "other"),
        (openai, json!({ "model": "other" }), 400, "messages"),
        (old, json!({ "prompt": "a", "logprobs": 21 }), 400, "logprobs"),
        (old, json!({ "prompt": "a", "suffix": "b" }), 400, "suffix"),
        (old, json!({ "prompt": "a", "best_of": 3 }), 400, "best_of"),
        (old, json!({ "prompt": [] }), 400, "prompt"),
        (old, json!({ "prompt": [[1, 99_999_999]] }), 400, "outside the vocabulary"),
        (old, json!({ "prompt": "a", "max_tokens": 0 }), 400, "max_tokens"),
        (claude, json!({ "messages": [{ "role": "user", "content": "a" }] }), 400, "max_tokens"),
        (claude, chat(json!({ "tool_choice": { "type": "any" } })), 400, "tool_choice"),
        (claude, chat(json!({ "thinking": { "type": "enabled", "budget_tokens": 5 } })), 400, "thinking"),
        (claude, chat(json!({ "model": "other" })), 404, "not_found_error"),
        ("/v1/responses", json!({ "input": "a", "previous_response_id": "b" }), 400, "previous_response_id"),
        ("/v1/embeddings", json!({ "input": "a" }), 400, "--embeddings"),
        ("/detokenize", json!({ "tokens": [99_999_999] }), 400, "99999999"),
        ("/v1/nothing", json!({}), 404, "no such route"),
        ("/health", json!({}), 405, "another method"),
    ];
    for (path, body, status, needle) in cases {
        let answer = server.post(path, body);
        assert_eq!(answer.status, *status, "{path} {body}: {}", answer.body);
        let error = answer.json();
        assert!(
            error["error"]["message"].is_string() && answer.body.contains(needle),
            "{path} {body}: {error}"
        );
        assert_eq!(error["type"] == "error", *path == claude, "{error}");
        assert!(answer.head.contains("x-request-id: req_"), "{}", answer.head);
    }
    let raw = |body: &[u8]| server.ask("POST", openai, "", body);
    let deep = format!("{{\"messages\": {}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    for body in [
        deep.as_bytes(),
        b"\xff\xfe",
        b"{\"messages\": [{\"role\": \"user\", \"content\": \"\xc3\x28\"}]}",
        b"",
    ] {
        assert_eq!(raw(body).status, 400);
    }
    assert_eq!(raw(&vec![b' '; 3 << 20]).status, 413);
    // Neutral values and fields of bookkeeping are no refusals.
    let neutral = json!({
        "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "logprobs": false, "top_logprobs": null,
        "response_format": { "type": "text" }, "user": "u", "metadata": { "a": "b" }, "store": false, "tools": [],
    });
    assert_eq!(server.post(openai, &chat(neutral)).status, 200);
}

#[test]
fn embeddings_have_the_form_of_openais_api() {
    let server = Server::start(&["--embeddings", "--ctx", "64", "--alias", "embedder"]);
    let embedded = |more: Value| {
        let mut body = json!({ "model": "embedder", "input": ["Once upon a time", "The king"] });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = server.post("/v1/embeddings", &body);
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.json()
    };
    let vector = |of: &Value| -> Vec<f64> {
        of["embedding"].as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
    };
    let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let both = embedded(json!({}));
    let vectors: Vec<_> = both["data"].as_array().unwrap().iter().map(vector).collect();
    let width = Model::bundled().unwrap().hyperparameters().width;
    assert!(vectors.iter().all(|v| v.len() == width as usize && (product(v, v) - 1.0).abs() < 1e-4));
    assert!(product(&vectors[0], &vectors[1]) < 0.999, "different texts");
    assert_eq!((&both["object"], &both["model"]), (&json!("list"), &json!("embedder")));
    assert_eq!((&both["data"][1]["index"], &both["data"][1]["object"]), (&json!(1), &json!("embedding")));
    let tokens = |text: &str| {
        server.post("/tokenize", &json!({ "content": text, "add_special": true })).json()["tokens"].clone()
    };
    let lists = json!([tokens("Once upon a time"), tokens("The king")]);
    let count: usize = lists.as_array().unwrap().iter().map(|list| list.as_array().unwrap().len()).sum();
    assert_eq!(both["usage"], json!({ "prompt_tokens": count, "total_tokens": count }));
    // Token ids and single inputs give the same vectors.
    for (at, input) in [(0, json!("Once upon a time")), (1, tokens("The king")), (0, lists)] {
        let same = vector(&embedded(json!({ "input": input, "dimensions": width }))["data"][0]);
        assert!(product(&same, &vectors[at]) > 0.999, "{input}");
    }
    let encoded = embedded(json!({ "encoding_format": "base64" }));
    let length = (width as usize * 4).div_ceil(3) * 4;
    assert_eq!(encoded["data"][0]["embedding"].as_str().unwrap().len(), length);
    assert_eq!(server.metric("ragtag_prompt_tokens_total") as usize % count, 0);
    for (path, body, needle) in [
        ("/v1/embeddings", json!({ "input": "a", "dimensions": 5 }), "dimensions"),
        ("/v1/embeddings", json!({ "input": [] }), "empty"),
        ("/v1/embeddings", json!({ "input": [[]] }), "empty"),
        ("/v1/embeddings", json!({ "input": "word ".repeat(100) }), "context_length_exceeded"),
        ("/v1/embeddings", json!({ "input": [99_999_999] }), "outside the vocabulary"),
        ("/v1/embeddings", json!({ "input": "a", "encoding_format": "hex" }), "hex"),
        ("/v1/chat/completions", chat(json!({})), "use /v1/embeddings"),
        ("/v1/completions", json!({ "prompt": "a", "echo": true, "logprobs": 1 }), "use /v1/embeddings"),
    ] {
        let answer = server.post(path, &body);
        assert!(answer.status == 400 && answer.body.contains(needle), "{path} {body}: {}", answer.body);
    }
}

#[test]
fn keys_open_all_routes_but_health_and_web_pages_are_refused() {
    let server = Server::start(&["--api-key", "secret"]);
    let status = |path: &str, headers: &str| server.ask("GET", path, headers, b"").status;
    for path in
        ["/v1/models", "/metrics", "/openapi.json", "/nothing", "/internal/state", "/internal/receipt"]
    {
        assert_eq!(status(path, ""), 401, "{path}");
    }
    for path in ["/health", "/", "/page.css", "/page.js"] {
        assert_eq!(status(path, ""), 200, "{path}");
    }
    assert_eq!(status("/v1/models", "authorization: Bearer secret\r\n"), 200);
    assert_eq!(status("/v1/models", "x-api-key: secret\r\n"), 200);
    assert_eq!(status("/v1/models", "x-api-key: secre\r\n"), 401);
    // A page of another server may use a key that it knows.
    assert_eq!(status("/v1/models", "x-api-key: secret\r\norigin: http://evil.example\r\n"), 200);

    let server = Server::start(&[]);
    let status = |headers: &str| server.ask("GET", "/v1/models", headers, b"").status;
    assert_eq!(status("origin: http://evil.example\r\n"), 403);
    assert_eq!(status("host: evil.example\r\n"), 403);
    assert_eq!(status(&format!("origin: http://{}\r\n", server.address)), 200);
    assert_eq!(status("host: localhost:1234\r\n"), 200);
}

#[test]
fn a_server_that_cannot_start_says_why() {
    let refused = |arguments: &[&str], code: i32, part: &str| {
        let output = ragtag().arg("serve").args(["--port", "0"]).args(arguments).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {errors}");
        assert!(errors.contains(part), "{arguments:?}: {errors}");
    };
    refused(&["--host", "0.0.0.0"], 2, "no API key (give one with --api-key-file");
    refused(&["--host", "no.such.host.invalid"], 7, "cannot listen on no.such.host.invalid");
    refused(&["--tls-cert", "none.pem", "--tls-key", "none.pem"], 7, "none.pem");
    refused(&["--tls-cert", "none.pem"], 2, "--tls-key");
    refused(&["--api-key-file", "none.txt"], 7, "none.txt");
    refused(&["--template", "none.jinja"], 7, "none.jinja");
    refused(&["none.gguf"], 7, "none.gguf");
    let keys = test_support::golden("tiny-hf").join("config.json");
    let open = Server::start(&["--host", "0.0.0.0", "--api-key-file", text(&keys)]);
    assert!(open.address.starts_with("0.0.0.0:"));
}

#[test]
fn the_model_the_template_and_the_metrics_are_described() {
    let server = Server::start(&[]);
    let name = BUNDLED_MODEL.strip_suffix(".gguf").unwrap();
    assert_eq!(server.get("/v1/models").json()["data"][0]["id"], name);
    assert_eq!(server.get(&format!("/v1/models/{name}")).status, 200);
    assert_eq!(server.get("/v1/models/other").status, 404);
    assert_eq!(server.get("/health").json()["status"], "ok");
    let applied = server.post("/apply-template", &chat(json!({}))).json();
    assert_eq!(applied["prompt"], "<s>Once upon a time");
    let tokens = server.post("/tokenize", &json!({ "content": "a</s>", "with_pieces": true })).json();
    let model = Model::bundled().unwrap();
    let eos = model.tokenizer().unwrap().eos().clone();
    let ids = tokens["tokens"].as_array().unwrap().iter().map(|token| token["id"].as_u64().unwrap() as u32);
    assert!(ids.into_iter().all(|id| !eos.contains(&id)), "a text becomes no control token: {tokens}");
    let paths = server.get("/openapi.json").json()["paths"].as_object().unwrap().len();
    assert!(paths >= 12, "{paths} paths");
    server.post("/v1/chat/completions", &chat(json!({})));
    for (name, value) in [
        ("ragtag_new_tokens_total", 8.0),
        ("vllm:generation_tokens_total", 8.0),
        ("vllm:num_requests_running", 0.0),
        ("vllm:time_to_first_token_seconds_count", 1.0),
        ("ragtag_kv_cache_used_ratio", 0.0),
    ] {
        assert_eq!(server.metric(name), value, "{name}");
    }
}

/// The page is well-formed and loads nothing from other servers. Its state follows the pipeline.
#[test]
fn the_page_shows_the_pipeline() {
    let server = Server::start(&["--cpu-devices", "2", "--split", "0-6=cpu:0,7-13=cpu:1"]);
    let page = server.get("/");
    let parts = ["content-type: text/html", "content-security-policy: default-src 'none'", "nosniff"];
    assert!(parts.iter().all(|part| page.head.contains(part)), "{}", page.head);
    let xml = page.body.strip_prefix("<!DOCTYPE html>").unwrap();
    let xml = roxmltree::Document::parse(xml).unwrap();
    let loads = |name: &str| xml.descendants().filter_map(|node| node.attribute(name)).collect::<Vec<_>>();
    for file in loads("src").into_iter().chain(loads("href")) {
        assert_eq!(server.get(&format!("/{file}")).status, 200, "{file}");
    }
    let titles = xml.descendants().filter(|node| node.has_tag_name("h2")).filter_map(|node| node.text());
    let titles: Vec<_> = titles.collect();
    assert_eq!(titles, ["Pipeline", "Timeline", "Predicted and measured", "Chat", "Plan", "Receipt"]);

    let answer = server.post("/v1/chat/completions", &chat(json!({ "max_tokens": 40 }))).json();
    let tokens = answer["usage"]["completion_tokens"].as_u64();
    let mut first = Value::Null;
    until("a sample has the tokens", || {
        first = server.get("/internal/state").json()["pipeline"].clone();
        let last = first["samples"].as_array().unwrap().last();
        last.is_some_and(|sample| sample["new_tokens"].as_u64() >= tokens)
    });
    let last = first["samples"].as_array().unwrap().last().unwrap();
    assert_eq!(
        (last["busy_us"].as_array().unwrap().len(), last["link_bytes"].as_array().unwrap().len()),
        (2, 1)
    );
    assert!(last["link_bytes"][0].as_u64() > Some(0), "{last}");
    assert_eq!(first["devices"][1]["segments"], json!([7, 13]));
    assert_eq!(
        (&first["plan"]["stages"][1]["device"], first["routes"].as_array().unwrap().len()),
        (&json!("cpu:1"), 1)
    );
    assert!(first["latency_s"]["next_token"]["p99"].as_f64() > Some(0.0), "{first}");
    let places = first["compared"].as_array().unwrap().iter().map(|part| part["place"].as_str().unwrap());
    let places: Vec<_> = places.collect();
    assert!(places.contains(&"stage") && places.contains(&"edge"), "{places:?}");
    // Later requests get only what is new.
    let since = server.get(&format!("/internal/state?since={}", last["at_ms"])).json()["pipeline"].clone();
    assert!(since.get("plan").is_none() && since["samples"].as_array().unwrap().len() < 100);
    let receipt = server.get("/internal/receipt").json();
    assert_eq!((&receipt["ragtag_receipt"], &receipt["plan"]), (&json!(1), &first["plan"]));
}

fn load(arguments: &[&str]) -> std::process::Output {
    ragtag().env_remove("RAGTAG_API_KEY").args(["load", "--quiet"]).args(arguments).output().unwrap()
}

#[test]
fn a_load_is_measured_and_its_failures_are_counted() {
    let server = Server::start(&["--api-key", "secret"]);
    let url = format!("http://{}", server.address);
    let lengths =
        ["-n", "6", "-c", "3", "-p", "64", "--shared-tokens", "32", "-t", "8", "--api-key", "secret"];
    let run = |more: &[&str]| load(&[&[url.as_str()], &lengths[..], more].concat());
    for (more, api) in [(&[][..], "chat"), (&["--completions"], "completions")] {
        let output = run(&[more, &["--json"]].concat());
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((report["answers"].as_u64(), &report["api"]), (Some(6), &json!(api)), "{report}");
        assert_eq!((report["new_tokens"].as_u64(), &report["measured_by"]), (Some(48), &json!("/tokenize")));
        let prompt = report["prompt_tokens"].as_f64().unwrap() / 6.0;
        assert!((60.0..=70.0).contains(&prompt), "{prompt} tokens");
        for time in ["first_token", "next_token", "answer"] {
            let [p50, p99] = ["p50_s", "p99_s"].map(|name| report[time][name].as_f64().unwrap());
            assert!(p50 > 0.0 && p50 <= p99, "{time}: {report}");
        }
    }
    let url_v1 = format!("{url}/v1");
    let output = load(&[&[url_v1.as_str()], &lengths[..2], &lengths[4..], &["--rate", "100"]].concat());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("6 of 6 answers") && text.contains("100 requests/s"), "{text}");

    // Refusals are counted by reason. A load without an answer fails.
    let output = run(&["--fields", "{\"mirostat\": 2}"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("6 × status 400: mirostat is not supported"), "{text}");
    assert_eq!(output.status.code(), Some(1));
    for (arguments, code, part) in [
        (&[url.as_str()][..], 1, "status 401"),
        (&["http://127.0.0.1:1"], 1, "127.0.0.1:1"),
        (&["127.0.0.1:1"], 2, "expected a URL"),
        (&["https://localhost"], 2, "certificates"),
        (&["http://localhost", "--shared-tokens", "900"], 2, "--shared-tokens"),
    ] {
        let output = load(arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(code) && errors.contains(part), "{arguments:?}: {errors}");
    }
}

#[cfg(unix)]
#[test]
fn an_interrupted_load_prints_what_there_is() {
    let server = Server::start(&[]);
    let mut command = Command::new(env!("CARGO_BIN_EXE_ragtag"));
    command.args([
        "load",
        &format!("http://{}", server.address),
        "-n",
        "100000",
        "-c",
        "2",
        "-p",
        "8",
        "-t",
        "4",
        "--json",
        "-q",
    ]);
    let child = command.stdout(Stdio::piped()).spawn().unwrap();
    until("answers have ended", || server.metric("ragtag_answers_total") >= 4.0);
    let stopped = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(stopped.success());
    let output = child.wait_with_output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &report["is_interrupted"]), (Some(0), &json!(true)));
    let answers = report["answers"].as_u64().unwrap();
    assert!((1..100_000).contains(&answers), "{answers}");
}

/// Starts a long stream and waits for its first token.
fn long_stream(server: &Server) -> BufReader<TcpStream> {
    let body = chat(json!({ "stream": true, "max_tokens": 100_000, "temperature": 0 }));
    let mut stream =
        BufReader::new(server.send("POST", "/v1/chat/completions", "", body.to_string().as_bytes()));
    let mut line = String::new();
    while !line.contains("\"content\":\"") || line.contains("\"content\":\"\"") {
        line.clear();
        assert_ne!(stream.read_line(&mut line).unwrap(), 0, "the stream ended");
    }
    stream
}

#[test]
fn a_disconnect_frees_the_blocks() {
    let server = Server::start(&[]);
    let stream = long_stream(&server);
    assert_eq!(server.metric("ragtag_requests_running"), 1.0);
    assert!(server.metric("ragtag_kv_cache_used_ratio") > 0.0);
    drop(stream);
    until("the sequence ends", || server.metric("ragtag_requests_running") == 0.0);
    assert_eq!(server.metric("ragtag_kv_cache_used_ratio"), 0.0);
}

#[test]
fn a_full_queue_is_busy_and_recovers() {
    let server = Server::start(&["--queue", "1", "--parallel", "1"]);
    let prompts: Vec<_> = (0..8).map(|n| n.to_string() + &" word".repeat(60)).collect();
    let refused = server.post("/v1/completions", &json!({ "prompt": prompts, "max_tokens": 300 }));
    assert_eq!(refused.status, 429, "{}", refused.body);
    assert!(
        refused.head.contains("retry-after: 1") && refused.body.contains("rate_limit_error"),
        "{}",
        refused.body
    );
    until("the answers that had begun are cancelled", || server.metric("ragtag_requests_running") == 0.0);
    assert_eq!(server.post("/v1/completions", &json!({ "prompt": "a" })).status, 200);
}

#[test]
fn connections_that_stall_are_closed_and_their_number_is_bounded() {
    let server = Server::start(&["--patience", "1", "--connections-per-address", "3"]);
    let start = Instant::now();
    let mut idle = server.connect();
    let mut slow_head = server.connect();
    slow_head.write_all(b"GET /health HTTP/1.1\r\nhost: ").unwrap();
    let mut slow_body = server.connect();
    let head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{";
    slow_body.write_all(head.as_bytes()).unwrap();
    assert_eq!(server.get("/health").status, 503, "a fourth connection");
    assert_eq!(answer(slow_body).status, 408);
    let mut rest = Vec::new();
    idle.read_to_end(&mut rest).unwrap();
    let _ = slow_head.read_to_end(&mut rest);
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    until("new connections are accepted", || server.get("/health").status == 200);
}

#[cfg(unix)]
#[test]
fn a_signal_lets_answers_end() {
    let mut server = Server::start(&[]);
    let mut stream = long_stream(&server);
    let stopped = Command::new("kill")
        .args(["-TERM", &server.child.as_ref().unwrap().id().to_string()])
        .status()
        .unwrap();
    assert!(stopped.success());
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("\"finish_reason\":\"length\"") && rest.contains("[DONE]"), "{rest}");
    assert_eq!(server.child.as_mut().unwrap().wait().unwrap().code(), Some(0));
}

/// Paths of models whose names in the API are these.
fn models(names: [&str; 2]) -> [String; 2] {
    names.map(|name| model_path(name).display().to_string())
}

impl Server {
    /// Returns the models that are loaded according to `/v1/models`.
    fn loaded(&self) -> Vec<String> {
        let models = self.get("/v1/models").json()["data"].as_array().unwrap().clone();
        let loaded = models.iter().filter(|model| model["is_loaded"] == true);
        loaded.map(|model| model["id"].as_str().unwrap().to_owned()).collect()
    }
}

#[test]
fn models_are_loaded_by_name_and_stay_if_they_fit() {
    let [first, second] = models(["tales-q4_0", "tales-q8_0"]);
    let server = Server::start(&[&first, &second, "--ctx", "256", "--alias", "one", "--alias", "two"]);
    assert_eq!(server.loaded(), ["one"]);
    let ask = |model: Option<&str>| {
        let body = json!({ "model": model, "prompt": "Once upon a time", "temperature": 0, "max_tokens": 8 });
        let answer = server.post("/v1/completions", &body).json();
        let text = answer["choices"][0]["text"].as_str().unwrap_or_default().to_owned();
        (answer["model"].as_str().unwrap_or_default().to_owned(), text)
    };
    let [two, one] = [ask(Some("two")), ask(None)];
    assert_eq!([&two.0, &one.0], ["two", "one"]);
    assert_eq!(server.loaded(), ["one", "two"]);
    // The file name is a name, too.
    assert_eq!(ask(Some("tales-q8_0.gguf")), two);
    assert!(!one.1.is_empty() && !two.1.is_empty());
    let unknown = server.post("/v1/completions", &json!({ "model": "three", "prompt": "a" }));
    assert_eq!(unknown.status, 404);
    assert!(unknown.body.contains("this server has \\\"one\\\", \\\"two\\\""), "{}", unknown.body);
    let metrics = server.get("/metrics").body;
    for line in ["ragtag_answers_total{model_name=\"one\"} 1", "ragtag_answers_total{model_name=\"two\"} 2"] {
        assert!(metrics.contains(line), "{metrics}");
    }
    assert_eq!(metrics.matches("# HELP ragtag_answers ").count(), 1);
}

/// Without `--ctx`, a plan uses all memory. A model waits until another one has answered, and replaces it.
#[test]
fn a_model_replaces_another_one_after_its_answers() {
    let [first, second] = models(["tales-bitnet-tq2_0", "tales-q8_0"]);
    let server = Server::start(&[&first, &second]);
    let mut stream = long_stream(&server);
    let ask = |model: Option<&str>| {
        server.post("/v1/completions", &json!({ "model": model, "prompt": "a", "max_tokens": 4 })).status
    };
    assert_eq!((ask(Some("tales-q8_0")), server.loaded()), (200, vec!["tales-q8_0".to_owned()]));
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("\"finish_reason\":\"length\"") && rest.contains("[DONE]"), "{rest}");
    // The first model is loaded again.
    assert_eq!((ask(None), server.loaded()), (200, vec!["tales-bitnet-tq2_0".to_owned()]));
}

#[test]
fn an_idle_model_is_unloaded_and_loaded_again() {
    let server = Server::start(&["--keep-alive", "1"]);
    until("the model is unloaded", || server.loaded().is_empty());
    assert_eq!(server.get("/health").status, 200);
    assert_eq!(server.get("/internal/state").json()["model"], Value::Null);
    assert_eq!(server.post("/v1/chat/completions", &chat(json!({}))).status, 200);
    assert_eq!(server.loaded().len(), 1);
}

#[test]
fn a_model_that_cannot_be_loaded_is_named_and_the_others_answer() {
    let [first, _] = models(["tales-q4_0", "tales-q8_0"]);
    let server = Server::start(&[&first, "/nowhere/missing.gguf", "--ctx", "256"]);
    let ask = |model: &str| {
        server.post("/v1/completions", &json!({ "model": model, "prompt": "a", "max_tokens": 4 }))
    };
    let missing = ask("missing");
    assert_eq!(missing.status, 503, "{}", missing.body);
    assert!(missing.body.contains("cannot load missing: "), "{}", missing.body);
    assert_eq!(ask("tales-q4_0").status, 200);
    assert_eq!(server.get("/health").status, 200);
    let twice = ragtag().args(["serve", "--port", "0", &first, &first]).output().unwrap();
    let said = String::from_utf8_lossy(&twice.stderr);
    assert_eq!(twice.status.code(), Some(2), "{said}");
    assert!(said.contains("two models are called tales-q4_0"), "{said}");
}
