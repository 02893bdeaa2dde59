//! Summarises a simulated run: rates, latencies, utilisation, and the spans for its chart. This module does
//! not depend on the simulator's internals.

use crate::core::{FinishReason, Nanoseconds};
use crate::sim::observe::{Level, Observations, Work};
use crate::sim::{SimOutcome, SimReport, SimSpan, SimSpec};
use crate::trace::Computed;
use ragtag_hal::QueueKind;
use serde::{Deserialize, Serialize};

/// Summary of a simulated run. Rates and fractions of time refer to the period from the first request to the
/// end of the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SimSummary {
    /// Number of requests that received all their tokens, or as many as fit into the context.
    pub finished: u64,
    /// Number of finished requests that ended early because the context was full.
    pub cut_short: u64,
    /// Number of requests that were rejected because they do not fit the plan.
    pub refused: u64,
    /// Prompt tokens of finished requests.
    pub prompt_tokens: u64,
    /// Generated tokens of finished requests.
    pub new_tokens: u64,
    /// Time from the first request to the end of the run, in microseconds.
    pub duration_us: f64,
    /// Finished requests per second.
    pub requests_per_s: f64,
    /// Prompt tokens of finished requests per second.
    pub prefill_tokens_per_s: f64,
    /// Generated tokens of finished requests per second.
    pub decode_tokens_per_s: f64,
    /// Time from a request's arrival to its first token, in microseconds.
    pub first_token_us: Percentiles,
    /// Time between two consecutive tokens of a request, in microseconds.
    pub between_tokens_us: Percentiles,
    /// Time from a request's arrival to its end, in microseconds.
    pub request_us: Percentiles,
    /// Number of requests that wait for cache blocks.
    pub waiting_requests: Depth,
    /// Utilisation of each stage, without the prefill stage.
    pub stages: Vec<StageUse>,
    /// Utilisation of the prefill stage, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefill_stage: Option<StageUse>,
    /// Utilisation of each link between neighbouring stages.
    pub links: Vec<LinkUse>,
    /// Utilisation of each resource that several links share.
    pub shared_links: Vec<SharedLinkUse>,
    /// Submissions in order of completion, up to the maximum number of spans.
    pub spans: Vec<SimSpan>,
    /// Number of submissions that are missing in `spans` because the maximum was reached.
    pub dropped_spans: u64,
}

/// Distribution of times, in microseconds. All values are 0 if no times were recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Percentiles {
    /// Number of recorded times.
    pub count: u64,
    /// Mean time.
    pub mean: f64,
    /// Median time.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Longest time.
    pub max: f64,
}

/// Statistics of the number of waiting items during the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Depth {
    /// Average over time.
    pub mean: f64,
    /// Maximum over time.
    pub max: u32,
}

/// Utilisation of a stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StageUse {
    /// Device label.
    pub device: String,
    /// Fraction of the time in which the stage computed.
    pub utilisation: f64,
    /// Idle fraction of the period from the start of the stage's first computation to the end of its last
    /// computation.
    pub bubble: f64,
    /// Fraction of the time in which activations or logits were copied from the stage.
    pub download_utilisation: f64,
    /// Sums over micro-batches with prompt rows.
    pub prefill: Computed,
    /// Sums over micro-batches that contain only decode steps.
    pub decode: Computed,
    /// Number of micro-batches on the device whose computation on this stage has not ended. It includes the
    /// one that is computing.
    pub queue: Depth,
}

/// Utilisation of a link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkUse {
    /// Source device.
    pub from: String,
    /// Destination device.
    pub to: String,
    /// Fraction of the time in which a transfer was in progress. It includes waits for a shared link.
    pub utilisation: f64,
    /// Number of transferred micro-batches.
    pub crossings: u64,
    /// Total bytes of the transferred micro-batches.
    pub bytes: u64,
}

/// Utilisation of a link that several edges share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharedLinkUse {
    /// Name of the shared link.
    pub name: String,
    /// Fraction of the time in which a transfer was in progress.
    pub utilisation: f64,
}

impl SimSummary {
    /// Summarises a run.
    pub fn new(spec: &SimSpec, report: SimReport) -> Self {
        let seen = &report.observations;
        let begin_ns = seen.sequences.values().map(|s| s.arrived_ns).min().unwrap_or(0);
        let over_ns = report.makespan_ns.saturating_sub(begin_ns);
        let ends = Ends::count(spec, &report);
        let per_s = |count: u64| count as f64 / (over_ns.max(1) as f64 / 1e9);
        let mut stages = stages(spec, seen, over_ns);
        let prefill_stage = spec.prefill.as_ref().and_then(|_| stages.pop());
        let arrivals = || seen.sequences.iter().filter(|(id, _)| ends.is_finished(**id)).map(|(_, s)| s);
        Self {
            finished: ends.finished,
            cut_short: ends.cut_short,
            refused: ends.refused,
            prompt_tokens: ends.prompt_tokens,
            new_tokens: ends.new_tokens,
            duration_us: over_ns as f64 / 1e3,
            requests_per_s: per_s(ends.finished),
            prefill_tokens_per_s: per_s(ends.prompt_tokens),
            decode_tokens_per_s: per_s(ends.new_tokens),
            first_token_us: percentiles(
                arrivals().filter_map(|s| Some(s.first_token_ns? - s.arrived_ns)).collect(),
            ),
            between_tokens_us: percentiles(seen.between_tokens_ns.clone()),
            request_us: percentiles(arrivals().filter_map(|s| Some(s.ended_ns? - s.arrived_ns)).collect()),
            waiting_requests: depth(&seen.waiting, over_ns),
            stages,
            prefill_stage,
            links: links(spec, seen, over_ns),
            shared_links: shared_links(spec, seen, over_ns),
            spans: report.spans,
            dropped_spans: report.dropped_spans,
        }
    }
}

/// Counts of requests by outcome, with their total tokens.
#[derive(Default)]
struct Ends {
    finished: u64,
    cut_short: u64,
    refused: u64,
    prompt_tokens: u64,
    new_tokens: u64,
    /// Whether each request finished, by index.
    is_finished: Vec<bool>,
}

impl Ends {
    fn count(spec: &SimSpec, report: &SimReport) -> Self {
        let mut ends = Self::default();
        for (request, outcome) in spec.requests.iter().zip(report.outcomes.values()) {
            let is_finished = match outcome {
                SimOutcome::Finished { reason, tokens } => {
                    ends.finished += 1;
                    ends.cut_short += u64::from(*reason == FinishReason::ContextFull);
                    ends.prompt_tokens += u64::from(request.prompt_tokens);
                    ends.new_tokens += tokens.len() as u64;
                    true
                }
                SimOutcome::Failed { .. } => {
                    ends.refused += 1;
                    false
                }
            };
            ends.is_finished.push(is_finished);
        }
        ends
    }

    fn is_finished(&self, sequence: crate::core::SequenceId) -> bool {
        self.is_finished.get(sequence.0 as usize).copied().unwrap_or(false)
    }
}

fn share(busy_ns: Nanoseconds, over_ns: Nanoseconds) -> f64 {
    busy_ns as f64 / over_ns.max(1) as f64
}

fn depth(level: &Level, over_ns: Nanoseconds) -> Depth {
    Depth { mean: level.mean(over_ns), max: level.max }
}

/// Returns the utilisation of all stages. The prefill stage comes last.
fn stages(spec: &SimSpec, seen: &Observations, over_ns: Nanoseconds) -> Vec<StageUse> {
    let stage = |(stage, work): (&crate::sim::SimStage, &crate::sim::StageWork)| {
        let queue = |kind: QueueKind| &work.queues[kind.index()];
        let used = |work: &Work| share(work.busy_ns, over_ns);
        StageUse {
            device: stage.device.clone(),
            utilisation: used(queue(QueueKind::Compute)),
            bubble: queue(QueueKind::Compute).bubble(),
            download_utilisation: used(queue(QueueKind::Download)),
            prefill: work.prefill,
            decode: work.decode,
            queue: depth(&work.waiting, over_ns),
        }
    };
    spec.all().zip(&seen.stages).map(stage).collect()
}

fn links(spec: &SimSpec, seen: &Observations, over_ns: Nanoseconds) -> Vec<LinkUse> {
    let link = |(pair, edge): (&[crate::sim::SimStage], &crate::sim::EdgeWork)| LinkUse {
        from: pair[0].device.clone(),
        to: pair[1].device.clone(),
        utilisation: share(edge.work.busy_ns, over_ns),
        crossings: edge.crossings,
        bytes: edge.bytes,
    };
    spec.stages.windows(2).zip(&seen.edges).map(link).collect()
}

fn shared_links(spec: &SimSpec, seen: &Observations, over_ns: Nanoseconds) -> Vec<SharedLinkUse> {
    let links = spec.shared_links.iter().zip(&seen.shared_busy_ns);
    links
        .map(|(link, &busy_ns)| SharedLinkUse {
            name: link.name.clone(),
            utilisation: share(busy_ns, over_ns),
        })
        .collect()
}

/// Computes percentiles by the nearest-rank method.
fn percentiles(mut times_ns: Vec<Nanoseconds>) -> Percentiles {
    times_ns.sort_unstable();
    let Some(&max) = times_ns.last() else { return Percentiles::default() };
    let us = |ns: Nanoseconds| ns as f64 / 1e3;
    let rank = |share: f64| us(times_ns[(share * times_ns.len() as f64).ceil() as usize - 1]);
    let sum: f64 = times_ns.iter().map(|&ns| us(ns)).sum();
    Percentiles {
        count: times_ns.len() as u64,
        mean: sum / times_ns.len() as f64,
        p50: rank(0.5),
        p90: rank(0.9),
        p99: rank(0.99),
        max: us(max),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_measured_values() {
        let times = percentiles((1..=100).rev().map(|n| n * 1000).collect());
        let expected = Percentiles { count: 100, mean: 50.5, p50: 50.0, p90: 90.0, p99: 99.0, max: 100.0 };
        assert_eq!(times, expected);
        let one = percentiles(vec![2500]);
        assert_eq!((one.p50, one.p99, one.max), (2.5, 2.5, 2.5));
        assert_eq!(percentiles(Vec::new()), Percentiles::default());
    }
}
