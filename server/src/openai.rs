//! `/v1/chat/completions` and `/v1/completions` of OpenAI's API.

use crate::answer::{Call, Choice, Ended, Finish, Usage, usage};
use crate::constraint::{Calls, Constraints};
use crate::job::{self, Chat, Events, Input, Job, Named, OneOrMore, Rest, Sampler, Stamp, Writer};
use crate::logs::{self, Log};
use crate::refusal::{Refusal, Shape};
use crate::tools::Part;
use ragtag_engine::chat::{Data, Message, Object};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// Fields that clients send to every server, and that change no answer.
pub(crate) const HARMLESS: &[&str] = &[
    "user",
    "metadata",
    "store",
    "service_tier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
];

/// Maximum number of tokens of a completion, if the request sets none.
const COMPLETION_TOKENS: u32 = 16;

/// A chat, to which the model answers.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct ChatRequest {
    model: Option<String>,
    messages: Vec<ChatMessage>,
    max_tokens: Option<u32>,
    max_completion_tokens: Option<u32>,
    #[serde(default)]
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    /// Functions that the model may call.
    #[schema(value_type = Option<Vec<serde_json::Map<String, Value>>>)]
    tools: Option<Vec<Object>>,
    /// `auto`, `none`, `required`, or a function.
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    /// Effort of the reasoning, for templates that know it.
    reasoning_effort: Option<String>,
    /// Switches of the chat template, such as `enable_thinking`.
    chat_template_kwargs: Option<BTreeMap<String, bool>>,
    /// Whether to report the log probabilities of the tokens.
    logprobs: Option<bool>,
    /// Number of most likely tokens to report beside each token.
    #[schema(maximum = 20)]
    top_logprobs: Option<u32>,
    #[serde(flatten)]
    sampler: Sampler,
    // Not a part of `Sampler`: serde does not know which fields a struct takes if it contains another flattened one.
    #[serde(flatten)]
    constraints: Constraints,
    #[serde(flatten)]
    #[schema(ignore)]
    rest: Rest,
}

/// A message of a chat.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct ChatMessage {
    /// `system`, `developer`, `user`, `assistant` or `tool`.
    role: String,
    content: Option<Content>,
    name: Option<String>,
    tool_calls: Option<Vec<ToolCall>>,
    tool_call_id: Option<String>,
    #[serde(alias = "reasoning")]
    reasoning_content: Option<String>,
    #[serde(flatten)]
    #[schema(ignore)]
    rest: Rest,
}

/// A text, or its parts.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum Content {
    Text(String),
    Parts(Vec<ContentPart>),
}

/// A part of a text.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct ContentPart {
    /// `text`.
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
}

/// A call in an earlier answer.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct ToolCall {
    #[serde(default)]
    id: String,
    function: CalledFunction,
}

/// The function of a call.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct CalledFunction {
    name: String,
    #[serde(default)]
    arguments: String,
}

/// Options of a stream.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct StreamOptions {
    /// Whether the last event has the numbers of tokens.
    include_usage: Option<bool>,
}

impl Content {
    /// Returns the text.
    pub(crate) fn text(self) -> Result<String, Refusal> {
        let parts = match self {
            Self::Text(text) => return Ok(text),
            Self::Parts(parts) => parts,
        };
        let texts = parts.into_iter().map(|part| match (part.kind.as_str(), part.text) {
            ("text" | "input_text" | "output_text", Some(text)) => Ok(text),
            (kind, _) => {
                Err(Refusal::of("messages", format!("content of type {kind:?} is not supported, only text")))
            }
        });
        Ok(texts.collect::<Result<Vec<_>, _>>()?.join("\n"))
    }
}

impl ContentPart {
    /// Returns the text, if the part is one.
    pub(crate) fn into_text(self) -> Option<String> {
        self.text
    }
}

impl ChatMessage {
    /// Returns the message as templates expect it. Only known roles pass, because they belong to the template.
    fn message(self) -> Result<Message, Refusal> {
        let role = match self.role.as_str() {
            "system" | "developer" => "system",
            "user" => "user",
            "assistant" => "assistant",
            "tool" => "tool",
            role => return Err(Refusal::of("messages", format!("unknown role {role:?}"))),
        };
        job::check_rest(&self.rest, &["annotations", "refusal", "id", "type"])?;
        let content = self.content.map(Content::text).transpose()?;
        if content.is_none() && role != "assistant" {
            return Err(Refusal::of(
                "messages",
                format!("a message of the role {:?} needs a content", self.role),
            ));
        }
        let mut message = Message::new(role, &content.unwrap_or_default());
        for (name, value) in [
            ("name", self.name),
            ("tool_call_id", self.tool_call_id),
            ("reasoning_content", self.reasoning_content),
        ] {
            if let Some(value) = value {
                message = message.with(name, value.as_str());
            }
        }
        let calls = self.tool_calls.unwrap_or_default();
        if !calls.is_empty() {
            let calls =
                calls.iter().map(|call| job::call(&call.id, &call.function.name, &call.function.arguments));
            message = message.with("tool_calls", calls.collect::<Vec<Data>>());
        }
        Ok(message)
    }
}

/// Returns the functions that the model may call, and whether it must.
pub(crate) fn callable(tools: Vec<Object>, choice: Option<&Value>) -> Result<(Vec<Object>, Calls), Refusal> {
    let tools = job::tools(tools)?;
    match Calls::of(choice)? {
        None => Ok((Vec::new(), Calls::Free)),
        Some(calls) => calls.check(&tools).map(|()| (tools, calls)),
    }
}

/// Checks the messages and returns them.
pub(crate) fn conversation(messages: Vec<Message>) -> Result<Vec<Message>, Refusal> {
    match messages.len() {
        0 => Err(Refusal::of("messages", "the list of messages is empty")),
        1..=job::MAX_MESSAGES => Ok(messages),
        count => Err(Refusal::of(
            "messages",
            format!("{count} messages are too many, at most {}", job::MAX_MESSAGES),
        )),
    }
}

impl Named for ChatRequest {
    fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }
}

impl ChatRequest {
    pub(crate) fn job(self, stamp: &Stamp) -> Result<Job, Refusal> {
        job::check_rest(&self.rest, HARMLESS)?;
        let logs = match (self.logprobs.unwrap_or(false), self.top_logprobs) {
            (true, top) => Some(top.unwrap_or(0)),
            (false, None | Some(0)) => None,
            (false, _) => return Err(Refusal::of("top_logprobs", "top_logprobs needs logprobs")),
        };
        let messages = self.messages.into_iter().map(ChatMessage::message).collect::<Result<_, _>>()?;
        let (tools, calls) = callable(self.tools.unwrap_or_default(), self.tool_choice.as_ref())?;
        let variables = self.chat_template_kwargs.unwrap_or_default();
        let chat = Chat {
            messages: conversation(messages)?,
            tools,
            calls,
            variables: variables.into_iter().map(|(name, value)| (name, value.into())).collect(),
            takes_one_call: self.parallel_tool_calls == Some(false),
            effort: job::effort("reasoning_effort", self.reasoning_effort)?,
        };
        let max_tokens = self.max_completion_tokens.or(self.max_tokens);
        let settings = self.sampler.settings(max_tokens, stamp.seed, logs, self.constraints)?;
        let has_usage = self.stream_options.and_then(|options| options.include_usage).unwrap_or(false);
        Ok(Job {
            prompts: vec![Input::Chat(chat)],
            settings,
            is_stream: self.stream.unwrap_or(false),
            writer: Box::new(ChatWriter {
                stamp: stamp.clone(),
                has_usage,
                has_logs: logs.is_some(),
                calls: Vec::new(),
                logs: Vec::new(),
            }),
        })
    }
}

fn finish_reason(ended: &Ended) -> &'static str {
    match ended.finish {
        Finish::Stop | Finish::StopString => "stop",
        Finish::Length => "length",
        Finish::Calls => "tool_calls",
    }
}

fn usage_json(usage: Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.new,
        "total_tokens": usage.prompt + usage.new,
        "prompt_tokens_details": { "cached_tokens": usage.cached },
        "completion_tokens_details": { "reasoning_tokens": usage.reasoning },
    })
}

struct ChatWriter {
    stamp: Stamp,
    has_usage: bool,
    has_logs: bool,
    /// Number of calls of each answer.
    calls: Vec<usize>,
    /// Log probabilities of each answer that have not been written.
    logs: Vec<Vec<Log>>,
}

impl ChatWriter {
    fn frame(&self, object: &str) -> Value {
        let Stamp { id, created_s, model, .. } = &self.stamp;
        json!({ "id": format!("chatcmpl-{id}"), "object": object, "created": created_s, "model": model })
    }

    fn call_id(&self, choice: usize, call: usize) -> String {
        format!("call_{}_{choice}_{call}", self.stamp.id)
    }

    fn logs(&self, logs: &[Log]) -> Value {
        if self.has_logs { logs::chat(logs) } else { Value::Null }
    }

    fn chunk(&mut self, index: usize, delta: &Value, ended: Option<&Ended>, out: &mut Events) {
        let logs = std::mem::take(&mut self.logs[index]);
        let logs = if logs.is_empty() { Value::Null } else { self.logs(&logs) };
        let mut chunk = self.frame("chat.completion.chunk");
        let mut choice = json!({
            "index": index,
            "delta": delta,
            "logprobs": logs,
            "finish_reason": ended.map(finish_reason),
        });
        if let Some(ended) = ended {
            (choice["seed"], choice["stop_reason"]) = (ended.seed.into(), ended.detail().into());
        }
        chunk["choices"] = json!([choice]);
        if self.has_usage {
            chunk["usage"] = Value::Null;
        }
        out.data(&chunk);
    }

    fn call(&self, choice: usize, index: usize, call: &Call) -> Value {
        json!({
            "id": self.call_id(choice, index),
            "type": "function",
            "function": { "name": call.name, "arguments": call.arguments },
        })
    }
}

impl Writer for ChatWriter {
    fn begin(&mut self, choices: usize, _: u64, out: &mut Events) {
        (self.calls, self.logs) = (vec![0; choices], vec![Vec::new(); choices]);
        for index in 0..choices {
            self.chunk(index, &json!({ "role": "assistant", "content": "" }), None, out);
        }
    }

    fn log(&mut self, index: usize, log: &Log) {
        self.logs[index].push(log.clone());
    }

    fn part(&mut self, index: usize, part: &Part, out: &mut Events) {
        let calls = self.calls[index];
        let delta = match part {
            Part::Reasoning(text) => json!({ "reasoning_content": text }),
            Part::Text(text) => json!({ "content": text }),
            Part::Call { name } => {
                self.calls[index] += 1;
                let function = json!({ "name": name, "arguments": "" });
                let id = self.call_id(index, calls);
                json!({ "tool_calls": [{ "index": calls, "id": id, "type": "function", "function": function }] })
            }
            Part::Arguments(text) => {
                json!({ "tool_calls": [{ "index": calls - 1, "function": { "arguments": text } }] })
            }
        };
        self.chunk(index, &delta, None, out);
    }

    fn end(&mut self, index: usize, ended: &Ended, out: &mut Events) {
        self.chunk(index, &json!({}), Some(ended), out);
    }

    fn finish(&mut self, choices: &[Choice], out: &mut Events) {
        if self.has_usage {
            let mut chunk = self.frame("chat.completion.chunk");
            (chunk["choices"], chunk["usage"]) = (json!([]), usage_json(usage(choices)));
            out.data(&chunk);
        }
        out.done();
    }

    fn failed(&mut self, refusal: &Refusal, out: &mut Events) {
        out.data(&refusal.body(Shape::OpenAi));
    }

    fn whole(&self, choices: &[Choice]) -> Value {
        let written = choices.iter().enumerate().map(|(index, choice)| {
            let has_calls = !choice.calls.is_empty();
            let content = Some(&choice.text).filter(|text| !(text.is_empty() && has_calls));
            let mut message = json!({ "role": "assistant", "content": content, "refusal": null });
            if !choice.reasoning.is_empty() {
                message["reasoning_content"] = choice.reasoning.as_str().into();
            }
            if has_calls {
                let calls = choice.calls.iter().enumerate();
                message["tool_calls"] = calls.map(|(at, call)| self.call(index, at, call)).collect();
            }
            json!({
                "index": index,
                "message": message,
                "logprobs": self.logs(&choice.logs),
                "finish_reason": choice.ended.as_ref().map(finish_reason),
                "seed": choice.ended.map(|ended| ended.seed),
                "stop_reason": choice.ended.and_then(|ended| ended.detail()),
            })
        });
        let mut answer = self.frame("chat.completion");
        (answer["choices"], answer["usage"]) = (written.collect(), usage_json(usage(choices)));
        answer
    }
}

/// A text, which the model continues.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct CompletionRequest {
    model: Option<String>,
    prompt: Prompt,
    max_tokens: Option<u32>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    /// Whether the answer begins with the prompt.
    echo: Option<bool>,
    /// Number of most likely tokens to report beside each token. With `echo`, also for those of the prompt.
    #[schema(maximum = 20)]
    logprobs: Option<u32>,
    /// Only empty.
    suffix: Option<String>,
    best_of: Option<usize>,
    #[serde(flatten)]
    sampler: Sampler,
    // Not a part of `Sampler`: serde does not know which fields a struct takes if it contains another flattened one.
    #[serde(flatten)]
    constraints: Constraints,
    #[serde(flatten)]
    #[schema(ignore)]
    rest: Rest,
}

/// Texts or token ids.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum Prompt {
    Texts(OneOrMore),
    Tokens(Vec<u32>),
    TokenLists(Vec<Vec<u32>>),
}

impl Prompt {
    pub(crate) fn inputs(self) -> Vec<Input> {
        match self {
            Self::Texts(texts) => texts.into_list().into_iter().map(Input::Text).collect(),
            Self::Tokens(ids) => vec![Input::Tokens(ids)],
            Self::TokenLists(lists) => lists.into_iter().map(Input::Tokens).collect(),
        }
    }
}

impl Named for CompletionRequest {
    fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }
}

impl CompletionRequest {
    pub(crate) fn job(self, stamp: &Stamp) -> Result<Job, Refusal> {
        job::check_rest(&self.rest, HARMLESS)?;
        let choices = self.sampler.choices();
        let refused = [
            ("suffix", self.suffix.is_some_and(|suffix| !suffix.is_empty())),
            ("best_of", self.best_of.is_some_and(|best_of| best_of != choices)),
        ];
        if let Some((name, _)) = refused.into_iter().find(|(_, is_set)| *is_set) {
            return Err(Refusal::unsupported(name));
        }
        let prompts = self.prompt.inputs();
        let settings = self.sampler.settings(
            Some(self.max_tokens.unwrap_or(COMPLETION_TOKENS)),
            stamp.seed,
            self.logprobs,
            self.constraints,
        )?;
        job::check_choices(prompts.len(), settings.n)?;
        let has_usage = self.stream_options.and_then(|options| options.include_usage).unwrap_or(false);
        let echo = self.echo.unwrap_or(false).then(Vec::new);
        Ok(Job {
            prompts,
            settings,
            is_stream: self.stream.unwrap_or(false),
            writer: Box::new(CompletionWriter {
                stamp: stamp.clone(),
                has_usage,
                has_logs: self.logprobs.is_some(),
                echo,
                echo_logs: Vec::new(),
                n: choices,
                logs: Vec::new(),
            }),
        })
    }
}

struct CompletionWriter {
    stamp: Stamp,
    has_usage: bool,
    has_logs: bool,
    /// Texts of the prompts, if the answers begin with them.
    echo: Option<Vec<String>>,
    /// Log probabilities of the echoed prompts.
    echo_logs: Vec<Vec<Log>>,
    /// Number of answers to each prompt.
    n: usize,
    /// Log probabilities of each answer that have not been written, and the number of characters before them.
    logs: Vec<(Vec<Log>, usize)>,
}

impl CompletionWriter {
    fn frame(&self) -> Value {
        let Stamp { id, created_s, model, .. } = &self.stamp;
        json!({ "id": format!("cmpl-{id}"), "object": "text_completion", "created": created_s, "model": model })
    }

    fn echo(&self, index: usize) -> &str {
        self.echo.as_ref().and_then(|echo| echo.get(index / self.n)).map_or("", String::as_str)
    }

    fn echo_logs(&self, index: usize) -> &[Log] {
        self.echo_logs.get(index / self.n).map_or(&[], Vec::as_slice)
    }

    fn choice(index: usize, text: &str, logs: &Value, ended: Option<&Ended>) -> Value {
        let mut choice = json!({
            "index": index,
            "text": text,
            "logprobs": logs,
            "finish_reason": ended.map(finish_reason),
        });
        if let Some(ended) = ended {
            (choice["seed"], choice["stop_reason"]) = (ended.seed.into(), ended.detail().into());
        }
        choice
    }

    fn chunk(&mut self, index: usize, text: &str, ended: Option<&Ended>, out: &mut Events) {
        let (logs, offset) = &mut self.logs[index];
        let logs = match std::mem::take(logs) {
            logs if logs.is_empty() => Value::Null,
            logs => logs::completion(&logs, offset),
        };
        let choice = Self::choice(index, text, &logs, ended);
        let mut chunk = self.frame();
        chunk["choices"] = json!([choice]);
        if self.has_usage {
            chunk["usage"] = Value::Null;
        }
        out.data(&chunk);
    }
}

impl Writer for CompletionWriter {
    fn begin(&mut self, choices: usize, _: u64, out: &mut Events) {
        self.logs = (0..choices).map(|index| (self.echo_logs(index).to_vec(), 0)).collect();
        for index in 0..if self.echoes() { choices } else { 0 } {
            let echo = self.echo(index).to_owned();
            self.chunk(index, &echo, None, out);
        }
    }

    fn log(&mut self, index: usize, log: &Log) {
        self.logs[index].0.push(log.clone());
    }

    fn part(&mut self, index: usize, part: &Part, out: &mut Events) {
        if let Part::Text(text) = part {
            self.chunk(index, text, None, out);
        }
    }

    fn end(&mut self, index: usize, ended: &Ended, out: &mut Events) {
        self.chunk(index, "", Some(ended), out);
    }

    fn finish(&mut self, choices: &[Choice], out: &mut Events) {
        if self.has_usage {
            let mut chunk = self.frame();
            (chunk["choices"], chunk["usage"]) = (json!([]), usage_json(usage(choices)));
            out.data(&chunk);
        }
        out.done();
    }

    fn failed(&mut self, refusal: &Refusal, out: &mut Events) {
        out.data(&refusal.body(Shape::OpenAi));
    }

    fn whole(&self, choices: &[Choice]) -> Value {
        let written = choices.iter().enumerate().map(|(index, choice)| {
            let text = self.echo(index).to_owned() + &choice.text;
            let logs = [self.echo_logs(index), &choice.logs].concat();
            let logs = if self.has_logs { logs::completion(&logs, &mut 0) } else { Value::Null };
            Self::choice(index, &text, &logs, choice.ended.as_ref())
        });
        let mut answer = self.frame();
        (answer["choices"], answer["usage"]) = (written.collect(), usage_json(usage(choices)));
        answer
    }

    fn echoes(&self) -> bool {
        self.echo.is_some()
    }

    fn set_echo(&mut self, prompts: Vec<String>) {
        self.echo = Some(prompts);
    }

    fn set_echo_logs(&mut self, logs: Vec<Vec<Log>>) {
        self.echo_logs = logs;
    }
}
