//! Metrics for Prometheus: Ragtag's own names, and those of vLLM, which dashboards and autoscalers read.

use crate::answer::Ended;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry};
use ragtag_engine::Engine;
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Upper bounds of the buckets of times, in seconds.
const SECONDS: [f64; 16] =
    [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

/// Number of recent times in the percentiles of the page.
const RECENT: usize = 4096;

type Labels = [(&'static str, String); 2];
/// Label of the metrics of a model.
type Name = [(&'static str, String); 1];
/// A histogram for each model.
type Histograms = Family<Name, Histogram, fn() -> Histogram>;

/// All metrics of a server.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<Labels, Counter>,
    connections: Gauge,
    counters: Counters<Family<Name, Counter>>,
    times: Times<Histograms>,
    gauges: Gauges,
    models: Mutex<BTreeMap<String, ModelMetrics>>,
}

/// Metrics of a model.
#[derive(Clone, Debug)]
pub(crate) struct ModelMetrics {
    counters: Counters<Counter>,
    times: Times<Recent>,
}

#[derive(Clone, Debug)]
struct Counters<C> {
    prompt_tokens: C,
    cached_tokens: C,
    new_tokens: C,
    answers: C,
}

#[derive(Clone, Debug)]
struct Times<T> {
    first_token: T,
    next_token: T,
    answer: T,
}

/// Times of one kind, as a histogram for Prometheus and as a list of the most recent ones.
#[derive(Clone, Debug)]
struct Recent {
    histogram: Histogram,
    recent_s: Arc<Mutex<VecDeque<f64>>>,
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

impl Recent {
    fn of(family: &Histograms, name: &Name) -> Self {
        Self { histogram: family.get_or_create_owned(name), recent_s: Arc::default() }
    }

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

/// Values that are read from the engines when a client asks for them.
#[derive(Debug)]
struct Gauges {
    running: Family<Name, Gauge>,
    waiting: Family<Name, Gauge>,
    kv_used: Family<Name, Gauge<f64, AtomicU64>>,
    preempted: Family<Name, Gauge>,
    loaded: Family<Name, Gauge>,
    recoveries: Family<Name, Counter>,
    lost: Family<Labels, Counter>,
    left_bytes: Family<Labels, Gauge>,
    changes: Family<Name, Counter>,
    restarted_s: Family<Name, Gauge<f64, AtomicU64>>,
    continued_s: Family<Name, Gauge<f64, AtomicU64>>,
}

fn histogram() -> Histogram {
    Histogram::new(SECONDS)
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut registry = Registry::default();
        let gauges = Gauges::new(&mut registry);
        let connections = Gauge::default();
        registry.register("ragtag_connections", "Open connections", connections.clone());
        let requests = Family::default();
        registry.register("ragtag_http_requests", "Answered requests by path and status", requests.clone());
        let mut counter = |names: [&str; 2], help: &str| both(&mut registry, names, help, Family::default());
        let counters = Counters {
            prompt_tokens: counter(
                ["ragtag_prompt_tokens", "vllm:prompt_tokens"],
                "Tokens of the prompts of ended sequences",
            ),
            cached_tokens: counter(
                ["ragtag_cached_tokens", "vllm:prefix_cache_hits"],
                "Tokens of these prompts that were in the KV cache",
            ),
            new_tokens: counter(["ragtag_new_tokens", "vllm:generation_tokens"], "Generated tokens"),
            answers: counter(["ragtag_answers", "vllm:request_success"], "Ended sequences"),
        };
        let mut seconds = |names: [&str; 2], help: &str| {
            both(&mut registry, names, help, Family::new_with_constructor(histogram as fn() -> Histogram))
        };
        let times = Times {
            first_token: seconds(
                ["ragtag_first_token_seconds", "vllm:time_to_first_token_seconds"],
                "Time from the submission to the first token",
            ),
            next_token: seconds(
                ["ragtag_next_token_seconds", "vllm:inter_token_latency_seconds"],
                "Time between tokens",
            ),
            answer: seconds(
                ["ragtag_answer_seconds", "vllm:e2e_request_latency_seconds"],
                "Time from the submission to the end",
            ),
        };
        Self { registry, requests, connections, counters, times, gauges, models: Mutex::default() }
    }

    /// Returns the metrics of the model with this name.
    pub(crate) fn of(&self, model: &str) -> ModelMetrics {
        let mut models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(metrics) = models.get(model) {
            return metrics.clone();
        }
        let name = named(model);
        let (Counters { prompt_tokens, cached_tokens, new_tokens, answers }, times) =
            (&self.counters, &self.times);
        let metrics = ModelMetrics {
            counters: Counters {
                prompt_tokens: prompt_tokens.get_or_create_owned(&name),
                cached_tokens: cached_tokens.get_or_create_owned(&name),
                new_tokens: new_tokens.get_or_create_owned(&name),
                answers: answers.get_or_create_owned(&name),
            },
            times: Times {
                first_token: Recent::of(&times.first_token, &name),
                next_token: Recent::of(&times.next_token, &name),
                answer: Recent::of(&times.answer, &name),
            },
        };
        models.insert(model.to_owned(), metrics.clone());
        metrics
    }

    /// Returns the number of open connections.
    pub(crate) fn connections(&self) -> i64 {
        self.connections.get()
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

    /// Returns all metrics as text, with the current load of `models`. Those without an engine are not loaded.
    pub(crate) fn text<'a>(&self, models: impl Iterator<Item = (&'a str, Option<&'a Engine>)>) -> String {
        for (model, engine) in models {
            self.of(model);
            self.gauges.set(&named(model), engine);
        }
        let mut text = String::new();
        // Writing to a text does not fail.
        let _ = prometheus_client::encoding::text::encode(&mut text, &self.registry);
        text
    }
}

impl ModelMetrics {
    pub(crate) fn first_token(&self, after: Duration) {
        self.times.first_token.observe(after);
    }

    pub(crate) fn next_token(&self, after: Duration) {
        self.times.next_token.observe(after);
    }

    pub(crate) fn answered(&self, after: Duration) {
        self.times.answer.observe(after);
    }

    pub(crate) fn latency(&self) -> Latency {
        Latency {
            first_token: self.times.first_token.percentiles(),
            next_token: self.times.next_token.percentiles(),
            answer: self.times.answer.percentiles(),
        }
    }

    pub(crate) fn embedded(&self, tokens: u64) {
        self.counters.prompt_tokens.inc_by(tokens);
    }

    pub(crate) fn ended(&self, ended: &Ended) {
        self.counters.prompt_tokens.inc_by(ended.usage.prompt);
        self.counters.cached_tokens.inc_by(ended.usage.cached);
        self.counters.new_tokens.inc_by(ended.usage.new);
        self.counters.answers.inc();
    }
}

impl Gauges {
    fn new(registry: &mut Registry) -> Self {
        Self {
            running: both(
                registry,
                ["ragtag_requests_running", "vllm:num_requests_running"],
                "Sequences that are being computed",
                Family::default(),
            ),
            waiting: both(
                registry,
                ["ragtag_requests_waiting", "vllm:num_requests_waiting"],
                "Sequences that wait for room in the KV cache",
                Family::default(),
            ),
            kv_used: both(
                registry,
                ["ragtag_kv_cache_used_ratio", "vllm:kv_cache_usage_perc"],
                "Share of the KV cache that sequences use, from 0 to 1",
                Family::default(),
            ),
            preempted: both(
                registry,
                ["ragtag_preempted", "vllm:num_preemptions"],
                "Sequences that gave up their blocks since the model was loaded",
                Family::default(),
            ),
            loaded: registered(registry, ["ragtag_model_loaded", "1 if the model is loaded"]),
            recoveries: registered(
                registry,
                ["ragtag_recoveries", "Recoveries from failures of devices since the model was loaded"],
            ),
            lost: registered(
                registry,
                ["ragtag_devices_lost", "Failures of devices since the model was loaded, by device"],
            ),
            left_bytes: registered(
                registry,
                ["ragtag_device_left_bytes", "Memory of devices that hung and were left behind, by device"],
            ),
            changes: registered(
                registry,
                ["ragtag_device_changes", "Changes of the devices since the model was loaded"],
            ),
            restarted_s: registered(
                registry,
                [
                    "ragtag_interruption_load_seconds",
                    "Time of the latest interruption until the model was loaded",
                ],
            ),
            continued_s: registered(
                registry,
                ["ragtag_interruption_token_seconds", "Time of the latest interruption until the next token"],
            ),
        }
    }

    fn set(&self, name: &Name, engine: Option<&Engine>) {
        let stats = engine.map(Engine::stats).unwrap_or_default();
        let (counts, interruptions) = (stats.counts, stats.interruptions);
        let blocks = engine.map_or(0, |engine| engine.plan().kv_blocks);
        let used = blocks.saturating_sub(counts.free_blocks);
        self.running.get_or_create(name).set(counts.active.into());
        self.waiting.get_or_create(name).set(counts.waiting.into());
        self.kv_used.get_or_create(name).set(f64::from(used) / f64::from(blocks.max(1)));
        self.preempted.get_or_create(name).set(counts.preempted as i64);
        self.loaded.get_or_create(name).set(engine.is_some().into());
        let recovery = engine.map(Engine::recovery).unwrap_or_default();
        self.recoveries.get_or_create(name).inner().store(recovery.recoveries, Ordering::Relaxed);
        self.changes.get_or_create(name).inner().store(recovery.changes, Ordering::Relaxed);
        let seconds = |ns: u64| ns as f64 / 1e9;
        self.restarted_s.get_or_create(name).set(seconds(interruptions.restarted_ns));
        if let Some(token_ns) = interruptions.token_ns {
            self.continued_s.get_or_create(name).set(seconds(token_ns));
        }
        let of = |device| [name[0].clone(), ("device", device)];
        for (device, count) in recovery.lost {
            self.lost.get_or_create(&of(device)).inner().store(count, Ordering::Relaxed);
        }
        for (device, bytes) in recovery.left_bytes {
            self.left_bytes.get_or_create(&of(device)).set(i64::try_from(bytes).unwrap_or(i64::MAX));
        }
    }
}

fn named(model: &str) -> Name {
    [("model_name", model.to_owned())]
}

/// Registers a metric with a name and a description.
fn registered<M: Metric + Clone + Default>(registry: &mut Registry, [name, help]: [&str; 2]) -> M {
    let metric = M::default();
    registry.register(name, help, metric.clone());
    metric
}

/// Registers a metric under two names.
fn both<M: Metric + Clone>(registry: &mut Registry, names: [&str; 2], help: &str, metric: M) -> M {
    for name in names {
        registry.register(name, help, metric.clone());
    }
    metric
}
