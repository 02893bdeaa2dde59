//! A synthetic plan for tests.

use ragtag_graph::execution::{KvUse, Reserve};
use ragtag_graph::{Granularity, WireType};
use ragtag_kernels::{Activations, KvType};
use ragtag_planner::{
    Explanation, HostMemory, Objective, PLAN_VERSION, Plan, PlanEdge, PlanModel, PlanPaths, PlanStage,
    PredictedRun, PredictedTimes, Split, SplitPart, StageMemory, Workload,
};
use ragtag_transfer::Route;

/// Returns a plan for one sequence with the placement `split`, without predictions. Its segments are whole
/// transformer blocks.
pub(crate) fn plan(split: &str) -> Plan {
    let Split { parts, .. } = split.parse().unwrap();
    let predicted = PredictedTimes::default();
    let memory_bytes = StageMemory {
        weights: 0,
        arenas: 0,
        kv: 0,
        scratch: 0,
        slots: 0,
        staging: 0,
        total: 0,
        available: 0,
    };
    let model = PlanModel {
        name: "made up".into(),
        digest: "none".into(),
        segments: parts[parts.len() - 1].span.last() + 1,
        granularity: Granularity::Block,
    };
    let stage = |SplitPart { device, span, .. }| PlanStage {
        device,
        segments: span,
        streamed: Vec::new(),
        arenas: None,
        from_file: Vec::new(),
        memory_bytes,
        predicted,
    };
    let stages: Vec<_> = parts.into_iter().map(stage).collect();
    Plan {
        ragtag_plan: PLAN_VERSION,
        model,
        objective: Objective::Throughput,
        workload: Workload::default(),
        device_options: None,
        context: 1024,
        sequences: 1,
        kv_blocks: 64,
        kv_use: KvUse { reserve: Reserve::Full, prefixes: None },
        chunk: 128,
        chunks: None,
        decode_rows: 1,
        decode_groups: 1,
        credits: stages.len() as u32 + 1,
        slots: 3,
        kv: KvType::F16,
        activations: Activations::Int8,
        wire_type: WireType::F32,
        edges: PlanEdge::between((1..stages.len()).map(|_| (Route::HOST_STAGED.into(), predicted))),
        paths: PlanPaths::through(stages.len()),
        family: ragtag_planner::plan::Family::OneStage,
        stages,
        prefill_stage: None,
        host_memory_bytes: HostMemory::default(),
        other_hosts: Vec::new(),
        token_return: predicted,
        predicted: PredictedRun {
            decode_tokens_per_s: 0.0,
            prefill_tokens_per_s: 0.0,
            prefill_rows: 0,
            first_token_us: 0.0,
            token_us: 0.0,
        },
        explanation: Explanation::default(),
        reasons: Vec::new(),
    }
}
