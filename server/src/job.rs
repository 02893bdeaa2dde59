//! Requests, independent of their API: prompts, settings, and a writer for the answers.

use crate::answer::{Choice, Ended};
use crate::constraint::{Calls, Constraints};
use crate::logs::Log;
use crate::refusal::Refusal;
use crate::tools::Part;
use ragtag_engine::chat::{Data, Message, Object};
use ragtag_engine::grammar::Grammar;
use ragtag_engine::{Sampling, Shaping};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// Maximum number of messages of a request.
pub(crate) const MAX_MESSAGES: usize = 8192;
/// Maximum number of functions of a request.
const MAX_TOOLS: usize = 512;
/// Maximum number of answers to a request.
const MAX_CHOICES: usize = 64;
/// Maximum number of stop strings, and their maximum length in bytes.
const MAX_STOPS: usize = 64;
const MAX_STOP_BYTES: usize = 1024;
/// Maximum number of tokens in one request to complete or decode them.
pub(crate) const MAX_TOKEN_IDS: usize = 1 << 24;

/// A request that may name its model.
pub(crate) trait Named {
    fn model(&self) -> Option<&str>;
}

/// A request.
pub(crate) struct Job {
    pub(crate) prompts: Vec<Input>,
    pub(crate) settings: Settings,
    pub(crate) is_stream: bool,
    pub(crate) writer: Box<dyn Writer>,
}

/// A prompt.
#[derive(Clone, Debug)]
pub(crate) enum Input {
    Chat(Chat),
    Text(String),
    Tokens(Vec<u32>),
}

/// A conversation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Chat {
    pub(crate) messages: Vec<Message>,
    pub(crate) tools: Vec<Object>,
    pub(crate) calls: Calls,
    /// Variables of the template.
    pub(crate) variables: BTreeMap<String, Data>,
    /// Whether an answer contains at most one call.
    pub(crate) takes_one_call: bool,
    /// Effort of the reasoning, for templates that know it.
    pub(crate) effort: Option<String>,
}

/// Settings of a generation.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Settings {
    pub(crate) max_tokens: Option<u32>,
    pub(crate) sampling: Sampling,
    pub(crate) shaping: Shaping,
    /// Grammar of the text after the reasoning.
    pub(crate) grammar: Option<Grammar>,
    pub(crate) stop: Vec<String>,
    /// Number of answers to each prompt.
    pub(crate) n: usize,
}

/// Writes answers in the shape of an API. Pure: it gets all ids and times from its creator.
pub(crate) trait Writer: Send {
    /// Writes the begin of a stream with `choices` answers to prompts of `prompt_tokens` tokens.
    fn begin(&mut self, choices: usize, prompt_tokens: u64, out: &mut Events);
    /// Takes the log probabilities of a token of answer `index`, before its parts.
    fn log(&mut self, _index: usize, _log: &Log) {}
    /// Writes a part of answer `index`.
    fn part(&mut self, index: usize, part: &Part, out: &mut Events);
    /// Writes the end of answer `index`.
    fn end(&mut self, index: usize, ended: &Ended, out: &mut Events);
    /// Writes the end of the stream.
    fn finish(&mut self, choices: &[Choice], out: &mut Events);
    /// Writes a failure, which ends the stream.
    fn failed(&mut self, refusal: &Refusal, out: &mut Events);
    /// Keeps an idle connection open.
    fn ping(&self, out: &mut Events) {
        out.comment("waiting");
    }
    /// Returns the answer that is not streamed.
    fn whole(&self, choices: &[Choice]) -> Value;
    /// Sets the prompts that the writer echoes.
    fn set_echo(&mut self, _prompts: Vec<String>) {}
    /// Sets the log probabilities of the echoed prompts.
    fn set_echo_logs(&mut self, _logs: Vec<Vec<Log>>) {}
    /// Returns whether the writer echoes the prompts.
    fn echoes(&self) -> bool {
        false
    }
}

/// Server-sent events.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Events(pub(crate) String);

impl Events {
    pub(crate) fn data(&mut self, data: &Value) {
        self.0 += &format!("data: {data}\n\n");
    }

    pub(crate) fn named(&mut self, name: &str, data: &Value) {
        self.0 += &format!("event: {name}\ndata: {data}\n\n");
    }

    pub(crate) fn comment(&mut self, text: &str) {
        self.0 += &format!(": {text}\n\n");
    }

    pub(crate) fn done(&mut self) {
        self.0 += "data: [DONE]\n\n";
    }
}

/// Identity of an answer.
#[derive(Clone, Debug)]
pub(crate) struct Stamp {
    /// Unique id without a prefix.
    pub(crate) id: String,
    pub(crate) created_s: u64,
    /// Name of the model in the answer.
    pub(crate) model: String,
    /// Seed for requests that give none.
    pub(crate) seed: u64,
}

/// Parameters of the sampler in the APIs of OpenAI.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(crate) struct Sampler {
    #[schema(minimum = 0.0)]
    temperature: Option<f32>,
    #[schema(minimum = 0.0, maximum = 1.0)]
    top_p: Option<f32>,
    /// Number of most likely tokens to keep. 0 or -1 keeps all.
    top_k: Option<i64>,
    #[schema(minimum = 0.0, maximum = 1.0)]
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
    /// Seed of the sampler. Without one, the server draws it.
    seed: Option<i64>,
    stop: Option<OneOrMore>,
    /// Number of answers.
    #[schema(minimum = 1)]
    n: Option<usize>,
    #[schema(minimum = -2.0, maximum = 2.0)]
    presence_penalty: Option<f32>,
    #[schema(minimum = -2.0, maximum = 2.0)]
    frequency_penalty: Option<f32>,
    /// Amounts from -100 to 100 to add to the logits of tokens, by their ids.
    logit_bias: Option<BTreeMap<String, f32>>,
}

/// A text or a list of texts.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum OneOrMore {
    One(String),
    More(Vec<String>),
}

impl OneOrMore {
    pub(crate) fn into_list(self) -> Vec<String> {
        match self {
            Self::One(text) => vec![text],
            Self::More(texts) => texts,
        }
    }
}

impl Sampler {
    /// Returns the number of answers to each prompt.
    pub(crate) fn choices(&self) -> usize {
        self.n.unwrap_or(1)
    }

    /// Returns the settings of the generation. `seed` is the seed if the request has none, and `logs` the number of likely
    /// tokens whose log probabilities are reported.
    ///
    /// # Errors
    /// Refuses parameters that are out of range.
    pub(crate) fn settings(
        self,
        max_tokens: Option<u32>,
        seed: u64,
        logs: Option<u32>,
        constraints: Constraints,
    ) -> Result<Settings, Refusal> {
        let n = self.choices();
        let bias = self.logit_bias.unwrap_or_default().into_iter().map(|(token, amount)| {
            let token =
                token.parse().map_err(|_| Refusal::of("logit_bias", format!("{token:?} is no token id")));
            Ok((token?, amount))
        });
        let shaping = Shaping {
            presence_penalty: self.presence_penalty.unwrap_or(0.0),
            frequency_penalty: self.frequency_penalty.unwrap_or(0.0),
            bias: bias.collect::<Result<_, Refusal>>()?,
            log_probabilities: logs,
        };
        let top_k = match self.top_k.unwrap_or(0) {
            -1 => 0,
            top_k => {
                u32::try_from(top_k).map_err(|_| Refusal::of("top_k", "top_k must be -1, 0 or above"))?
            }
        };
        let sampling = Sampling {
            temperature: self.temperature.unwrap_or(1.0),
            top_p: self.top_p.unwrap_or(1.0),
            top_k,
            min_p: self.min_p.unwrap_or(0.0),
            repetition_penalty: self.repetition_penalty.unwrap_or(1.0),
            seed: Some(self.seed.map_or(seed, i64::cast_unsigned)),
            ..Sampling::default()
        };
        let stop = self.stop.map(OneOrMore::into_list).unwrap_or_default();
        let grammar = constraints.grammar()?;
        let settings = settings(sampling, max_tokens, stop, n)?;
        shaping.validate().map_err(out_of_range)?;
        Ok(Settings { shaping, grammar, ..settings })
    }
}

/// Refuses a setting whose name begins the message.
fn out_of_range(cause: impl std::fmt::Display) -> Refusal {
    let message = cause.to_string();
    let name = message.split(" is ").next().unwrap_or_default().replace(['-', ' '], "_");
    let param = match name.as_str() {
        "number_of_biased_tokens" => "logit_bias",
        "number_of_log_probabilities" => "top_logprobs",
        name => name,
    };
    Refusal::of(param, message.clone())
}

/// Checks settings and returns them.
pub(crate) fn settings(
    sampling: Sampling,
    max_tokens: Option<u32>,
    stop: Vec<String>,
    n: usize,
) -> Result<Settings, Refusal> {
    sampling.validate().map_err(out_of_range)?;
    if max_tokens == Some(0) {
        return Err(Refusal::of("max_tokens", "the maximum number of tokens must be at least 1"));
    }
    if n == 0 || n > MAX_CHOICES {
        return Err(Refusal::of("n", format!("n must be from 1 to {MAX_CHOICES}")));
    }
    if stop.len() > MAX_STOPS || stop.iter().any(|stop| stop.is_empty() || stop.len() > MAX_STOP_BYTES) {
        return Err(Refusal::of(
            "stop",
            format!("at most {MAX_STOPS} stop strings of 1 to {MAX_STOP_BYTES} bytes are allowed"),
        ));
    }
    Ok(Settings { max_tokens, sampling, shaping: Shaping::default(), grammar: None, stop, n })
}

/// Checks the number of answers to all prompts.
pub(crate) fn check_choices(prompts: usize, n: usize) -> Result<(), Refusal> {
    match prompts.saturating_mul(n) {
        0 => Err(Refusal::of("prompt", "the list of prompts is empty")),
        1..=MAX_CHOICES => Ok(()),
        _ => Err(Refusal::of("prompt", format!("prompts times n must be at most {MAX_CHOICES}"))),
    }
}

/// Fields that a request type does not have.
pub(crate) type Rest = BTreeMap<String, Value>;

/// Refuses unknown fields. `harmless` fields change no answer: clients send them to every server. A field that is null
/// counts as absent.
pub(crate) fn check_rest(rest: &Rest, harmless: &[&str]) -> Result<(), Refusal> {
    let known = |name: &str| harmless.contains(&name);
    match rest.iter().find(|(name, value)| !value.is_null() && !known(name)) {
        Some((name, _)) => Err(Refusal::unsupported(name)),
        None => Ok(()),
    }
}

/// Checks the definitions of functions and returns them as templates expect them.
pub(crate) fn tools(tools: Vec<Object>) -> Result<Vec<Object>, Refusal> {
    if tools.len() > MAX_TOOLS {
        return Err(Refusal::of("tools", format!("at most {MAX_TOOLS} tools are allowed")));
    }
    for tool in &tools {
        if tool.get("type").is_none_or(|kind| kind.as_str() != Some("function")) {
            return Err(Refusal::of("tools", "each tool must have the type \"function\""));
        }
        let function = tool.get("function").and_then(|function| function.as_object());
        let name = function.and_then(|function| function.get("name")?.as_str().map(str::to_owned));
        if name.is_none_or(|name| name.is_empty()) {
            return Err(Refusal::of("tools", "each tool needs a function with a name"));
        }
    }
    Ok(tools)
}

/// Checks the effort of the reasoning.
pub(crate) fn effort(name: &str, effort: Option<String>) -> Result<Option<String>, Refusal> {
    match effort.as_deref() {
        Some("none" | "minimal" | "low" | "medium" | "high" | "xhigh") | None => Ok(effort),
        Some(_) => {
            Err(Refusal::of(name, format!("{name} must be none, minimal, low, medium, high or xhigh")))
        }
    }
}

/// Returns a function as templates expect it.
pub(crate) fn function(name: &str, description: Option<&str>, parameters: Option<Data>) -> Object {
    let mut function = Object::default().with("name", name);
    if let Some(description) = description {
        function = function.with("description", description);
    }
    if let Some(parameters) = parameters {
        function = function.with("parameters", parameters);
    }
    Object::default().with("type", "function").with("function", function)
}

/// Returns a call of an earlier answer as templates expect it: with arguments that are an object, if they are valid.
pub(crate) fn call(id: &str, name: &str, arguments: &str) -> Data {
    let arguments = ragtag_engine::chat::from_json::<Data>(arguments).unwrap_or_else(|_| arguments.into());
    call_of(id, name, arguments)
}

/// Returns a call of an earlier answer as templates expect it.
pub(crate) fn call_of(id: &str, name: &str, arguments: Data) -> Data {
    let function = Object::default().with("name", name).with("arguments", arguments);
    Object::default().with("type", "function").with("id", id).with("function", function).into()
}
