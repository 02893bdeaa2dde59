//! `/v1/responses` of OpenAI's API. The server keeps no responses.

use crate::answer::{Choice, Ended, Finish, Usage, usage};
use crate::constraint::AnswerFormat;
use crate::job::{self, Chat, Events, Input, Job, Named, Rest, Settings, Stamp, Writer};
use crate::openai::{Content, ContentPart, callable, conversation};
use crate::refusal::{Refusal, Shape};
use crate::tools::Part;
use ragtag_engine::Sampling;
use ragtag_engine::chat::{Data, Message};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

/// Fields that clients send to every server, and that change no answer.
const HARMLESS: &[&str] =
    &["user", "metadata", "store", "service_tier", "prompt_cache_key", "safety_identifier", "include"];

/// Input of a response.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct ResponsesRequest {
    model: Option<String>,
    input: Items,
    instructions: Option<String>,
    max_output_tokens: Option<u32>,
    stream: Option<bool>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    tools: Option<Vec<Tool>>,
    /// `auto`, `none`, `required`, or a function.
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    reasoning: Option<Reasoning>,
    text: Option<Text>,
    /// Only `disabled`.
    truncation: Option<String>,
    #[serde(flatten)]
    #[schema(ignore)]
    rest: Rest,
}

/// A text of the user, or items.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum Items {
    Text(String),
    Items(Vec<Item>),
}

/// A message, a call, the result of a call, or earlier reasoning.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct Item {
    /// `message`, `function_call`, `function_call_output` or `reasoning`.
    #[serde(rename = "type")]
    kind: Option<String>,
    role: Option<String>,
    content: Option<Content>,
    call_id: Option<String>,
    name: Option<String>,
    arguments: Option<String>,
    output: Option<Content>,
}

/// A function that the model may call.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct Tool {
    /// `function`.
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    name: String,
    description: Option<String>,
    #[schema(value_type = Option<serde_json::Map<String, Value>>)]
    parameters: Option<Data>,
}

/// Reasoning before the answer.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct Reasoning {
    effort: Option<String>,
}

/// Format of the answer.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct Text {
    format: Option<AnswerFormat>,
    #[serde(flatten)]
    #[schema(ignore)]
    rest: Rest,
}

impl Items {
    fn messages(self, instructions: Option<String>) -> Result<Vec<Message>, Refusal> {
        let mut messages = Vec::new();
        messages.extend(instructions.map(|text| Message::new("system", &text)));
        let items = match self {
            Self::Text(text) => {
                messages.push(Message::new("user", &text));
                return Ok(messages);
            }
            Self::Items(items) => items,
        };
        let (mut calls, mut reasoning) = (Vec::<Data>::new(), None);
        for item in items {
            if item.kind.as_deref() != Some("function_call") && !calls.is_empty() {
                messages.push(Message::new("assistant", "").with("tool_calls", std::mem::take(&mut calls)));
            }
            let text = |content: Option<Content>| content.map_or(Ok(String::new()), Content::text);
            match item.kind.as_deref() {
                None | Some("message") => {
                    let role = match item.role.as_deref() {
                        Some("system" | "developer") => "system",
                        Some("user") => "user",
                        Some("assistant") => "assistant",
                        _ => return Err(Refusal::of("input", "a message needs a known role")),
                    };
                    let mut message = Message::new(role, &text(item.content)?);
                    if let Some(reasoning) = reasoning.take().filter(|_| role == "assistant") {
                        let reasoning: String = reasoning;
                        message = message.with("reasoning_content", reasoning.as_str());
                    }
                    messages.push(message);
                }
                Some("reasoning") => reasoning = item.content.map(reasoning_text),
                Some("function_call") => {
                    let (Some(id), Some(name)) = (item.call_id, item.name) else {
                        return Err(Refusal::of("input", "a function_call needs a call_id and a name"));
                    };
                    calls.push(job::call(&id, &name, &item.arguments.unwrap_or_default()));
                }
                Some("function_call_output") => {
                    let Some(id) = item.call_id else {
                        return Err(Refusal::of("input", "a function_call_output needs a call_id"));
                    };
                    let content = text(item.output)?;
                    messages.push(Message::new("tool", &content).with("tool_call_id", id.as_str()));
                }
                Some(kind) => {
                    return Err(Refusal::of("input", format!("items of type {kind:?} are not supported")));
                }
            }
        }
        if !calls.is_empty() {
            messages.push(Message::new("assistant", "").with("tool_calls", calls));
        }
        Ok(messages)
    }
}

/// Returns the text of earlier reasoning.
fn reasoning_text(content: Content) -> String {
    match content {
        Content::Text(text) => text,
        Content::Parts(parts) => {
            parts.into_iter().filter_map(ContentPart::into_text).collect::<Vec<_>>().join("\n")
        }
    }
}

impl Named for ResponsesRequest {
    fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }
}

impl ResponsesRequest {
    pub(crate) fn job(self, stamp: &Stamp) -> Result<Job, Refusal> {
        job::check_rest(&self.rest, HARMLESS)?;
        if self.truncation.is_some_and(|truncation| truncation != "disabled") {
            return Err(Refusal::unsupported("truncation"));
        }
        let wants_logs = |include: &Value| include.to_string().contains("logprobs");
        if self.rest.get("include").is_some_and(wants_logs) {
            return Err(Refusal::unsupported("include: logprobs"));
        }
        let grammar = self.text.map(|text| {
            job::check_rest(&text.rest, &["verbosity"])?;
            text.format.map(|format| format.grammar("text.format")).transpose()
        });
        let grammar = grammar.transpose()?.flatten().flatten();
        let tools = self.tools.unwrap_or_default();
        if tools.iter().any(|tool| tool.kind != "function") {
            return Err(Refusal::of("tools", "only tools of the type function are supported"));
        }
        let tools = tools.into_iter();
        let tools = tools.map(|it| job::function(&it.name, it.description.as_deref(), it.parameters));
        let (tools, calls) = callable(tools.collect(), self.tool_choice.as_ref())?;
        let takes_one_call = self.parallel_tool_calls == Some(false);
        let chat = Chat {
            messages: conversation(self.input.messages(self.instructions)?)?,
            tools,
            calls,
            takes_one_call,
            effort: job::effort("reasoning.effort", self.reasoning.and_then(|reasoning| reasoning.effort))?,
            ..Chat::default()
        };
        let sampling = Sampling {
            temperature: self.temperature.unwrap_or(1.0),
            top_p: self.top_p.unwrap_or(1.0),
            top_k: 0,
            min_p: 0.0,
            seed: Some(stamp.seed),
            ..Sampling::default()
        };
        let settings = job::settings(sampling, self.max_output_tokens, Vec::new(), 1)?;
        let settings = Settings { grammar, ..settings };
        let writer = ResponsesWriter {
            stamp: stamp.clone(),
            settings: json!({
                "max_output_tokens": self.max_output_tokens,
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "parallel_tool_calls": !takes_one_call,
                "tool_choice": self.tool_choice.unwrap_or_else(|| "auto".into()),
            }),
            events: 0,
            items: Vec::new(),
            open: None,
        };
        Ok(Job {
            prompts: vec![Input::Chat(chat)],
            settings,
            is_stream: self.stream.unwrap_or(false),
            writer: Box::new(writer),
        })
    }
}

/// An item of the answer that a stream is in.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Open {
    Reasoning(String),
    Message(String),
    Call { name: String, arguments: String },
}

impl Open {
    fn of(part: &Part) -> Self {
        match part {
            Part::Reasoning(_) => Self::Reasoning(String::new()),
            Part::Text(_) => Self::Message(String::new()),
            Part::Call { name } => Self::Call { name: name.clone(), arguments: String::new() },
            Part::Arguments(_) => Self::Call { name: String::new(), arguments: String::new() },
        }
    }

    /// Returns whether `part` continues the item.
    fn takes(&self, part: &Part) -> bool {
        matches!(
            (self, part),
            (Self::Reasoning(_), Part::Reasoning(_))
                | (Self::Message(_), Part::Text(_))
                | (Self::Call { .. }, Part::Arguments(_))
        )
    }

    fn text(&mut self) -> &mut String {
        match self {
            Self::Reasoning(text) | Self::Message(text) | Self::Call { arguments: text, .. } => text,
        }
    }

    /// Returns the names of the events with its text, and the type of its content.
    fn names(&self) -> (&'static str, &'static str, Option<&'static str>) {
        match self {
            Self::Reasoning(_) => ("response.reasoning_text", "text", Some("reasoning_text")),
            Self::Message(_) => ("response.output_text", "text", Some("output_text")),
            Self::Call { .. } => ("response.function_call_arguments", "arguments", None),
        }
    }

    /// Returns the item with the given index.
    fn item(&self, stamp: &Stamp, index: usize, status: &str) -> Value {
        let id = &stamp.id;
        match self {
            Self::Reasoning(text) => json!({
                "id": format!("rs_{id}_{index}"),
                "type": "reasoning",
                "summary": [],
                "content": content("reasoning_text", text),
                "status": status,
            }),
            Self::Message(text) => json!({
                "id": format!("msg_{id}_{index}"),
                "type": "message",
                "role": "assistant",
                "content": content("output_text", text),
                "status": status,
            }),
            Self::Call { name, arguments } => json!({
                "id": format!("fc_{id}_{index}"),
                "type": "function_call",
                "call_id": format!("call_{id}_{index}"),
                "name": name,
                "arguments": arguments,
                "status": status,
            }),
        }
    }
}

fn content(kind: &str, text: &str) -> Value {
    if text.is_empty() { json!([]) } else { json!([content_part(kind, text)]) }
}

fn content_part(kind: &str, text: &str) -> Value {
    let mut part = json!({ "type": kind, "text": text });
    if kind == "output_text" {
        (part["annotations"], part["logprobs"]) = (json!([]), json!([]));
    }
    part
}

struct ResponsesWriter {
    stamp: Stamp,
    /// Settings of the request, which the response repeats.
    settings: Value,
    /// Number of events so far.
    events: u64,
    /// Finished items.
    items: Vec<Value>,
    open: Option<Open>,
}

impl ResponsesWriter {
    fn response(&self, status: &str, output: &[Value]) -> Value {
        let Stamp { id, created_s, model, .. } = &self.stamp;
        let mut response = json!({
            "id": format!("resp_{id}"),
            "object": "response",
            "created_at": created_s,
            "model": model,
            "status": status,
            "output": output,
            "error": null,
            "incomplete_details": null,
            "instructions": null,
            "metadata": {},
            "store": false,
            "tools": [],
            "usage": null,
        });
        if let (Value::Object(response), Value::Object(settings)) = (&mut response, &self.settings) {
            response.extend(settings.clone());
        }
        response
    }

    /// Returns the response at the end of the answer.
    fn ended(&self, ended: &Ended, usage: Usage, output: &[Value]) -> Value {
        let is_cut = ended.finish == Finish::Length;
        let mut response = self.response(if is_cut { "incomplete" } else { "completed" }, output);
        if is_cut {
            let reason = ended.detail().unwrap_or("max_output_tokens");
            response["incomplete_details"] = json!({ "reason": reason });
        }
        response["usage"] = json!({
            "input_tokens": usage.prompt,
            "input_tokens_details": { "cached_tokens": usage.cached },
            "output_tokens": usage.new,
            "output_tokens_details": { "reasoning_tokens": usage.reasoning },
            "total_tokens": usage.prompt + usage.new,
        });
        response
    }

    fn event(&mut self, name: &str, mut data: Value, out: &mut Events) {
        (data["type"], data["sequence_number"]) = (name.into(), self.events.into());
        self.events += 1;
        out.named(name, &data);
    }

    /// Returns an event about the current item.
    fn about(&self, open: &Open) -> Value {
        let id = open.item(&self.stamp, self.items.len(), "")["id"].clone();
        let mut about = json!({ "item_id": id, "output_index": self.items.len() });
        if open.names().2.is_some() {
            about["content_index"] = 0.into();
        }
        about
    }

    fn close(&mut self, out: &mut Events) {
        let Some(mut open) = self.open.take() else { return };
        let (name, field, kind) = open.names();
        let mut done = self.about(&open);
        done[field] = open.text().as_str().into();
        if let Open::Call { name, .. } = &open {
            done["name"] = name.as_str().into();
        }
        if kind == Some("output_text") {
            done["logprobs"] = json!([]);
        }
        self.event(&format!("{name}.done"), done, out);
        if let Some(kind) = kind {
            let mut part = self.about(&open);
            part["part"] = content_part(kind, open.text());
            self.event("response.content_part.done", part, out);
        }
        let item = open.item(&self.stamp, self.items.len(), "completed");
        let done = json!({ "output_index": self.items.len(), "item": item });
        self.event("response.output_item.done", done, out);
        self.items.push(item);
    }
}

impl Writer for ResponsesWriter {
    fn begin(&mut self, _: usize, _: u64, out: &mut Events) {
        for name in ["response.created", "response.in_progress"] {
            let response = self.response("in_progress", &[]);
            self.event(name, json!({ "response": response }), out);
        }
    }

    fn part(&mut self, _: usize, part: &Part, out: &mut Events) {
        if !self.open.as_ref().is_some_and(|open| open.takes(part)) {
            self.close(out);
            let open = Open::of(part);
            let item = open.item(&self.stamp, self.items.len(), "in_progress");
            let added = json!({ "output_index": self.items.len(), "item": item });
            self.event("response.output_item.added", added, out);
            if let Some(kind) = open.names().2 {
                let mut added = self.about(&open);
                added["part"] = content_part(kind, "");
                self.event("response.content_part.added", added, out);
            }
            self.open = Some(open);
        }
        let (Part::Reasoning(text) | Part::Text(text) | Part::Arguments(text)) = part else { return };
        let Some(mut open) = self.open.take() else { return };
        open.text().push_str(text);
        let mut delta = self.about(&open);
        delta["delta"] = text.as_str().into();
        if let Open::Message(_) = open {
            delta["logprobs"] = json!([]);
        }
        let name = format!("{}.delta", open.names().0);
        self.open = Some(open);
        self.event(&name, delta, out);
    }

    fn end(&mut self, _: usize, _: &Ended, out: &mut Events) {
        self.close(out);
    }

    fn finish(&mut self, choices: &[Choice], out: &mut Events) {
        let Some(ended) = choices.first().and_then(|choice| choice.ended) else { return };
        let response = self.ended(&ended, usage(choices), &self.items);
        let name = if ended.finish == Finish::Length { "response.incomplete" } else { "response.completed" };
        self.event(name, json!({ "response": response }), out);
    }

    fn failed(&mut self, refusal: &Refusal, out: &mut Events) {
        let mut response = self.response("failed", &self.items);
        let error = refusal.body(Shape::OpenAi)["error"].take();
        response["error"] = json!({ "code": "server_error", "message": error["message"] });
        self.event("response.failed", json!({ "response": response }), out);
    }

    fn whole(&self, choices: &[Choice]) -> Value {
        let Some((choice, ended)) = choices.first().and_then(|choice| Some((choice, choice.ended?))) else {
            return self.response("failed", &[]);
        };
        let mut items = Vec::new();
        if !choice.reasoning.is_empty() {
            items.push(Open::Reasoning(choice.reasoning.clone()));
        }
        if !choice.text.is_empty() || choice.calls.is_empty() {
            items.push(Open::Message(choice.text.clone()));
        }
        let calls = choice.calls.iter();
        items.extend(
            calls.map(|call| Open::Call { name: call.name.clone(), arguments: call.arguments.clone() }),
        );
        let items: Vec<_> =
            items.iter().enumerate().map(|(at, item)| item.item(&self.stamp, at, "completed")).collect();
        self.ended(&ended, usage(choices), &items)
    }
}
