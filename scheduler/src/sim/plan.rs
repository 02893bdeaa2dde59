//! Simulates plans. Stage times come from the cost model, and transfer times from the links between devices.
//!
//! The simulation uses the times from which a plan's prediction is computed:
//! - A computation of a stage takes [`StageCosts::time_us`].
//! - A lone transfer takes [`LinkFacts::time_us`](crate::LinkFacts::time_us).
//! - The token return takes [`DeviceFacts::token_return`] of the last device. This time includes sending the
//!   next tokens to the first stage.
//! - A link's latency counts once per micro-batch. It is divided between the copies into and out of the ring
//!   in proportion to the two devices' own latencies.
//! - A link's bandwidth limits the copies into the ring or the next slot. Copies out of the ring take no time
//!   per byte.
//! - The segments of a stage with streamed weights share its time equally. The copy of a segment's weights takes
//!   [`DeviceFacts::host_copy_us`]. Weights in the model's file are read first, which takes
//!   [`DeviceFacts::file_read_us`]. Each stage reads at this rate.
//! - A stage that was idle starts later, by [`DeviceFacts::hand_over_us`] or by its idle time, whichever is
//!   shorter.
//! - Messages, actors and sampling take no additional time, because a device's `stage_us` includes their
//!   measured cost.
//!
//! Knows nothing about the search.

use crate::core::{Limits, RunShape};
use crate::sim::spec::{SimNetwork, SimPart, SimPass, SimPrefill, SimSharedLink, SimSpec, SimStage};
use crate::sim::time::{ComputeTime, CopyTime, StageCosts, nanoseconds};
use crate::sim::{Load, MAX_SPANS};
use ragtag_graph::execution::StagePart;
use ragtag_graph::{KvRing, Segment};
use ragtag_planner::ModelFacts;
use ragtag_planner::cost::{DeviceFacts, Links, QueuePart, RunSizes};
use ragtag_planner::plan::{InvalidPlan, Plan, PlanModel, PlanStage};
use ragtag_transfer::{Route, Routes};
use std::sync::Arc;
use thiserror::Error;

/// Maximum number of sequences or of ring chunks in a simulated plan.
const MOST: u32 = 1 << 16;
/// Maximum number of cache blocks in a simulated plan.
const MAX_BLOCKS: u32 = 1 << 24;

/// Error for a plan that cannot be simulated.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SimPlanError {
    /// The plan is invalid, or it was made for another model or other devices.
    #[error(transparent)]
    Plan(#[from] InvalidPlan),
    /// A device or link has an impossible value.
    #[error("{of}: invalid {field}")]
    BadFacts {
        /// Name of the device or link.
        of: String,
        /// Name of the field with the impossible value.
        field: &'static str,
    },
    /// A value exceeds the simulator's limit.
    #[error("the plan's {field} is {value}; at most {most} are simulated")]
    TooLarge {
        /// Name of the value.
        field: &'static str,
        /// The value.
        value: u32,
        /// The limit.
        most: u32,
    },
}

impl SimSpec {
    /// Returns the specification that simulates `plan` under `load`. `segments` are the model's segments as
    /// lowered for the plan. `devices` must include the plan's devices.
    ///
    /// # Errors
    /// [`SimPlanError`] if the plan does not match the other inputs, or if a value is invalid or too large.
    pub fn of_plan(
        plan: &Plan,
        model: &ModelFacts,
        segments: &[Segment],
        devices: &[DeviceFacts],
        links: &Links,
        load: &Load,
    ) -> Result<Self, SimPlanError> {
        check(plan, model, segments, devices)?;
        let facts = |label: &str| devices.iter().find(|d| d.label == label);
        let stages: Vec<_> = plan.stages.iter().filter_map(|s| Some((s, facts(&s.device)?))).collect();
        let sequences = plan.sequences.min(plan.chunk);
        let run = RunShape {
            stages: stages.len() as u32,
            decode_groups: plan.decode_groups,
            credits: plan.credits,
            context: plan.context,
            vocabulary: model.vocabulary.max(1),
            has_picks: true,
            chunks: plan.chunks(),
            max_rows: plan.chunk,
            max_logit_rows: plan.logit_rows(),
            max_sequences: sequences,
            kv_blocks: plan.kv_blocks,
            kv_use: plan.kv_use,
            limits: Limits::default(),
            kv_ring: {
                let state_bytes = segments.iter().flat_map(|segment| segment.state_bytes).sum();
                let window = segments.iter().filter_map(|segment| segment.window).max();
                let ring = || KvRing::new(window, plan.context, plan.chunk, plan.sequences);
                KvRing::of_states(state_bytes, plan.sequences).or_else(ring)
            },
            prefill_from: plan.prefill_stage.as_ref().map(|prefill| prefill.from_tokens),
            // A simulated sequence is computed once.
            recompute_at: None,
        };
        let sizes = RunSizes::new(segments);
        let simulated = |stage: &PlanStage, facts: &DeviceFacts| SimStage {
            device: stage.device.clone(),
            slots: plan.slots,
            compute: ComputeTime::Modelled(Arc::new(StageCosts::new(
                &segments[stage.segments.range()],
                facts,
                plan.activations,
                plan.wire_type,
                model.row_bytes,
            ))),
            hand_over_ns: nanoseconds(facts.hand_over_us.value),
            upload: CopyTime::default(),
            download: CopyTime::default(),
            logits: CopyTime {
                copy_ns: 0,
                once_ns: nanoseconds(return_us(facts, 0)),
                byte_ns: (return_us(facts, 1) - return_us(facts, 0)) * 1e3
                    / ModelFacts::RETURN_ROW_BYTES as f64,
            },
            single_queue: false,
            routes: Route::HOST_STAGED.into(),
            parts: sim_parts(stage, &sizes, facts),
        };
        let mut made: Vec<_> = stages.iter().map(|(stage, facts)| simulated(stage, facts)).collect();
        let prefill = plan.prefill_stage.as_ref().map(|prefill| &prefill.stage);
        let prefill = prefill.and_then(|stage| Some((stage, facts(&stage.device)?)));
        let prefill = prefill.map(|(stage, facts)| SimPrefill {
            stage: simulated(stage, facts),
            passes: passes(stage, facts, &plan.stages, segments),
        });
        let network = network(&stages, links);
        if let (Some(last), Some(host)) = (made.last_mut(), network.hosts.last()) {
            // The results of the last stage pass over the network to the coordinator.
            last.logits.once_ns += network.latency_ns(0, *host);
        }
        for (at, (edge, pair)) in plan.edges.iter().zip(stages.windows(2)).enumerate() {
            let link = link_times(pair[0].1, pair[1].1, links, &edge.routes)?;
            (made[at].routes, made[at].download, made[at + 1].upload) = (edge.routes.clone(), link.0, link.1);
        }
        Ok(Self {
            seed: 0,
            stages: made,
            prefill,
            run,
            row_bytes: plan.wire_type.row_bytes(model.row_bytes),
            logit_row_bytes: model.logit_row_bytes(),
            shared_links: shared_links(plan, links)?,
            message_ns: 0,
            network,
            handling_ns: 0,
            jitter_percent: 0,
            requests: load.requests.clone(),
            at_once: load.at_once,
            faults: Vec::new(),
            checked: false,
            max_spans: MAX_SPANS,
            verified: false,
            then: None,
        })
    }
}

/// Returns the host of a device. Its label begins with the name of the host and a slash. Without them, it is on the
/// coordinator's host.
fn host(label: &str) -> &str {
    label.split_once('/').map_or("", |(host, _)| host)
}

/// Returns the network between the hosts of stages. Between two hosts that are no neighbours, it has no latency.
fn network(stages: &[(&PlanStage, &DeviceFacts)], links: &Links) -> SimNetwork {
    let mut names = vec![""];
    let mut network = SimNetwork::default();
    for (stage, _) in stages {
        let name = host(&stage.device);
        let at = names.iter().position(|other| *other == name).unwrap_or_else(|| {
            names.push(name);
            names.len() - 1
        });
        network.hosts.push(at as u32);
    }
    // The first stage receives from the coordinator, and the last one sends to it.
    let own = links.known.iter().filter(|(from, _, _)| host(from).is_empty());
    let pairs = own.chain(links.known.iter().filter(|(from, _, _)| !host(from).is_empty()));
    for (from, to, link) in pairs {
        let [a, b] = [from, to].map(|label| names.iter().position(|name| *name == host(label)));
        let (Some(a), Some(b)) = (a, b) else { continue };
        if a != b {
            let pair = (a.min(b) as u32, a.max(b) as u32);
            let latency_ns = nanoseconds(link.latency_us.value);
            network.latencies_ns.entry(pair).and_modify(|ns| *ns = latency_ns.min(*ns)).or_insert(latency_ns);
        }
    }
    network
}

/// Returns the parts of a stage with streamed segments. Every segment has an equal share of the stage's time.
fn sim_parts(stage: &PlanStage, sizes: &RunSizes, device: &DeviceFacts) -> Vec<SimPart> {
    if stage.streamed.is_empty() {
        return Vec::new();
    }
    let part = |part: QueuePart| SimPart {
        arena: part.arena,
        share: part.compute_us,
        stream_ns: nanoseconds(part.copy_us),
        read_ns: (part.read_us > 0.0).then(|| nanoseconds(part.read_us)),
    };
    stage.queue_parts(sizes, device, 1.0).into_iter().map(part).collect()
}

/// Returns the passages from a prefill stage on a device to the stages of other devices.
fn passes(
    prefill: &PlanStage,
    facts: &DeviceFacts,
    stages: &[PlanStage],
    segments: &[Segment],
) -> Vec<SimPass> {
    let streamed: Vec<usize> = prefill.streamed.iter().map(|&segment| segment as usize).collect();
    let parts = StagePart::all(prefill.segments.range(), &streamed, prefill.arenas());
    let pass = |(at, stage): (usize, &PlanStage)| {
        let kv_bytes = |segment: usize| segments[segment].kv_bytes_per_position;
        let range = stage.segments.range();
        let passes =
            |part: &StagePart| part.segments.clone().any(|at| range.contains(&at) && kv_bytes(at) > 0);
        let bytes: u64 = range.clone().map(kv_bytes).sum();
        let row_ns = bytes as f64 * byte_ns(facts.host_bandwidth_bytes_per_s.value);
        let parts = parts.iter().enumerate().filter(|(_, part)| passes(part)).map(|(index, _)| index);
        SimPass { stage: at, parts: parts.collect(), row_ns }
    };
    let others = stages.iter().enumerate().filter(|(_, stage)| stage.device != prefill.device);
    others.map(pass).filter(|pass| !pass.parts.is_empty()).collect()
}

/// Returns the time of the token return for `rows` rows, in microseconds.
fn return_us(last: &DeviceFacts, rows: u32) -> f64 {
    last.token_return(rows, ModelFacts::RETURN_ROW_BYTES).value
}

fn check(
    plan: &Plan,
    model: &ModelFacts,
    segments: &[Segment],
    devices: &[DeviceFacts],
) -> Result<(), SimPlanError> {
    let labels: Vec<_> = devices.iter().map(|d| d.label.as_str()).collect();
    let own = PlanModel {
        name: model.name.clone(),
        digest: model.digest.clone(),
        segments: u32::try_from(segments.len()).unwrap_or(u32::MAX),
        granularity: ragtag_graph::Granularity::of(segments),
    };
    plan.validate(&own, &labels)?;
    for device in devices {
        if let Some(field) = device.nonsense() {
            return Err(SimPlanError::BadFacts { of: device.label.clone(), field });
        }
    }
    let depths = plan.edges.iter().map(|edge| ("ring's depth", edge.routes.places(), MOST));
    let figures = [("sequences", plan.sequences, MOST), ("cache blocks", plan.kv_blocks, MAX_BLOCKS)];
    match figures.into_iter().chain(depths).find(|(_, value, most)| value > most) {
        Some((field, value, most)) => Err(SimPlanError::TooLarge { field, value, most }),
        None => Ok(()),
    }
}

fn byte_ns(bytes_per_s: f64) -> f64 {
    1e9 / bytes_per_s
}

/// Returns the times of the copies from the source and to the destination of a link.
fn link_times(
    from: &DeviceFacts,
    to: &DeviceFacts,
    links: &Links,
    routes: &Routes,
) -> Result<(CopyTime, CopyTime), SimPlanError> {
    let link = links.between(&from.label, &to.label);
    if let Some(field) = link.nonsense() {
        let of = format!("the link from {} to {}", from.label, to.label);
        return Err(SimPlanError::BadFacts { of, field });
    }
    let latency_ns = nanoseconds(link.latency_us.value);
    let byte_ns = byte_ns(link.bandwidth_bytes_per_s.value);
    if routes.iter().any(|route| route == Route::Import) {
        // The destination's copy does all the work.
        return Ok((CopyTime::default(), CopyTime { copy_ns: 0, once_ns: latency_ns, byte_ns }));
    }
    let own = [from, to].map(|device| device.host_latency_us.value);
    let share = if own[0] + own[1] > 0.0 { own[0] / (own[0] + own[1]) } else { 0.5 };
    let out_ns = (latency_ns as f64 * share).round() as u64;
    let download = CopyTime { copy_ns: 0, once_ns: out_ns, byte_ns };
    let upload = CopyTime { copy_ns: 0, once_ns: latency_ns.saturating_sub(out_ns), byte_ns: 0.0 };
    Ok((download, upload))
}

/// Returns the shared links that the plan's edges use.
fn shared_links(plan: &Plan, links: &Links) -> Result<Vec<SimSharedLink>, SimPlanError> {
    let mut shared_links = Vec::new();
    for shared in &links.shared {
        let rate = shared.bandwidth_bytes_per_s.value;
        if !(rate.is_finite() && rate >= 1.0) {
            let of = format!("the shared link {}", shared.name);
            return Err(SimPlanError::BadFacts { of, field: "bandwidth_bytes_per_s" });
        }
        let used = |edge: &usize| {
            let ends = (&plan.stages[*edge].device, &plan.stages[edge + 1].device);
            shared.users.iter().any(|(from, to)| (from, to) == ends)
        };
        let edges: Vec<_> = (0..plan.edges.len()).filter(used).collect();
        if !edges.is_empty() {
            shared_links.push(SimSharedLink { name: shared.name.clone(), edges, byte_ns: byte_ns(rate) });
        }
    }
    Ok(shared_links)
}
