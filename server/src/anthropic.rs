//! `/v1/messages` of Anthropic's API.

use crate::answer::{Choice, Ended, Finish, Usage, usage};
use crate::constraint::{AnswerFormat, Calls};
use crate::job::{self, Chat, Events, Input, Job, Named, Rest, Settings, Stamp, Writer};
use crate::openai::conversation;
use crate::refusal::{Refusal, Shape};
use crate::tools::Part;
use ragtag_engine::Sampling;
use ragtag_engine::chat::{Data, Message};
use ragtag_engine::grammar::Grammar;
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

/// Fields that clients send to every server, and that change no answer.
const HARMLESS: &[&str] = &["metadata", "service_tier", "cache_control"];

/// A conversation, to which the model answers.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct MessagesRequest {
    model: Option<String>,
    messages: Vec<Turn>,
    /// Maximum number of tokens of the answer. Required, except to count tokens.
    #[schema(minimum = 1)]
    max_tokens: Option<u32>,
    system: Option<Blocks>,
    stream: Option<bool>,
    stop_sequences: Option<Vec<String>>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<u32>,
    tools: Option<Vec<Tool>>,
    tool_choice: Option<ToolChoice>,
    /// Only the types `disabled` and `adaptive`.
    thinking: Option<Thinking>,
    output_config: Option<OutputConfig>,
    #[serde(flatten)]
    #[schema(ignore)]
    rest: Rest,
}

/// A message.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct Turn {
    /// `user` or `assistant`.
    role: String,
    content: Blocks,
}

/// A text, or blocks.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum Blocks {
    Text(String),
    Blocks(Vec<Block>),
}

/// A block of a message.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Block {
    Text {
        text: String,
    },
    Thinking {
        thinking: String,
    },
    ToolUse {
        id: String,
        name: String,
        #[schema(value_type = serde_json::Map<String, Value>)]
        input: Data,
    },
    ToolResult {
        tool_use_id: String,
        #[schema(no_recursion)]
        content: Option<Box<Blocks>>,
    },
}

/// A function that the model may call.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct Tool {
    /// `custom`, or absent.
    #[serde(rename = "type")]
    kind: Option<String>,
    name: String,
    description: Option<String>,
    #[schema(value_type = Option<serde_json::Map<String, Value>>)]
    input_schema: Option<Data>,
}

/// Whether the model may call functions.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(crate) struct ToolChoice {
    /// `auto`, `none`, `any` or `tool`.
    #[serde(rename = "type")]
    kind: String,
    /// Name of the function that is called, for the type `tool`.
    name: Option<String>,
    disable_parallel_tool_use: Option<bool>,
}

/// Whether the model reasons before it answers.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct Thinking {
    #[serde(rename = "type")]
    kind: String,
}

/// Settings of the answer.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct OutputConfig {
    /// Effort of the reasoning, for templates that know it.
    effort: Option<String>,
    format: Option<AnswerFormat>,
    #[serde(flatten)]
    #[schema(ignore)]
    rest: Rest,
}

impl Blocks {
    fn text(&self) -> Result<String, Refusal> {
        let blocks = match self {
            Self::Text(text) => return Ok(text.clone()),
            Self::Blocks(blocks) => blocks,
        };
        let texts = blocks.iter().map(|block| match block {
            Block::Text { text } => Ok(text.as_str()),
            _ => Err(Refusal::of("messages", "only blocks of type text are supported here")),
        });
        Ok(texts.collect::<Result<Vec<_>, _>>()?.join("\n"))
    }
}

impl Turn {
    /// Adds the messages that templates expect: a message for each result of a call, and one for all other blocks.
    fn add_to(self, messages: &mut Vec<Message>) -> Result<(), Refusal> {
        let role = match self.role.as_str() {
            "user" => "user",
            "assistant" => "assistant",
            role => return Err(Refusal::of("messages", format!("unknown role {role:?}"))),
        };
        let blocks = match self.content {
            Blocks::Text(text) => vec![Block::Text { text }],
            Blocks::Blocks(blocks) => blocks,
        };
        let (mut texts, mut reasoning, mut calls) = (Vec::new(), Vec::new(), Vec::<Data>::new());
        let mut has_results = false;
        for block in blocks {
            match block {
                Block::Text { text } => texts.push(text),
                Block::Thinking { thinking } => reasoning.push(thinking),
                Block::ToolUse { id, name, input } => calls.push(job::call_of(&id, &name, input)),
                Block::ToolResult { tool_use_id, content } => {
                    let content = content.map_or(Ok(String::new()), |content| content.text())?;
                    messages.push(Message::new("tool", &content).with("tool_call_id", tool_use_id.as_str()));
                    has_results = true;
                }
            }
        }
        if has_results && texts.is_empty() && calls.is_empty() {
            return Ok(());
        }
        let mut message = Message::new(role, &texts.join("\n"));
        if !reasoning.is_empty() {
            message = message.with("reasoning_content", reasoning.join("\n").as_str());
        }
        if !calls.is_empty() {
            message = message.with("tool_calls", calls);
        }
        messages.push(message);
        Ok(())
    }
}

impl Named for MessagesRequest {
    fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }
}

impl MessagesRequest {
    /// Returns the conversation, and the grammar of the answer.
    pub(crate) fn chat(self) -> Result<(Chat, Option<Grammar>), Refusal> {
        job::check_rest(&self.rest, HARMLESS)?;
        let mut messages = Vec::new();
        if let Some(system) = &self.system {
            messages.push(Message::new("system", &system.text()?));
        }
        for turn in self.messages {
            turn.add_to(&mut messages)?;
        }
        let messages = conversation(messages)?;
        match messages.last().and_then(Message::role) {
            Some("assistant") => {
                return Err(Refusal::of(
                    "messages",
                    "the last message must be of the user: answers cannot be prefilled",
                ));
            }
            Some("system") => return Err(Refusal::of("messages", "the list of messages is empty")),
            _ => {}
        }
        let (mut chat, mut grammar) = (Chat { messages, ..Chat::default() }, None);
        if let Some(output) = self.output_config {
            job::check_rest(&output.rest, &[])?;
            chat.effort = job::effort("output_config.effort", output.effort)?;
            let format = output.format.map(|format| format.grammar("output_config.format"));
            grammar = format.transpose()?.flatten();
        }
        match self.thinking.as_ref().map(|thinking| thinking.kind.as_str()) {
            None | Some("adaptive") => {}
            Some("disabled") => chat.effort = Some("none".into()),
            Some(_) => return Err(Refusal::of("thinking", "a budget for thinking is not supported")),
        }
        let choice = self.tool_choice.unwrap_or_default();
        chat.takes_one_call = choice.disable_parallel_tool_use == Some(true);
        let tools = self.tools.unwrap_or_default();
        if tools.iter().any(|tool| tool.kind.as_deref().is_some_and(|kind| kind != "custom")) {
            return Err(Refusal::of("tools", "only tools of the client are supported (type custom)"));
        }
        chat.calls = match (choice.kind.as_str(), choice.name) {
            ("none", _) => return Ok((chat, grammar)),
            // The default has no type.
            ("" | "auto", _) => Calls::Free,
            ("any", _) => Calls::Required,
            ("tool", Some(name)) => Calls::Of(name),
            (kind, _) => {
                let message =
                    format!("tool_choice {kind} is not supported: use auto, none, any or tool with a name");
                return Err(Refusal::of("tool_choice", message));
            }
        };
        let tools = tools.into_iter();
        let tools = tools.map(|it| job::function(&it.name, it.description.as_deref(), it.input_schema));
        chat.tools = job::tools(tools.collect())?;
        chat.calls.check(&chat.tools)?;
        Ok((chat, grammar))
    }

    pub(crate) fn job(mut self, stamp: &Stamp) -> Result<Job, Refusal> {
        let Some(max_tokens) = self.max_tokens else {
            return Err(Refusal::of("max_tokens", "max_tokens is missing"));
        };
        let sampling = Sampling {
            temperature: self.temperature.unwrap_or(1.0),
            top_p: self.top_p.unwrap_or(1.0),
            top_k: self.top_k.unwrap_or(0),
            min_p: 0.0,
            seed: Some(stamp.seed),
            ..Sampling::default()
        };
        let stop = self.stop_sequences.take().unwrap_or_default();
        let settings = job::settings(sampling, Some(max_tokens), stop.clone(), 1)?;
        let is_stream = self.stream.unwrap_or(false);
        let (chat, grammar) = self.chat()?;
        let settings = Settings { grammar, ..settings };
        let writer = MessagesWriter { stamp: stamp.clone(), stop, blocks: 0, open: None, calls: 0 };
        Ok(Job { prompts: vec![Input::Chat(chat)], settings, is_stream, writer: Box::new(writer) })
    }
}

/// Type of the content block that a stream is in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Open {
    Text,
    Thinking,
    ToolUse,
}

struct MessagesWriter {
    stamp: Stamp,
    /// Stop strings of the request.
    stop: Vec<String>,
    /// Number of blocks that have ended.
    blocks: usize,
    open: Option<Open>,
    calls: usize,
}

impl MessagesWriter {
    fn call_id(&self, index: usize) -> String {
        format!("toolu_{}_{index}", self.stamp.id)
    }

    fn message(&self) -> Value {
        json!({
            "id": format!("msg_{}", self.stamp.id),
            "type": "message",
            "role": "assistant",
            "model": self.stamp.model,
            "content": [],
            "stop_reason": null,
            "stop_sequence": null,
        })
    }

    /// Returns the reason for the end, and the stop string that appeared.
    fn reason(&self, ended: &Ended) -> Value {
        let reason = match ended.finish {
            Finish::Stop => "end_turn",
            Finish::StopString => "stop_sequence",
            Finish::Length => "max_tokens",
            Finish::Calls => "tool_use",
        };
        let stop = ended.stop.filter(|_| ended.finish == Finish::StopString);
        let stop = stop.and_then(|index| self.stop.get(index as usize));
        json!({ "stop_reason": reason, "stop_sequence": stop })
    }

    /// Ends the current block unless it is of the type `next`, and begins that one.
    fn enter(&mut self, next: Option<Open>, content: &Value, out: &mut Events) {
        if self.open.is_some() && self.open == next && next != Some(Open::ToolUse) {
            return;
        }
        if self.open.is_some() {
            out.named("content_block_stop", &json!({ "type": "content_block_stop", "index": self.blocks }));
            self.blocks += 1;
        }
        self.open = next;
        if next.is_some() {
            let start =
                json!({ "type": "content_block_start", "index": self.blocks, "content_block": content });
            out.named("content_block_start", &start);
        }
    }

    fn delta(&self, delta: &Value, out: &mut Events) {
        let delta = json!({ "type": "content_block_delta", "index": self.blocks, "delta": delta });
        out.named("content_block_delta", &delta);
    }
}

fn usage_json(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.prompt - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.new,
    })
}

impl Writer for MessagesWriter {
    fn begin(&mut self, _: usize, prompt_tokens: u64, out: &mut Events) {
        let mut message = self.message();
        message["usage"] = usage_json(Usage { prompt: prompt_tokens, ..Usage::default() });
        out.named("message_start", &json!({ "type": "message_start", "message": message }));
    }

    fn part(&mut self, _: usize, part: &Part, out: &mut Events) {
        match part {
            Part::Reasoning(text) => {
                let block = json!({ "type": "thinking", "thinking": "", "signature": "" });
                self.enter(Some(Open::Thinking), &block, out);
                self.delta(&json!({ "type": "thinking_delta", "thinking": text }), out);
            }
            Part::Text(text) => {
                self.enter(Some(Open::Text), &json!({ "type": "text", "text": "" }), out);
                self.delta(&json!({ "type": "text_delta", "text": text }), out);
            }
            Part::Call { name } => {
                let block =
                    json!({ "type": "tool_use", "id": self.call_id(self.calls), "name": name, "input": {} });
                self.enter(Some(Open::ToolUse), &block, out);
                self.calls += 1;
            }
            Part::Arguments(text) => {
                self.delta(&json!({ "type": "input_json_delta", "partial_json": text }), out)
            }
        }
    }

    fn end(&mut self, _: usize, _: &Ended, out: &mut Events) {
        self.enter(None, &Value::Null, out);
    }

    fn finish(&mut self, choices: &[Choice], out: &mut Events) {
        if let Some(ended) = choices.first().and_then(|choice| choice.ended) {
            let usage = usage_json(ended.usage);
            let delta = json!({ "type": "message_delta", "delta": self.reason(&ended), "usage": usage });
            out.named("message_delta", &delta);
        }
        out.named("message_stop", &json!({ "type": "message_stop" }));
    }

    fn failed(&mut self, refusal: &Refusal, out: &mut Events) {
        out.named("error", &refusal.body(Shape::Anthropic));
    }

    fn ping(&self, out: &mut Events) {
        out.named("ping", &json!({ "type": "ping" }));
    }

    fn whole(&self, choices: &[Choice]) -> Value {
        let mut message = self.message();
        let Some((choice, ended)) = choices.first().and_then(|choice| Some((choice, choice.ended?))) else {
            return message;
        };
        let mut content = Vec::new();
        if !choice.reasoning.is_empty() {
            content.push(json!({ "type": "thinking", "thinking": choice.reasoning, "signature": "" }));
        }
        if !choice.text.is_empty() {
            content.push(json!({ "type": "text", "text": choice.text }));
        }
        for (index, call) in choice.calls.iter().enumerate() {
            let input: Value = serde_json::from_str(&call.arguments).unwrap_or_else(|_| json!({}));
            let id = self.call_id(index);
            content.push(json!({ "type": "tool_use", "id": id, "name": call.name, "input": input }));
        }
        let Value::Object(reason) = self.reason(&ended) else { return message };
        if let Some(message) = message.as_object_mut() {
            message.extend(reason);
        }
        (message["content"], message["usage"]) = (content.into(), usage_json(usage(choices)));
        message
    }
}
