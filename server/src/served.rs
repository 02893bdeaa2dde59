//! A loaded model: its engine and its chat template.

use crate::answer::Assembler;
use crate::job::{Chat, Input, Settings};
use crate::refusal::{Kind, Refusal};
use crate::tools::Format;
use ragtag_engine::chat::Data;
use ragtag_engine::{
    Dialogue, Engine, Error, Generation, Model, Planner, ReasoningSplitter, Session, TokenStream, Tokenizer,
};
use serde_json::Value;
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
        self.failure.get().map(String::as_str)
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

    /// Encodes a prompt. Control tokens in texts of the client stay text.
    pub(crate) fn prepare(&self, input: Input) -> Result<Prepared, Refusal> {
        let prepared = match input {
            Input::Tokens(ids) => Prepared { ids, splitter: None, format: None, takes_one_call: false },
            Input::Text(text) => {
                let ids = self.tokenizer()?.encode(&text, true).map_err(|cause| self.cannot_encode(cause))?;
                Prepared { ids, splitter: None, format: None, takes_one_call: false }
            }
            Input::Chat(chat) => {
                let (dialogue, format) = self.dialogue(&chat)?;
                let prompt = dialogue.prompt()?;
                let takes_one_call = chat.takes_one_call;
                Prepared { ids: prompt.ids, splitter: Some(prompt.splitter), format, takes_one_call }
            }
        };
        self.check_tokens(&prepared.ids)?;
        Ok(prepared)
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
        let room = self.context() - prompt.ids.len() as u32;
        let mut sampling = settings.sampling;
        sampling.seed = sampling.seed.map(|seed| seed.wrapping_add(index));
        let generation = Generation {
            max_tokens: settings.max_tokens.unwrap_or(room).min(room),
            sampling,
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
