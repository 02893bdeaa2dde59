//! The figures of the page: samples of the last minutes, predicted and measured times, percentiles, and the plan.

use crate::http::Server;
use ragtag_engine::Engine;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
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

/// Memory of the page: recent samples, and the last comparison.
#[derive(Debug)]
pub(crate) struct Monitor {
    started: Instant,
    samples: Mutex<VecDeque<Sample>>,
    compared: Mutex<Option<(Instant, Value)>>,
}

impl Default for Monitor {
    fn default() -> Self {
        Self { started: Instant::now(), samples: Mutex::default(), compared: Mutex::default() }
    }
}

/// Takes samples of a server's pipeline, for ever.
pub(crate) async fn watch(server: Arc<Server>) {
    let mut ticks = interval(STEP);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        server.monitor.sample(&server.served.engine);
    }
}

impl Monitor {
    fn sample(&self, engine: &Engine) {
        let stats = engine.stats();
        let sample = Sample {
            at_ms: self.started.elapsed().as_millis() as u64,
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
        };
        let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        if samples.len() == SAMPLES {
            samples.pop_front();
        }
        samples.push_back(sample);
    }

    fn after(&self, since_ms: Option<u64>) -> Vec<Sample> {
        let samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = |sample: &&Sample| since_ms.is_none_or(|since_ms| sample.at_ms > since_ms);
        samples.iter().filter(is_new).cloned().collect()
    }

    /// Returns the comparison of predicted with measured times. Any number of pages costs one comparison.
    fn compared(&self, server: &Server) -> Value {
        let Some(planner) = &server.served.planner else { return json!([]) };
        let mut kept = self.compared.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, parts)) = kept.as_ref().filter(|(at, _)| at.elapsed() < COMPARED) {
            return parts.clone();
        }
        let parts = planner.compare(&server.served.engine, &[]).map_or(json!([]), |all| json!(all.parts));
        *kept = Some((Instant::now(), parts.clone()));
        parts
    }
}

/// Returns the state of the server. With `since_ms`, it has only the later samples, and neither plan nor devices.
pub(crate) fn state(server: &Server, since_ms: Option<u64>) -> Value {
    let (engine, monitor) = (&server.served.engine, &server.monitor);
    let (stats, plan) = (engine.stats(), engine.plan());
    let counts = stats.counts;
    let mut state = json!({
        "ragtag": env!("CARGO_PKG_VERSION"),
        "model": server.served.name(),
        "up_s": monitor.started.elapsed().as_secs(),
        "failure": server.unhealthy(),
        "connections": server.metrics.connections(),
        "requests": counts,
        "kv_blocks": {
            "total": plan.kv_blocks,
            "used": plan.kv_blocks.saturating_sub(counts.free_blocks),
            "cached": counts.cached_blocks,
        },
        "latency_s": server.metrics.latency(),
        "routes": stats.routes,
        "compared": monitor.compared(server),
        "samples": monitor.after(since_ms),
    });
    if since_ms.is_none() {
        let devices = engine.stages().iter().map(|stage| {
            json!({
                "name": stage.adapter.name,
                "segments": [stage.segments.start, stage.segments.end - 1],
            })
        });
        state["devices"] = devices.collect();
        state["split"] = plan.split().to_string().into();
        state["plan"] = json!(plan);
    }
    state
}
