//! Exchanges without a model, a socket or a clock: a request and the text of its answer become what a client would read.
//! Tests and a fuzz target drive the protocols with them. Pure.

use crate::answer::{Assembler, Choice, Ended, Finish, Usage};
use crate::anthropic::MessagesRequest;
use crate::job::{Chat, Events, Input, Job, Stamp};
use crate::openai::{ChatRequest, CompletionRequest};
use crate::refusal::{Kind, Refusal, Shape};
use crate::responses::ResponsesRequest;
use crate::tools::Format;
use ragtag_engine::{Reason, ReasoningSplitter};
use serde_json::Value;

/// Answer as a client reads it.
#[derive(Clone, Debug, PartialEq)]
pub struct Exchange {
    /// The answer that is not streamed.
    pub whole: Value,
    /// The streamed events.
    pub events: String,
}

/// Answers the JSON text `request` to `route` with `answer`, which arrives in pieces of `characters` characters.
///
/// # Errors
/// Returns the body of the refusal.
pub fn exchange(route: &str, request: &str, answer: &str, characters: usize) -> Result<Exchange, Value> {
    let stamp = Stamp { id: "0".into(), created_s: 0, model: "model".into(), seed: 1 };
    let (shape, job) = match route {
        "/v1/chat/completions" => {
            (Shape::OpenAi, parsed(request, |request: ChatRequest| request.job(&stamp)))
        }
        "/v1/completions" => {
            (Shape::OpenAi, parsed(request, |request: CompletionRequest| request.job(&stamp)))
        }
        "/v1/responses" => (Shape::OpenAi, parsed(request, |request: ResponsesRequest| request.job(&stamp))),
        "/v1/messages" => (Shape::Anthropic, parsed(request, |request: MessagesRequest| request.job(&stamp))),
        _ => (Shape::OpenAi, Err(Refusal::new(Kind::NotFound, "there is no such route"))),
    };
    job.map(|job| answered(job, answer, characters)).map_err(|refusal| refusal.body(shape))
}

fn parsed<R: serde::de::DeserializeOwned>(
    request: &str,
    job: impl FnOnce(R) -> Result<Job, Refusal>,
) -> Result<Job, Refusal> {
    job(serde_json::from_str(request)?)
}

fn answered(mut job: Job, answer: &str, characters: usize) -> Exchange {
    let text: Vec<char> = answer.chars().collect();
    let count = job.prompts.len() * job.settings.n;
    let mut events = Events::default();
    if job.writer.echoes() {
        job.writer.set_echo(vec![String::from("prompt"); job.prompts.len()]);
    }
    job.writer.begin(count, 1, &mut events);
    let mut choices = Vec::new();
    for index in 0..count {
        let prompt = index / job.settings.n;
        let mut choice = Choice { prompt, ..Choice::default() };
        let mut assembler = assembler(&job.prompts[prompt]);
        let pieces = text.chunks(characters.max(1)).map(|piece| piece.iter().collect::<String>());
        let mut parts: Vec<_> = pieces.flat_map(|piece| assembler.push(None, &piece)).collect();
        parts.extend(assembler.finish());
        for part in &parts {
            choice.add(part);
            job.writer.part(index, part, &mut events);
        }
        let finish = if choice.calls.is_empty() { Finish::Stop } else { Finish::Calls };
        let usage = Usage { prompt: 1, cached: 0, new: text.len() as u64, reasoning: 0 };
        let ended = Ended { finish, reason: Reason::End, seed: 1, stop: None, usage };
        job.writer.end(index, &ended, &mut events);
        choice.ended = Some(ended);
        choices.push(choice);
    }
    job.writer.finish(&choices, &mut events);
    Exchange { whole: job.writer.whole(&choices), events: events.0 }
}

fn assembler(input: &Input) -> Assembler {
    match input {
        Input::Chat(Chat { tools, takes_one_call, .. }) => {
            let format = (!tools.is_empty()).then_some(Format::Tagged);
            Assembler::chat(ReasoningSplitter::after(""), format, *takes_one_call)
        }
        Input::Text(_) | Input::Tokens(_) => Assembler::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const ROUTES: [&str; 4] = ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"];

    /// Returns a valid request for any of the routes.
    fn request() -> Value {
        let messages = json!([{ "role": "user", "content": "Hi" }]);
        json!({ "messages": messages, "prompt": "Hi", "input": "Hi", "max_tokens": 9 })
    }

    /// Returns a request that has only the fields of `route`, and those of `more`.
    fn for_route(route: &str, more: &Value) -> String {
        let mut request = request();
        let fields = request.as_object_mut().unwrap();
        let input = match route {
            "/v1/completions" => "prompt",
            "/v1/responses" => "input",
            _ => "messages",
        };
        fields.retain(|name, _| name == input || (name == "max_tokens" && route != "/v1/responses"));
        fields.extend(more.as_object().unwrap().clone());
        request.to_string()
    }

    #[test]
    fn hostile_requests_are_refused_in_the_shape_of_their_api() {
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        let long = "x".repeat(1 << 20);
        let nested =
            (0..100).fold(json!("x"), |value, _| json!({ "type": "object", "properties": { "a": value } }));
        let bias: serde_json::Map<String, Value> =
            (0..1025).map(|token| (token.to_string(), 1.into())).collect();
        let hostile = [
            json!({ long.as_str(): 1 }),
            json!({ "temperature": -1 }),
            json!({ "temperature": "hot" }),
            json!({ "top_p": 0 }),
            json!({ "logit_bias": bias }),
            json!({ "logit_bias": { "-1": 1 } }),
            json!({ "logit_bias": { "4294967296": 1 } }),
            json!({ "n": 1_000_000 }),
            json!({ "stop": vec!["a"; 65] }),
            json!({ "tool_choice": "required" }),
            json!({ "tool_choice": { "type": "function" } }),
            json!({ "tool_choice": nested }),
            json!({ "stream": 3 }),
            json!({ "response_format": { "type": long } }),
            json!({ "text": { "format": { "type": "json_schema" } } }),
            json!({ "output_config": { "format": { "type": "json_schema" } } }),
        ];
        for route in ROUTES {
            let bodies = hostile.iter().map(|more| for_route(route, more));
            for body in
                bodies.chain([deep.clone(), String::new(), "null".into(), "{\"model\": 1e999}".into()])
            {
                let refusal = exchange(route, &body, "x", 1).unwrap_err();
                let start = body.get(..60).unwrap_or(&body);
                assert!(refusal.to_string().len() < 4000, "{route} {start}: long");
                assert!(refusal["error"]["message"].is_string(), "{route} {start}: {refusal}");
            }
        }
    }

    #[test]
    fn all_parts_of_an_answer_reach_the_client() {
        for route in ROUTES {
            let answered = exchange(route, &for_route(route, &json!({})), "Hello", 2).unwrap();
            assert!(answered.whole.to_string().contains("Hello"), "{answered:?}");
            assert!(["He", "ll", "o"].iter().all(|piece| answered.events.contains(piece)), "{answered:?}");
        }
    }
}
