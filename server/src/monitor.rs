//! The figures of the page: samples of the last minutes, predicted and measured times, percentiles, and the plan.

use crate::http::Server;
use crate::served::Served;
use ragtag_engine::{Engine, Plan};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use tokio::time::{MissedTickBehavior, interval};

/// Interval of the samples.
const STEP: Duration = Duration::from_secs(1);
/// Number of samples that the server keeps.
const SAMPLES: usize = 125;
/// Time for which a comparison of predicted and measured times is reused.
const COMPARED: Duration = Duration::from_secs(2);

/// Counts of a pipeline since its start, and its load.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Sample {
    at_ms: u64,
    prompt_tokens: u64,
    new_tokens: u64,
    /// Time in which each stage has computed.
    busy_us: Vec<u64>,
    /// Bytes that crossed each link, and the time for that.
    link_bytes: Vec<u64>,
    link_busy_us: Vec<u64>,
}

/// Memory of the page.
#[derive(Debug)]
pub(crate) struct Monitor {
    started: Instant,
    shown: Mutex<Shown>,
}

/// Recent samples of a pipeline, and its last comparison.
#[derive(Debug, Default)]
struct Shown {
    /// Number of pipelines so far. Counts of another pipeline start at 0, and it has another plan.
    run: u64,
    served: Weak<Served>,
    /// The plan, which a recovery replaces.
    plan: Option<Arc<Plan>>,
    samples: VecDeque<Sample>,
    compared: Option<(Instant, Value)>,
}

impl Default for Monitor {
    fn default() -> Self {
        Self { started: Instant::now(), shown: Mutex::default() }
    }
}

/// Takes samples of the model that was used last, and looks after all models, for ever.
pub(crate) async fn watch(server: Arc<Server>) {
    let mut ticks = interval(STEP);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if let Some((_, served)) = server.models.latest() {
            server.monitor.sample(&served);
        }
        server.models.tend().await;
    }
}

impl Shown {
    /// Starts again if this is another pipeline, or one that has recovered.
    fn show(&mut self, served: &Arc<Served>) {
        let (plan, served) = (served.engine.plan(), Arc::downgrade(served));
        let is_same_plan = self.plan.as_ref().is_some_and(|shown| Arc::ptr_eq(shown, &plan));
        if !is_same_plan || !self.served.ptr_eq(&served) {
            *self = Self { run: self.run + 1, served, plan: Some(plan), ..Self::default() };
        }
    }
}

impl Sample {
    fn of(engine: &Engine, at: Duration) -> Self {
        let stats = engine.stats();
        Self {
            at_ms: at.as_millis() as u64,
            prompt_tokens: stats.prompt_tokens,
            new_tokens: stats.new_tokens,
            busy_us: stats
                .stages
                .iter()
                .map(|stage| (stage.prefill.busy_ns + stage.decode.busy_ns) / 1000)
                .collect(),
            link_bytes: stats.edges.iter().map(|edge| edge.prefill.bytes + edge.decode.bytes).collect(),
            link_busy_us: stats
                .edges
                .iter()
                .map(|edge| (edge.prefill.busy_ns + edge.decode.busy_ns) / 1000)
                .collect(),
        }
    }
}

impl Monitor {
    /// Locks the memory for the pipeline of `served`.
    fn shown(&self, served: &Arc<Served>) -> MutexGuard<'_, Shown> {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        shown.show(served);
        shown
    }

    fn sample(&self, served: &Arc<Served>) {
        let sample = Sample::of(&served.engine, self.started.elapsed());
        let samples = &mut self.shown(served).samples;
        if samples.len() == SAMPLES {
            samples.pop_front();
        }
        samples.push_back(sample);
    }

    /// Returns the number of the pipeline, and its samples.
    fn after(&self, served: &Arc<Served>, since_ms: Option<u64>) -> (u64, Vec<Sample>) {
        let shown = self.shown(served);
        let is_new = |sample: &&Sample| since_ms.is_none_or(|since_ms| sample.at_ms > since_ms);
        (shown.run, shown.samples.iter().filter(is_new).cloned().collect())
    }

    /// Returns the comparison of predicted with measured times. Any number of pages costs one comparison.
    fn compared(&self, served: &Arc<Served>) -> Value {
        let Some(planner) = &served.planner else { return json!([]) };
        let mut shown = self.shown(served);
        if let Some((_, parts)) = shown.compared.as_ref().filter(|(at, _)| at.elapsed() < COMPARED) {
            return parts.clone();
        }
        let parts = planner.compare(&served.engine, &[]).map_or(json!([]), |all| json!(all.parts));
        shown.compared = Some((Instant::now(), parts.clone()));
        parts
    }
}

/// Returns the state of the server and of the model that was used last. With `since_ms`, it has only the later samples,
/// and neither plan nor devices.
pub(crate) fn state(server: &Server, since_ms: Option<u64>) -> Value {
    let models = server.models.all().into_iter();
    let models = models.map(|(name, served)| json!({ "name": name, "is_loaded": served.is_some() }));
    let mut state = json!({
        "ragtag": env!("CARGO_PKG_VERSION"),
        "models": models.collect::<Vec<_>>(),
        "up_s": server.monitor.started.elapsed().as_secs(),
        "failure": server.unhealthy(),
        "connections": server.metrics.connections(),
    });
    if let Some((name, served)) = server.models.latest() {
        state["model"] = name.into();
        state["pipeline"] = pipeline(server, name, &served, since_ms);
    }
    state
}

fn pipeline(server: &Server, name: &str, served: &Arc<Served>, since_ms: Option<u64>) -> Value {
    let (engine, monitor) = (&served.engine, &server.monitor);
    let (stats, plan) = (engine.stats(), engine.plan());
    let counts = stats.counts;
    let (run, samples) = monitor.after(served, since_ms);
    let mut pipeline = json!({
        "run": run,
        "requests": counts,
        "kv_blocks": {
            "total": plan.kv_blocks,
            "used": plan.kv_blocks.saturating_sub(counts.free_blocks),
            "cached": counts.cached_blocks,
        },
        "latency_s": server.metrics.of(name).latency(),
        "routes": stats.routes,
        "compared": monitor.compared(served),
        "samples": samples,
    });
    if since_ms.is_none() {
        let stages = engine.stages();
        let devices = stages.iter().map(|stage| {
            json!({
                "name": stage.adapter.name,
                "segments": [stage.segments.start, stage.segments.end - 1],
            })
        });
        pipeline["devices"] = devices.collect();
        pipeline["split"] = plan.split().to_string().into();
        pipeline["plan"] = json!(*plan);
    }
    pipeline
}
