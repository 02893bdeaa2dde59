//! Metrics for Prometheus: Ragtag's own names, and those of vLLM, which dashboards and autoscalers read.

use crate::answer::Ended;
use crate::refusal::{Kind, Refusal};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry};
use ragtag_engine::Engine;
use serde::Serialize;
use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// Upper bounds of the buckets of times, in seconds.
const SECONDS: [f64; 16] =
    [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

/// Number of recent times in the percentiles of the page.
const RECENT: usize = 4096;

type Labels = [(&'static str, String); 2];

/// All metrics of a server.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<Labels, Counter>,
    prompt_tokens: Counter,
    cached_tokens: Counter,
    new_tokens: Counter,
    answers: Counter,
    first_token_s: Times,
    next_token_s: Times,
    answer_s: Times,
    connections: Gauge,
    gauges: Gauges,
    /// First error that ended the pipeline.
    failure: OnceLock<String>,
}

/// Times of one kind, as a histogram for Prometheus and as a list of the most recent ones.
#[derive(Debug)]
struct Times {
    histogram: Histogram,
    recent_s: Mutex<VecDeque<f64>>,
}

/// Percentiles of the most recent times, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Percentiles {
    p50: f64,
    p90: f64,
    p99: f64,
}

/// Percentiles of all kinds of times, where there are any.
#[derive(Debug, Serialize)]
pub(crate) struct Latency {
    first_token: Option<Percentiles>,
    next_token: Option<Percentiles>,
    answer: Option<Percentiles>,
}

impl Times {
    fn observe(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        self.histogram.observe(seconds);
        let mut recent_s = self.recent_s.lock().unwrap_or_else(PoisonError::into_inner);
        if recent_s.len() == RECENT {
            recent_s.pop_front();
        }
        recent_s.push_back(seconds);
    }

    fn percentiles(&self) -> Option<Percentiles> {
        let mut sorted_s = Vec::from(self.recent_s.lock().unwrap_or_else(PoisonError::into_inner).clone());
        sorted_s.sort_unstable_by(f64::total_cmp);
        let last = sorted_s.len().checked_sub(1)?;
        let at = |percent: usize| sorted_s[last * percent / 100];
        Some(Percentiles { p50: at(50), p90: at(90), p99: at(99) })
    }
}

/// Values that are read from the engine when a client asks for them.
#[derive(Debug, Default)]
struct Gauges {
    running: Gauge,
    waiting: Gauge,
    kv_used: Gauge<f64, AtomicU64>,
    preempted: Gauge,
}

impl Metrics {
    pub(crate) fn new(model: &str) -> Self {
        let mut registry = Registry::default();
        let labelled = registry.sub_registry_with_label(("model_name".into(), model.to_owned().into()));
        let counter = |registry: &mut Registry, names: [&str; 2], help: &str| {
            both(registry, names, help, Counter::default())
        };
        let seconds = |registry: &mut Registry, names: [&str; 2], help: &str| {
            let histogram = both(registry, names, help, Histogram::new(SECONDS));
            Times { histogram, recent_s: Mutex::default() }
        };
        let gauges = Gauges {
            running: both(
                labelled,
                ["ragtag_requests_running", "vllm:num_requests_running"],
                "Sequences that are being computed",
                Gauge::default(),
            ),
            waiting: both(
                labelled,
                ["ragtag_requests_waiting", "vllm:num_requests_waiting"],
                "Sequences that wait for room in the KV cache",
                Gauge::default(),
            ),
            kv_used: both(
                labelled,
                ["ragtag_kv_cache_used_ratio", "vllm:kv_cache_usage_perc"],
                "Share of the KV cache that sequences use, from 0 to 1",
                Gauge::default(),
            ),
            preempted: both(
                labelled,
                ["ragtag_preempted", "vllm:num_preemptions"],
                "Sequences that gave up their blocks so far",
                Gauge::default(),
            ),
        };
        let connections = Gauge::default();
        labelled.register("ragtag_connections", "Open connections", connections.clone());
        let requests = Family::default();
        labelled.register("ragtag_http_requests", "Answered requests by path and status", requests.clone());
        Self {
            prompt_tokens: counter(
                labelled,
                ["ragtag_prompt_tokens", "vllm:prompt_tokens"],
                "Tokens of the prompts of ended sequences",
            ),
            cached_tokens: counter(
                labelled,
                ["ragtag_cached_tokens", "vllm:prefix_cache_hits"],
                "Tokens of these prompts that were in the KV cache",
            ),
            new_tokens: counter(
                labelled,
                ["ragtag_new_tokens", "vllm:generation_tokens"],
                "Generated tokens",
            ),
            answers: counter(labelled, ["ragtag_answers", "vllm:request_success"], "Ended sequences"),
            first_token_s: seconds(
                labelled,
                ["ragtag_first_token_seconds", "vllm:time_to_first_token_seconds"],
                "Time from the submission to the first token",
            ),
            next_token_s: seconds(
                labelled,
                ["ragtag_next_token_seconds", "vllm:inter_token_latency_seconds"],
                "Time between tokens",
            ),
            answer_s: seconds(
                labelled,
                ["ragtag_answer_seconds", "vllm:e2e_request_latency_seconds"],
                "Time from the submission to the end",
            ),
            registry,
            requests,
            connections,
            gauges,
            failure: OnceLock::new(),
        }
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

    pub(crate) fn first_token(&self, after: Duration) {
        self.first_token_s.observe(after);
    }

    pub(crate) fn next_token(&self, after: Duration) {
        self.next_token_s.observe(after);
    }

    pub(crate) fn answered(&self, after: Duration) {
        self.answer_s.observe(after);
    }

    pub(crate) fn latency(&self) -> Latency {
        Latency {
            first_token: self.first_token_s.percentiles(),
            next_token: self.next_token_s.percentiles(),
            answer: self.answer_s.percentiles(),
        }
    }

    /// Returns the number of open connections.
    pub(crate) fn connections(&self) -> i64 {
        self.connections.get()
    }

    pub(crate) fn ended(&self, ended: &Ended) {
        self.prompt_tokens.inc_by(ended.usage.prompt);
        self.cached_tokens.inc_by(ended.usage.cached);
        self.new_tokens.inc_by(ended.usage.new);
        self.answers.inc();
    }

    pub(crate) fn request(&self, path: &str, status: u16) {
        self.requests.get_or_create(&[("path", path.to_owned()), ("status", status.to_string())]).inc();
    }

    pub(crate) fn connected(&self) {
        self.connections.inc();
    }

    pub(crate) fn disconnected(&self) {
        self.connections.dec();
    }

    /// Returns all metrics as text, with the current load of `engine`.
    pub(crate) fn text(&self, engine: &Engine) -> String {
        let (counts, blocks) = (engine.stats().counts, engine.plan().kv_blocks);
        let used = blocks.saturating_sub(counts.free_blocks);
        self.gauges.running.set(counts.active.into());
        self.gauges.waiting.set(counts.waiting.into());
        self.gauges.kv_used.set(f64::from(used) / f64::from(blocks.max(1)));
        self.gauges.preempted.set(counts.preempted as i64);
        let mut text = String::new();
        // Writing to a text does not fail.
        let _ = prometheus_client::encoding::text::encode(&mut text, &self.registry);
        text
    }
}

/// Registers a metric under two names.
fn both<M: Metric + Clone>(registry: &mut Registry, names: [&str; 2], help: &str, metric: M) -> M {
    for name in names {
        registry.register(name, help, metric.clone());
    }
    metric
}
