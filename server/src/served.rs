//! A loaded model: its engine and its chat template.

use crate::answer::Assembler;
use crate::constraint::{self, Calls};
use crate::job::{Chat, Input, Settings};
use crate::logs::Log;
use crate::refusal::{Kind, Refusal};
use crate::tools::Format;
use ragtag_engine::chat::Data;
use ragtag_engine::grammar::{Grammar, GrammarCompiler, GrammarError};
use ragtag_engine::{
    Dialogue, Engine, Error, Generation, LogProbabilities, MaskSource, Model, Planner, ReasoningSplitter,
    Session, TokenStream, Tokenizer,
};
use serde_json::Value;
use std::collections::VecDeque;
use std::fmt;
use std::sync::OnceLock;
use std::time::Duration;

/// Variables of templates that have fields of their own.
const RESERVED: [&str; 4] = ["messages", "tools", "documents", "add_generation_prompt"];

/// Returns the receipt of a running engine: model, devices, drivers, kernels, routes and plan.
pub type Receipt = Box<dyn Fn(&Engine) -> Result<Value, Error> + Send + Sync>;

/// A model with a running pipeline.
pub struct Served {
    pub(crate) engine: Engine,
    session: Session,
    model: Model,
    /// First error that ended the pipeline.
    failure: OnceLock<String>,
    /// Source of a chat template that replaces the model's, and its name.
    template: Option<(String, String)>,
    /// The compiler of grammars, which the first constrained request creates.
    grammars: OnceLock<Result<GrammarCompiler, GrammarError>>,
    /// The planner of the pipeline's plan, for the times that it predicts.
    pub(crate) planner: Option<Planner>,
    pub(crate) receipt: Option<Receipt>,
}

impl fmt::Debug for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Served").field("model", &self.model.name()).finish_non_exhaustive()
    }
}

/// A prompt, and what its answer needs.
pub(crate) struct Prepared {
    pub(crate) ids: Vec<u32>,
    splitter: Option<ReasoningSplitter>,
    format: Option<Format>,
    takes_one_call: bool,
    /// Masks of the answers, if they are constrained.
    mask: Option<MaskSource>,
}

impl Prepared {
    fn new(ids: Vec<u32>) -> Self {
        Self { ids, splitter: None, format: None, takes_one_call: false, mask: None }
    }
}

impl Served {
    /// Serves `model` through `engine`.
    pub fn new(model: &Model, engine: Engine) -> Self {
        Self {
            session: engine.session(),
            engine,
            model: model.clone(),
            failure: OnceLock::new(),
            template: None,
            grammars: OnceLock::new(),
            planner: None,
            receipt: None,
        }
    }

    /// Sets the planner of the engine's plan. With it, the page shows predicted times beside measured ones.
    #[must_use]
    pub fn planned_by(mut self, planner: Planner) -> Self {
        self.planner = Some(planner);
        self
    }

    /// Sets the function that makes the receipt, which the page shows on request.
    #[must_use]
    pub fn with_receipt(mut self, receipt: Receipt) -> Self {
        self.receipt = Some(receipt);
        self
    }

    /// Replaces the model's chat template. Errors call it `name`.
    ///
    /// # Errors
    /// Returns [`Error::Template`] if the template is invalid.
    pub fn with_template(mut self, source: String, name: String) -> Result<Self, Error> {
        Dialogue::with_template(&self.model, &source, &name)?;
        self.template = Some((source, name));
        Ok(self)
    }

    /// Records that the pipeline has ended.
    pub(crate) fn failed(&self, cause: &Refusal) {
        if cause.kind == Kind::Unavailable {
            self.failure.get_or_init(|| cause.message.clone());
        }
    }

    /// Returns why the pipeline has ended, if it has.
    pub(crate) fn failure(&self) -> Option<&str> {
        if let Some(reason) = self.engine.recovery().ended_by {
            self.failure.get_or_init(|| reason);
        }
        self.failure.get().map(String::as_str)
    }

    /// Returns why the pipeline cannot answer now: it has ended, recovers from a failure, changes its devices,
    /// or is suspended.
    pub(crate) fn outage(&self) -> Option<String> {
        let recovery = self.engine.recovery();
        let reason = match recovery.recovers_from {
            Some(reason) => Some(format!("recovering from a failure: {reason}")),
            None if recovery.is_suspended => Some("suspended".into()),
            None => recovery.is_changing.then(|| "the devices change".into()),
        };
        self.failure().map(str::to_owned).or(reason)
    }

    pub(crate) fn context(&self) -> u32 {
        self.engine.plan().context
    }

    pub(crate) fn tokenizer(&self) -> Result<&Tokenizer, Refusal> {
        Ok(self.model.tokenizer()?)
    }

    /// Returns the conversation with its template, and the format of calls.
    pub(crate) fn dialogue(&self, chat: &Chat) -> Result<(Dialogue, Option<Format>), Refusal> {
        let has_tools = !chat.tools.is_empty();
        let (source, name) = match &self.template {
            Some((source, name)) => (source.clone(), name.as_str()),
            None => {
                let templates = self.model.chat_templates()?;
                let Some(source) = templates.find(None, has_tools) else {
                    let message = format!("{} has no chat template: use /v1/completions", self.model.name());
                    return Err(Refusal::new(Kind::Invalid, message));
                };
                (source.to_owned(), self.model.name())
            }
        };
        let format = Format::of(&source).filter(|_| has_tools);
        if has_tools && format.is_none() {
            let message = "the model's chat template has no known format for calls of tools";
            return Err(Refusal::of("tools", message));
        }
        let mut dialogue = Dialogue::with_template(&self.model, &source, name)?;
        for (name, value) in &chat.variables {
            if RESERVED.contains(&name.as_str()) {
                return Err(Refusal::of("chat_template_kwargs", format!("{name} cannot be set this way")));
            }
            dialogue.set(name, value.clone());
        }
        if let Some(effort) = &chat.effort {
            let (name, value) = effort_variable(&source, effort)?;
            dialogue.set(name, value);
        }
        dialogue.set_messages(chat.messages.clone());
        dialogue.set_tools(chat.tools.clone());
        Ok((dialogue, format))
    }

    /// Encodes a prompt, whose answer may be constrained. Control tokens in texts of the client stay text.
    pub(crate) fn prepare(&self, input: Input, grammar: Option<&Grammar>) -> Result<Prepared, Refusal> {
        if self.model.is_for_embeddings() {
            let message = format!("{} runs for embeddings: use /v1/embeddings", self.model.name());
            return Err(Refusal::new(Kind::Invalid, message).code("unsupported"));
        }
        let mut grammar = grammar.cloned();
        let mut prepared = match input {
            Input::Tokens(ids) => Prepared::new(ids),
            Input::Text(text) => {
                let ids = self.tokenizer()?.encode(&text, true).map_err(|cause| self.cannot_encode(cause))?;
                Prepared::new(ids)
            }
            Input::Chat(chat) => {
                let (dialogue, format) = self.dialogue(&chat)?;
                let prompt = dialogue.prompt()?;
                grammar = self.answers(&chat, format, grammar)?.map(|answer| match prompt.splitter.end() {
                    Some(marker) => answer.after(marker),
                    None => answer,
                });
                let takes_one_call = chat.takes_one_call;
                let splitter = Some(prompt.splitter);
                Prepared { splitter, format, takes_one_call, ..Prepared::new(prompt.ids) }
            }
        };
        self.check_tokens(&prepared.ids)?;
        prepared.mask = grammar.map(|grammar| self.mask(&grammar)).transpose()?;
        Ok(prepared)
    }

    /// Returns the number of values of a vector.
    ///
    /// # Errors
    /// Refuses models that do not run for embeddings.
    pub(crate) fn embedding_width(&self) -> Result<u32, Refusal> {
        if self.model.is_for_embeddings() {
            return Ok(self.model.hyperparameters().width);
        }
        let message =
            format!("{} computes no embeddings: start the server with --embeddings", self.model.name());
        Err(Refusal::new(Kind::Invalid, message).code("unsupported"))
    }

    /// Encodes the input of an embedding.
    pub(crate) fn token_ids(&self, input: Input) -> Result<Vec<u32>, Refusal> {
        let ids = match input {
            Input::Text(text) => {
                self.tokenizer()?.encode(&text, true).map_err(|cause| self.cannot_encode(cause))?
            }
            Input::Tokens(ids) => ids,
            Input::Chat(_) => return Err(Refusal::of("input", "an input is a text or a list of token ids")),
        };
        self.check_tokens(&ids)?;
        Ok(ids)
    }

    /// Computes the embeddings of inputs. As many as fit into the pipeline are in flight at the same time.
    pub(crate) async fn embed(&self, inputs: &[Vec<u32>]) -> Result<Vec<Vec<f32>>, Refusal> {
        let most = self.engine.plan().sequences.max(1) as usize;
        let (mut running, mut vectors) = (VecDeque::new(), Vec::new());
        let mut inputs = inputs.iter();
        loop {
            while running.len() < most
                && let Some(ids) = inputs.next()
            {
                // Only the first input may be refused because others wait.
                let is_first = running.is_empty() && vectors.is_empty();
                running.push_back(if is_first {
                    self.session.try_embed(ids)
                } else {
                    self.session.embed(ids)
                }?);
            }
            let Some(next) = running.pop_front() else { return Ok(vectors) };
            let vector = next.vector().await?;
            if !vector.iter().all(|value| value.is_finite()) {
                return Err(Refusal::new(Kind::Internal, "the model computed values that are not finite"));
            }
            vectors.push(vector);
        }
    }

    /// Returns the grammar of the answers in a chat: demanded calls, a format, or calls and a format.
    fn answers(
        &self,
        chat: &Chat,
        format: Option<Format>,
        grammar: Option<Grammar>,
    ) -> Result<Option<Grammar>, Refusal> {
        let calls = |format| {
            let tokenizer = self.tokenizer()?;
            let control = |text: &str| tokenizer.control(text);
            constraint::calls(format, &chat.tools, &chat.calls, chat.takes_one_call, control)
        };
        match (format, grammar) {
            (Some(format), _) if chat.calls != Calls::Free => Ok(Some(calls(format)?)),
            (Some(format), Some(grammar)) => Ok(Some(Grammar::Choice(vec![calls(format)?, grammar]))),
            (_, grammar) => Ok(grammar),
        }
    }

    /// Compiles a grammar.
    fn mask(&self, grammar: &Grammar) -> Result<MaskSource, Refusal> {
        let failed = |error: &GrammarError| Refusal::of("response_format", error.to_string());
        let tokenizer = self.tokenizer()?;
        let compiler =
            self.grammars.get_or_init(|| GrammarCompiler::new(tokenizer)).as_ref().map_err(failed)?;
        compiler.compile(grammar).map(MaskSource::from).map_err(|error| failed(&error))
    }

    /// Checks biases, which the engine would refuse when it starts the answer.
    pub(crate) fn check_bias(&self, settings: &Settings) -> Result<(), Refusal> {
        let vocabulary = self.model.hyperparameters().vocabulary;
        match settings.shaping.bias.iter().find(|(token, _)| *token >= vocabulary) {
            Some((token, _)) => {
                let message = format!("token {token} is outside the vocabulary of {vocabulary}");
                Err(Refusal::of("logit_bias", message))
            }
            None => Ok(()),
        }
    }

    /// Computes the log probabilities of a prompt, and those of the `top` most likely tokens at each position.
    pub(crate) async fn prompt_logs(&self, prompt: &Prepared, top: u32) -> Result<Vec<Log>, Refusal> {
        let tokenizer = self.tokenizer()?;
        let mut logs: Vec<Log> =
            prompt.ids.first().map(|id| Log::first(*id, tokenizer)).into_iter().collect();
        let mut rows = self.session.start_logits(&prompt.ids);
        let mut next = prompt.ids.iter().skip(1);
        while let Some(row) = rows.next_row().await? {
            let Some(token) = next.next() else { break };
            let log = LogProbabilities::of(&row, *token, top);
            let log = log.map_err(|cause| Refusal::new(Kind::Internal, cause.to_string()))?;
            logs.push(Log::new(&log, tokenizer));
        }
        Ok(logs)
    }

    pub(crate) fn cannot_encode(&self, cause: impl std::fmt::Display) -> Refusal {
        Refusal::new(Kind::Invalid, format!("cannot encode the text: {cause}"))
    }

    /// Checks that a prompt leaves room for a token, so that the pipeline does not refuse it later.
    fn check_tokens(&self, ids: &[u32]) -> Result<(), Refusal> {
        let context = self.context() as usize;
        if ids.is_empty() {
            return Err(Refusal::new(Kind::Invalid, "the prompt is empty"));
        }
        if ids.len() >= context {
            let message = format!("the prompt has {} tokens, the context holds {context}", ids.len());
            return Err(Refusal::new(Kind::Invalid, message).code("context_length_exceeded"));
        }
        let vocabulary = self.model.hyperparameters().vocabulary;
        match ids.iter().find(|id| **id >= vocabulary) {
            Some(id) => {
                Err(Refusal::of("prompt", format!("token {id} is outside the vocabulary of {vocabulary}")))
            }
            None => Ok(()),
        }
    }

    /// Starts the answer `index` to a prompt.
    pub(crate) fn start(
        &self,
        prompt: &Prepared,
        settings: &Settings,
        index: u64,
        deadline: Duration,
    ) -> Result<(TokenStream, Assembler), Refusal> {
        // The context may have become shorter since the prompt was made.
        let room = self.context().saturating_sub(prompt.ids.len() as u32);
        let mut sampling = settings.sampling;
        sampling.seed = sampling.seed.map(|seed| seed.wrapping_add(index));
        let generation = Generation {
            max_tokens: settings.max_tokens.unwrap_or(room).min(room),
            sampling,
            shaping: settings.shaping.clone(),
            mask: prompt.mask.clone(),
            stop: settings.stop.clone(),
            deadline: Some(deadline),
            ..Generation::default()
        };
        let prompt_ids = ragtag_engine::Prompt::Tokens(&prompt.ids);
        let stream = self.session.try_generate(prompt_ids, &generation)?;
        let assembler = match &prompt.splitter {
            Some(splitter) => Assembler::chat(splitter.clone(), prompt.format, prompt.takes_one_call),
            None => Assembler::default(),
        };
        Ok((stream, assembler))
    }
}

/// Returns the variable with which a template takes the effort of the reasoning.
fn effort_variable(template: &str, effort: &str) -> Result<(&'static str, Data), Refusal> {
    let has_effort = template.contains("reasoning_effort");
    let has_switch = template.contains("enable_thinking");
    match effort {
        _ if has_effort => Ok(("reasoning_effort", effort.into())),
        // Without reasoning in the template, there is nothing to turn off.
        "none" => Ok(("enable_thinking", false.into())),
        _ if has_switch => Ok(("enable_thinking", true.into())),
        _ => Err(Refusal::of("reasoning_effort", "the model's chat template has no reasoning effort")),
    }
}
