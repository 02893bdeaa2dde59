//! Routes: bodies in, answers and streams out.

use crate::admin;
use crate::anthropic::MessagesRequest;
use crate::embeddings::{self, EmbeddingRequest};
use crate::job::{Input, Job, MAX_TOKEN_IDS, Named, Rest, Stamp, check_rest};
use crate::metrics::Metrics;
use crate::models::{InUse, Models};
use crate::monitor::Monitor;
use crate::openai::{ChatRequest, CompletionRequest};
use crate::options::Options;
use crate::refusal::{Kind, Refusal, Shape};
use crate::responses::ResponsesRequest;
use crate::running::{EventStream, Running};
use crate::served::{Prepared, Served};
use axum::body::{Body, Bytes};
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Router, middleware};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::Semaphore;
use tower_http::catch_panic::CatchPanicLayer;
use utoipa::{OpenApi, ToSchema};

/// Bits of a drawn seed, so that every JSON reader keeps it exactly.
const SEED_BITS: u32 = 53;
/// Seconds after which a refused client may try again.
const RETRY_S: &str = "1";

/// State that all requests share.
pub(crate) struct Server {
    pub(crate) models: Models,
    pub(crate) options: Options,
    pub(crate) metrics: Metrics,
    pub(crate) monitor: Monitor,
    /// Whether the server stops. It then answers what it has begun.
    pub(crate) is_stopping: AtomicBool,
    /// Whether only this machine can connect.
    pub(crate) is_local: bool,
    /// Room for bodies, in KiB.
    bodies: Semaphore,
    /// Threads that read requests and encode prompts.
    encoders: Arc<Semaphore>,
    next_id: AtomicU64,
    random: RandomState,
    started_s: u64,
}

pub(crate) type Shared = State<Arc<Server>>;

impl Server {
    pub(crate) fn new(models: Models, options: Options, is_local: bool) -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            metrics: Metrics::new(),
            monitor: Monitor::default(),
            models,
            is_stopping: AtomicBool::new(false),
            is_local,
            bodies: Semaphore::new((options.bodies_bytes >> 10).max(1)),
            options,
            encoders: Arc::new(Semaphore::new(threads)),
            next_id: AtomicU64::new(0),
            random: RandomState::new(),
            started_s: now_s(),
        }
    }

    /// Returns a number that no other request has, and that clients cannot guess.
    pub(crate) fn draw(&self) -> u64 {
        self.random.hash_one(self.next_id.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the identity of an answer of the model with this name.
    fn stamp(&self, model: Option<&str>) -> Result<Stamp, Refusal> {
        Ok(Stamp {
            id: format!("{:016x}", self.draw()),
            created_s: now_s(),
            model: self.models.name(model)?.to_owned(),
            seed: self.draw() >> (u64::BITS - SEED_BITS),
        })
    }

    /// Reads a body within the limits of size and time.
    async fn body(&self, headers: &HeaderMap, body: Body) -> Result<Bytes, Refusal> {
        let most = self.options.body_bytes;
        let stated =
            headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        let too_large = || Refusal::new(Kind::TooLarge, format!("the request has more than {most} bytes"));
        let bytes = match stated {
            Some(stated) if stated > most => return Err(too_large()),
            stated => stated.unwrap_or(most),
        };
        let read = async {
            let _room = self.bodies.acquire_many((bytes >> 10) as u32 + 1).await;
            axum::body::to_bytes(body, most).await
        };
        match tokio::time::timeout(self.options.patience, read).await {
            Ok(Ok(bytes)) => Ok(bytes),
            Ok(Err(cause)) if is_limit(&cause) => Err(too_large()),
            Ok(Err(_)) => Err(Refusal::new(Kind::Invalid, "the request ended early")),
            Err(_) => Err(Refusal::new(Kind::Slow, "the request did not arrive in time")),
        }
    }

    /// Does work that may take long on a thread of its own.
    async fn work<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        let stopping = |_| Refusal::new(Kind::Unavailable, "stopping");
        let permit = Arc::clone(&self.encoders).acquire_owned().await.map_err(stopping)?;
        let done = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            work()
        });
        done.await.map_err(|_| Refusal::new(Kind::Internal, "the request could not be handled"))?
    }

    /// Parses a request.
    pub(crate) async fn read<R>(&self, request: Request) -> Result<R, Refusal>
    where
        R: DeserializeOwned + Send + 'static,
    {
        let (head, body) = request.into_parts();
        let body = self.body(&head.headers, body).await?;
        self.work(move || Ok(serde_json::from_slice(&body)?)).await
    }

    /// Parses a request and loads the model that it names.
    async fn parse<R>(self: &Arc<Self>, request: Request) -> Result<(R, InUse), Refusal>
    where
        R: DeserializeOwned + Named + Send + 'static,
    {
        let request: R = self.read(request).await?;
        let served = self.models.get(request.model()).await?;
        Ok((request, served))
    }

    /// Parses a request, and passes it to `work` with its model.
    async fn answer<R>(
        self: &Arc<Self>,
        request: Request,
        work: impl FnOnce(&Self, &Served, R) -> Result<Value, Refusal> + Send + 'static,
    ) -> Result<Value, Refusal>
    where
        R: DeserializeOwned + Named + Send + 'static,
    {
        let (request, served) = self.parse(request).await?;
        let server = Arc::clone(self);
        self.work(move || work(&server, &served, request)).await
    }

    /// Answers a request for a generation.
    async fn generate<R>(
        self: Arc<Self>,
        request: Request,
        shape: Shape,
        job: fn(R, &Stamp) -> Result<Job, Refusal>,
    ) -> Response
    where
        R: DeserializeOwned + Named + Send + 'static,
    {
        match self.started(request, job).await {
            Ok((job, running, prompt_tokens)) if job.is_stream => {
                let events = EventStream::new(running, job.writer, prompt_tokens);
                let headers = [
                    (header::CONTENT_TYPE, "text/event-stream"),
                    (header::CACHE_CONTROL, "no-cache"),
                    (header::HeaderName::from_static("x-accel-buffering"), "no"),
                ];
                (headers, Body::from_stream(events)).into_response()
            }
            Ok((job, running, _)) => match running.whole(job.writer).await {
                Ok(answer) => written(StatusCode::OK, &answer),
                Err(refusal) => refused(&refusal, shape),
            },
            Err(refusal) => refused(&refusal, shape),
        }
    }

    async fn started<R>(
        self: &Arc<Self>,
        request: Request,
        job: fn(R, &Stamp) -> Result<Job, Refusal>,
    ) -> Result<(Job, Running, u64), Refusal>
    where
        R: DeserializeOwned + Named + Send + 'static,
    {
        let (request, served) = self.parse::<R>(request).await?;
        let stamp = self.stamp(request.model())?;
        let metrics = self.metrics.of(&stamp.model);
        let prepared = self.work(move || {
            let (job, prompts) = prepare(&served, job(request, &stamp)?)?;
            Ok((served, job, prompts))
        });
        let (served, mut job, prompts) = prepared.await?;
        if let Some(top) = job.settings.shaping.log_probabilities.filter(|_| job.writer.echoes()) {
            let mut logs = Vec::new();
            for prompt in &prompts {
                logs.push(served.prompt_logs(prompt, top).await?);
            }
            job.writer.set_echo_logs(logs);
        }
        let mut answers = Vec::new();
        for (at, prompt) in prompts.iter().enumerate() {
            for _ in 0..job.settings.n {
                let index = answers.len() as u64;
                let started = served.start(prompt, &job.settings, index, self.options.deadline);
                let (stream, assembler) = started.inspect_err(|refusal| served.failed(refusal))?;
                answers.push((at, stream, assembler));
            }
        }
        let tokens = prompts.iter().map(|prompt| prompt.ids.len() as u64).sum();
        Ok((job, Running::new(answers, served, metrics), tokens))
    }

    /// Answers a request for embeddings.
    async fn embed(self: &Arc<Self>, request: Request) -> Result<Value, Refusal> {
        let (request, served) = self.parse::<EmbeddingRequest>(request).await?;
        let stamp = self.stamp(request.model())?;
        let prepared = self.work(move || {
            let (inputs, encoding) = request.inputs(served.embedding_width()?)?;
            let ids = inputs.into_iter().map(|input| served.token_ids(input));
            Ok((ids.collect::<Result<Vec<_>, _>>()?, encoding, served))
        });
        let (ids, encoding, served) = prepared.await?;
        let vectors = tokio::time::timeout(self.options.deadline, served.embed(&ids)).await;
        let late = |_| Refusal::new(Kind::Slow, "the embeddings were not computed before the deadline");
        let vectors = vectors.map_err(late)?.inspect_err(|refusal| served.failed(refusal))?;
        let tokens = ids.iter().map(|ids| ids.len() as u64).sum();
        self.metrics.of(&stamp.model).embedded(tokens);
        self.work(move || Ok(embeddings::answer(&stamp, &vectors, encoding, tokens))).await
    }

    /// Returns why the server cannot answer, if it cannot.
    pub(crate) fn unhealthy(&self) -> Option<String> {
        let stopping = self.is_stopping.load(Ordering::Relaxed).then(|| "the server is stopping".to_owned());
        stopping.or_else(|| self.models.outage())
    }
}

/// Encodes the prompts of a job.
fn prepare(served: &Served, mut job: Job) -> Result<(Job, Vec<Prepared>), Refusal> {
    let inputs = std::mem::take(&mut job.prompts);
    if job.writer.echoes() {
        let tokenizer = served.tokenizer()?;
        let echo = inputs.iter().map(|input| match input {
            Input::Text(text) => text.clone(),
            Input::Tokens(ids) => tokenizer.decode(ids),
            Input::Chat(_) => String::new(),
        });
        job.writer.set_echo(echo.collect());
    }
    served.check_bias(&job.settings)?;
    let grammar = job.settings.grammar.as_ref();
    let prompts = inputs.into_iter().map(|input| served.prepare(input, grammar));
    let prompts = prompts.collect::<Result<_, _>>()?;
    Ok((job, prompts))
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Returns whether an error says that a body exceeds its limit.
fn is_limit(cause: &axum::Error) -> bool {
    let mut cause: Option<&dyn std::error::Error> = Some(cause);
    std::iter::from_fn(|| {
        let this = cause?;
        cause = this.source();
        Some(this.to_string())
    })
    .any(|text| text.contains("length limit exceeded"))
}

pub(crate) fn written(status: StatusCode, value: &Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}

/// Returns the answer to a refused request.
pub(crate) fn refused(refusal: &Refusal, shape: Shape) -> Response {
    let status = StatusCode::from_u16(refusal.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = written(status, &refusal.body(shape));
    if matches!(refusal.kind, Kind::Busy | Kind::Unavailable) {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static(RETRY_S));
    }
    response
}

/// Returns the shape of errors on a path.
pub(crate) fn shape(path: &str) -> Shape {
    if path.starts_with("/v1/messages") { Shape::Anthropic } else { Shape::OpenAi }
}

pub(crate) fn answered(result: Result<Value, Refusal>, shape: Shape) -> Response {
    result.map_or_else(|refusal| refused(&refusal, shape), |value| written(StatusCode::OK, &value))
}

/// Returns the router of all routes.
pub(crate) fn router(server: Arc<Server>) -> Router {
    Router::new()
        .route("/health", get(health))
        .route("/metrics", get(metrics))
        .route("/openapi.json", get(openapi))
        .route("/v1/models", get(models))
        .route("/v1/models/{*id}", get(model))
        .route("/v1/chat/completions", post(chat))
        .route("/v1/completions", post(completions))
        .route("/v1/responses", post(responses))
        .route("/v1/embeddings", post(embeddings))
        .route("/v1/messages", post(messages))
        .route("/v1/messages/count_tokens", post(count_tokens))
        .route("/admin/devices", post(admin::devices))
        .route("/tokenize", post(tokenize))
        .route("/detokenize", post(detokenize))
        .route("/apply-template", post(apply_template))
        .merge(crate::page::routes())
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .layer(CatchPanicLayer::custom(panicked))
        .layer(middleware::from_fn_with_state(Arc::clone(&server), crate::guard::guard))
        .with_state(server)
}

#[derive(OpenApi)]
#[openapi(
    info(title = "Ragtag", description = "One language model as a pipeline over the devices of a machine"),
    paths(
        health,
        metrics,
        models,
        model,
        chat,
        completions,
        responses,
        embeddings,
        messages,
        count_tokens,
        tokenize,
        detokenize,
        apply_template,
        admin::devices
    )
)]
struct Document;

async fn openapi() -> Response {
    written(StatusCode::OK, &serde_json::to_value(Document::openapi()).unwrap_or_default())
}

fn panicked(_: Box<dyn std::any::Any + Send>) -> Response {
    tracing::error!("a handler panicked");
    refused(&Refusal::new(Kind::Internal, "internal error"), Shape::OpenAi)
}

async fn unknown(request: Request) -> Response {
    let path = request.uri().path();
    refused(&Refusal::new(Kind::NotFound, "there is no such route"), shape(path))
}

async fn wrong_method(request: Request) -> Response {
    let path = request.uri().path();
    refused(&Refusal::new(Kind::Method, "this route has another method"), shape(path))
}

#[utoipa::path(get, path = "/health", responses((status = 200), (status = 503)))]
async fn health(State(server): Shared) -> Response {
    match server.unhealthy() {
        None => {
            let model = server.models.latest().map(|(name, _)| name);
            written(StatusCode::OK, &json!({ "status": "ok", "model": model }))
        }
        Some(reason) => {
            written(StatusCode::SERVICE_UNAVAILABLE, &json!({ "status": "unavailable", "reason": reason }))
        }
    }
}

#[utoipa::path(get, path = "/metrics", responses((status = 200), (status = 401)))]
async fn metrics(State(server): Shared) -> Response {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let models = server.models.all();
    let engines = models.iter().map(|(name, served)| (*name, served.as_ref().map(|served| &served.engine)));
    ([(header::CONTENT_TYPE, kind)], server.metrics.text(engines)).into_response()
}

fn described(server: &Server, name: &str, served: Option<&Served>) -> Value {
    json!({
        "id": name,
        "object": "model",
        "created": server.started_s,
        "owned_by": "ragtag",
        "type": "model",
        "display_name": name,
        "is_loaded": served.is_some(),
        "max_model_len": served.map(Served::context),
    })
}

#[utoipa::path(get, path = "/v1/models", responses((status = 200), (status = 401)))]
async fn models(State(server): Shared) -> Response {
    let models = server.models.all();
    let data: Vec<_> =
        models.iter().map(|(name, served)| described(&server, name, served.as_deref())).collect();
    let list = json!({
        "object": "list",
        "first_id": models.first().map(|(name, _)| name),
        "last_id": models.last().map(|(name, _)| name),
        "has_more": false,
        "data": data,
    });
    written(StatusCode::OK, &list)
}

#[utoipa::path(
    get, path = "/v1/models/{id}", params(("id" = String, Path)),
    responses((status = 200), (status = 401), (status = 404))
)]
async fn model(State(server): Shared, Path(id): Path<String>) -> Response {
    let found = server.models.name(Some(&id)).map(|name| {
        let models = server.models.all();
        let served = models.iter().find(|(own, _)| *own == name).and_then(|(_, served)| served.as_deref());
        described(&server, name, served)
    });
    answered(found, Shape::OpenAi)
}

#[utoipa::path(
    post, path = "/v1/chat/completions", request_body = ChatRequest,
    responses((status = 200), (status = 400), (status = 401), (status = 404), (status = 413), (status = 429), (status = 503))
)]
async fn chat(State(server): Shared, request: Request) -> Response {
    server.generate(request, Shape::OpenAi, ChatRequest::job).await
}

#[utoipa::path(
    post, path = "/v1/completions", request_body = CompletionRequest,
    responses((status = 200), (status = 400), (status = 401), (status = 404), (status = 413), (status = 429), (status = 503))
)]
async fn completions(State(server): Shared, request: Request) -> Response {
    server.generate(request, Shape::OpenAi, CompletionRequest::job).await
}

#[utoipa::path(
    post, path = "/v1/responses", request_body = ResponsesRequest,
    responses((status = 200), (status = 400), (status = 401), (status = 404), (status = 413), (status = 429), (status = 503))
)]
async fn responses(State(server): Shared, request: Request) -> Response {
    server.generate(request, Shape::OpenAi, ResponsesRequest::job).await
}

#[utoipa::path(
    post, path = "/v1/messages", request_body = MessagesRequest,
    responses((status = 200), (status = 400), (status = 401), (status = 404), (status = 413), (status = 429), (status = 503))
)]
async fn messages(State(server): Shared, request: Request) -> Response {
    server.generate(request, Shape::Anthropic, MessagesRequest::job).await
}

#[utoipa::path(
    post, path = "/v1/embeddings", request_body = EmbeddingRequest,
    responses((status = 200), (status = 400), (status = 401), (status = 404), (status = 408), (status = 413), (status = 429), (status = 503))
)]
async fn embeddings(State(server): Shared, request: Request) -> Response {
    answered(server.embed(request).await, Shape::OpenAi)
}

#[utoipa::path(
    post, path = "/v1/messages/count_tokens", request_body = MessagesRequest,
    responses((status = 200), (status = 400), (status = 401), (status = 404), (status = 413))
)]
async fn count_tokens(State(server): Shared, request: Request) -> Response {
    let counted = server.answer(request, |_, served, request: MessagesRequest| {
        let ids = served.dialogue(&request.chat()?.0)?.0.prompt()?.ids;
        Ok(json!({ "input_tokens": ids.len() }))
    });
    answered(counted.await, Shape::Anthropic)
}

impl Named for TokenizeRequest {
    fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }
}

/// A text to tokenize.
#[derive(Debug, Deserialize, ToSchema)]
struct TokenizeRequest {
    model: Option<String>,
    #[serde(alias = "prompt")]
    content: String,
    /// Whether to add the tokens with which the model expects a text to begin and end.
    #[serde(default, alias = "add_special_tokens")]
    add_special: bool,
    /// Whether to return the texts of the tokens, too.
    #[serde(default)]
    with_pieces: bool,
    #[serde(flatten)]
    #[schema(ignore)]
    rest: Rest,
}

#[utoipa::path(
    post, path = "/tokenize", request_body = TokenizeRequest,
    responses((status = 200), (status = 400), (status = 401), (status = 404), (status = 413))
)]
async fn tokenize(State(server): Shared, request: Request) -> Response {
    let tokenized = server.answer(request, |_, served, request: TokenizeRequest| {
        check_rest(&request.rest, &[])?;
        let tokenizer = served.tokenizer()?;
        let ids = tokenizer.encode(&request.content, request.add_special);
        let ids = ids.map_err(|cause| served.cannot_encode(cause))?;
        let piece = |id: &u32| json!({ "id": id, "piece": tokenizer.piece(*id) });
        let tokens = if request.with_pieces { ids.iter().map(piece).collect() } else { json!(ids) };
        Ok(json!({ "tokens": tokens, "count": ids.len(), "max_model_len": served.context() }))
    });
    answered(tokenized.await, Shape::OpenAi)
}

impl Named for DetokenizeRequest {
    fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }
}

/// Tokens to turn into text.
#[derive(Debug, Deserialize, ToSchema)]
struct DetokenizeRequest {
    model: Option<String>,
    tokens: Vec<u32>,
    #[serde(flatten)]
    #[schema(ignore)]
    rest: Rest,
}

#[utoipa::path(
    post, path = "/detokenize", request_body = DetokenizeRequest,
    responses((status = 200), (status = 400), (status = 401), (status = 404), (status = 413))
)]
async fn detokenize(State(server): Shared, request: Request) -> Response {
    let decoded = server.answer(request, |_, served, request: DetokenizeRequest| {
        check_rest(&request.rest, &[])?;
        let tokenizer = served.tokenizer()?;
        if let Some(id) = request.tokens.iter().find(|id| tokenizer.piece(**id).is_none()) {
            return Err(Refusal::of("tokens", format!("there is no token {id}")));
        }
        let text = tokenizer.decode(&request.tokens[..request.tokens.len().min(MAX_TOKEN_IDS)]);
        Ok(json!({ "content": text, "prompt": text }))
    });
    answered(decoded.await, Shape::OpenAi)
}

#[utoipa::path(
    post, path = "/apply-template", request_body = ChatRequest,
    responses((status = 200), (status = 400), (status = 401), (status = 404), (status = 413))
)]
async fn apply_template(State(server): Shared, request: Request) -> Response {
    let rendered = server.answer(request, |server, served, request: ChatRequest| {
        let stamp = server.stamp(request.model())?;
        match &request.job(&stamp)?.prompts[..] {
            [Input::Chat(chat)] => Ok(json!({ "prompt": served.dialogue(chat)?.0.prompt_text()? })),
            _ => Err(Refusal::of("messages", "the messages are missing")),
        }
    });
    answered(rendered.await, Shape::OpenAi)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_has_the_fields_of_the_requests() {
        let document = serde_json::to_value(Document::openapi()).unwrap();
        let schemas = &document["components"]["schemas"];
        assert!(schemas["ChatRequest"].to_string().contains("max_completion_tokens"), "{schemas}");
        assert!(schemas["Sampler"]["properties"]["temperature"].is_object(), "{schemas}");
    }
}
