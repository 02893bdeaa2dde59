//! `ragtag load`: sends requests to a server of OpenAI's API and measures the answers.
//!
//! `client.rs` has the connections, `prompt.rs` makes the prompts, `events.rs` reads the streams, and `report.rs`
//! summarizes the times.

mod client;
mod events;
mod prompt;
mod report;

pub use client::Error as LoadError;
pub use report::{Distribution, LoadReport};

use crate::signals::Signals;
use client::Target;
use events::Answer;
use prompt::{Prompts, random};
use report::Outcomes;
use serde_json::{Map, Value, json};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep_until, timeout};

/// A load of requests.
#[derive(Clone, Debug)]
pub struct Load {
    /// Base URL of the server, with or without `/v1`.
    pub url: String,
    /// Key that the server wants.
    pub key: Option<String>,
    /// File with the certificates to trust, in PEM format. URLs with `https` need it.
    pub certificates: Option<PathBuf>,
    /// Name of the model. `None` takes the first one that the server lists.
    pub model: Option<String>,
    /// Whether to use `/v1/completions` instead of `/v1/chat/completions`.
    pub is_completion: bool,
    /// Number of clients. Each sends its next request when it has its answer.
    pub clients: u32,
    /// Average number of requests per second, at random times, whatever has been answered. Replaces `clients`.
    pub rate_per_s: Option<f64>,
    /// Number of requests.
    pub requests: u32,
    /// Length of a prompt in tokens, without the chat template.
    pub prompt_tokens: u32,
    /// Number of these tokens that all prompts share, at their begin.
    pub shared_tokens: u32,
    /// Maximum length of an answer in tokens.
    pub new_tokens: u32,
    /// Further fields of each request.
    pub fields: Map<String, Value>,
    /// Time for a whole answer.
    pub timeout: Duration,
    /// Seed of the prompts and of the times.
    pub seed: u64,
}

/// Runs a load. Calls `progress` after each answer. Ctrl-C ends it, and the report has what there is.
///
/// # Errors
/// Returns an error if the URL is invalid, or if the server does not answer before the load begins.
pub fn load(load: &Load, progress: impl FnMut()) -> Result<LoadReport, LoadError> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(LoadError::Runtime)?;
    runtime.block_on(run(load, progress))
}

/// State that all requests of a load share.
struct Shared {
    target: Target,
    prompts: Prompts,
    load: Load,
    model: String,
    /// Number of the next request.
    next: AtomicU32,
}

async fn run(load: &Load, mut progress: impl FnMut()) -> Result<LoadReport, LoadError> {
    let target = Target::new(&load.url, load.key.as_deref(), load.certificates.as_deref())?;
    let prepared = async {
        let model = match &load.model {
            Some(model) => model.clone(),
            None => target.first_model().await?,
        };
        let prompts = Prompts::new(load, target.words_per_token(&prompt::sample(load.seed), &model).await);
        Ok::<_, LoadError>((model, prompts))
    };
    let (model, prompts) = timeout(load.timeout, prepared).await.map_err(|_| LoadError::Slow)??;
    // Before the load, a signal just ends the program.
    let mut signals = Signals::new().map_err(LoadError::Runtime)?;
    let measured_by = prompts.measured_by();
    let shared = Arc::new(Shared { target, prompts, load: load.clone(), model, next: AtomicU32::new(0) });
    let (sender, mut answers) = mpsc::unbounded_channel();
    let started = Instant::now();
    let mut senders = JoinSet::new();
    match load.rate_per_s {
        Some(rate_per_s) => {
            senders.spawn(at_rate(Arc::clone(&shared), rate_per_s, sender));
        }
        None => {
            for _ in 0..load.clients.min(load.requests) {
                senders.spawn(one_by_one(Arc::clone(&shared), sender.clone()));
            }
            drop(sender);
        }
    }
    let (mut outcomes, mut is_interrupted) = (Outcomes::default(), false);
    loop {
        let answer = tokio::select! {
            answer = answers.recv() => answer,
            () = signals.next() => {
                is_interrupted = true;
                None
            }
        };
        let Some(answer) = answer else { break };
        outcomes.add(answer);
        progress();
    }
    Ok(outcomes.report(load, &shared.model, measured_by, started.elapsed(), is_interrupted))
}

type Answers = mpsc::UnboundedSender<Result<Answer, String>>;

/// Sends requests until none is left, each after the answer to the one before.
async fn one_by_one(shared: Arc<Shared>, answers: Answers) {
    let next = || Some(shared.next.fetch_add(1, Ordering::Relaxed)).filter(|n| *n < shared.load.requests);
    while let Some(number) = next() {
        let _ = answers.send(shared.ask(number).await);
    }
}

/// Sends requests at random times.
async fn at_rate(shared: Arc<Shared>, rate_per_s: f64, answers: Answers) {
    let mut at = tokio::time::Instant::now();
    let mut asked = JoinSet::new();
    for number in 0..shared.load.requests {
        sleep_until(at).await;
        let (here, answers) = (Arc::clone(&shared), answers.clone());
        asked.spawn(async move {
            let _ = answers.send(here.ask(number).await);
        });
        // Times between independent requests have an exponential distribution.
        let draw = random(shared.load.seed ^ u64::from(number) << 32) as f64 / u64::MAX as f64;
        at += Duration::from_secs_f64((-(1.0 - draw).max(f64::MIN_POSITIVE).ln() / rate_per_s).min(3600.0));
    }
    drop(answers);
    while asked.join_next().await.is_some() {}
}

impl Shared {
    /// Sends request `number` and reads its answer.
    async fn ask(&self, number: u32) -> Result<Answer, String> {
        let Self { load, model, .. } = self;
        let prompt = self.prompts.prompt(number);
        let mut body = json!({
            "model": model,
            "max_tokens": load.new_tokens,
            "temperature": 0,
            "stream": true,
            "stream_options": { "include_usage": true },
        });
        let path = if load.is_completion {
            body["prompt"] = prompt.into();
            "/v1/completions"
        } else {
            body["messages"] = json!([{ "role": "user", "content": prompt }]);
            "/v1/chat/completions"
        };
        for (name, value) in &load.fields {
            body[name] = value.clone();
        }
        let answer = timeout(load.timeout, self.target.stream(path, body.to_string()));
        answer.await.map_err(|_| "no whole answer in time".to_owned())?.map_err(|cause| cause.to_string())
    }
}
