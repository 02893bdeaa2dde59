//! Assembles a plan from a choice of the search.
//!
//! This module knows nothing about the search.

use super::grid::{Choice, Grid, SearchResult};
use super::problem::{Problem, Run};
use super::trial::Trials;
use super::workload_times::{Point, Times};
use super::{chunks, explain, families, hosts, pool, reasons};
use crate::cost::{Figure, LinkFacts};
use crate::plan::{
    Explanation, HostMemory, OtherHost, PLAN_VERSION, Plan, PlanEdge, PlanModel, PlanPaths, PlanStage,
    PredictedRun, PredictedTimes, PrefillStage, StageMemory,
};
use ragtag_graph::Granularity;
use ragtag_graph::execution::Chunks;

/// Returns the plan of the best choice, with its explanation if the input asks for one.
pub(super) fn explained(grid: &Grid<'_>, found: &SearchResult, trials: Option<Trials>) -> Plan {
    let plan = filled(grid, &found.best, Some(chunks::by_prompt(grid, &found.best)));
    if !grid.input.explained {
        return plan;
    }
    let explanation = explain::explanation(grid, found);
    let reasons = reasons::reasons(grid, &found.best, &plan, &explanation, trials);
    Plan { explanation, reasons, ..plan }
}

/// Returns the plan of a choice, without an explanation. Its memory is sized for the longest of `chunks`. The KV
/// cache has the blocks that the sequences need.
pub(super) fn plan(grid: &Grid<'_>, chosen: &Choice, chunks: Option<Chunks>) -> Plan {
    with_blocks(problem(grid, chosen, chunks.as_ref()), grid, chosen, chunks)
}

/// Returns the plan like [`plan`], with as many blocks in the KV cache as fit.
pub(super) fn filled(grid: &Grid<'_>, chosen: &Choice, chunks: Option<Chunks>) -> Plan {
    let problem = problem(grid, chosen, chunks.as_ref());
    let host_fits = |problem: &Problem<'_>| {
        let memories = problem.memories_with(&chosen.runs, chosen.prefill_run());
        let others = hosts::others(problem, chosen, &memories);
        hosts::coordinator(problem, chosen, &memories).fits()
            && others.iter().all(|host| host.memory_bytes.fits())
    };
    let fits = |problem: &Problem<'_>| {
        problem.prove_with(&chosen.runs, chosen.prefill_run()).is_ok() && host_fits(problem)
    };
    let blocks = pool::filling_blocks(problem, fits);
    with_blocks(&problem.with_kv_blocks(blocks), grid, chosen, chunks)
}

/// Returns the problem that determines the memory of a choice with these chunks.
fn problem<'g>(grid: &'g Grid<'_>, chosen: &Choice, chunks: Option<&Chunks>) -> &'g Problem<'g> {
    let chunk = chunks.map_or(0, Chunks::most_rows).max(chosen.point.chunk);
    grid.problem(Point { chunk, ..chosen.point })
}

fn with_blocks(problem: &Problem<'_>, grid: &Grid<'_>, chosen: &Choice, chunks: Option<Chunks>) -> Plan {
    let input = grid.input;
    let (stages, prefill_stage, host_memory_bytes, other_hosts) = stages(problem, chosen);
    let granularity = Granularity::of(input.segments);
    Plan {
        ragtag_plan: PLAN_VERSION,
        model: PlanModel {
            name: input.model.name.clone(),
            digest: input.model.digest.clone(),
            segments: input.segment_count(),
            granularity,
        },
        objective: input.objective,
        workload: input.workload,
        device_options: None,
        context: grid.context,
        sequences: input.limits.sequences,
        kv_blocks: problem.shape.kv_blocks,
        kv_use: input.limits.kv_use,
        chunk: problem.point.chunk,
        chunks,
        decode_rows: chosen.workload_times.decode_rows,
        decode_groups: chosen.point.groups,
        credits: chosen.credits,
        slots: input.limits.slots,
        kv: input.limits.kv,
        activations: input.limits.activations,
        wire_type: chosen.point.wire_type,
        family: families::family(&chosen.runs, granularity),
        prefill_stage,
        host_memory_bytes,
        other_hosts,
        paths: PlanPaths::through(stages.len()),
        stages,
        edges: edges(problem, chosen),
        token_return: predicted(&chosen.evaluation.token_return),
        predicted: predicted_run(chosen),
        explanation: Explanation::default(),
        reasons: Vec::new(),
    }
}

/// Returns the stages, the prefill stage, and the memory that they need on the coordinator's host and on the others.
fn stages(
    problem: &Problem<'_>,
    chosen: &Choice,
) -> (Vec<PlanStage>, Option<PrefillStage>, HostMemory, Vec<OtherHost>) {
    let proof = problem.prove_with(&chosen.runs, chosen.prefill_run());
    assert!(proof.is_ok(), "the chosen stages exceed the memory of their devices: {proof:?}");
    let memories = problem.memories_with(&chosen.runs, chosen.prefill_run());
    let host_memory_bytes = hosts::coordinator(problem, chosen, &memories);
    let other_hosts = hosts::others(problem, chosen, &memories);
    let numbers = |segments: &[usize]| segments.iter().map(|&segment| segment as u32).collect();
    let stage = |((run, memory_bytes), times): ((&Run, StageMemory), &Times)| PlanStage {
        device: problem.input.devices[run.device].label.clone(),
        segments: run.span(),
        streamed: numbers(&run.streamed),
        arenas: run.arenas.map(|count| count as u32),
        from_file: numbers(&run.from_file),
        memory_bytes,
        predicted: predicted(times),
    };
    let times = chosen.evaluation.stages.iter().chain(&chosen.evaluation.prefill);
    let mut stages: Vec<_> = chosen.all_runs().zip(memories).zip(times).map(stage).collect();
    assert_eq!(stages.len(), chosen.all_runs().count(), "a stage has no memory or no times");
    let prefill_stage = chosen.prefill.as_ref().map(|prefill| PrefillStage {
        stage: stages.pop().expect("the prefill stage comes last"),
        from_tokens: prefill.from_tokens,
    });
    (stages, prefill_stage, host_memory_bytes, other_hosts)
}

fn edges(problem: &Problem<'_>, chosen: &Choice) -> Vec<PlanEdge> {
    let links = || chosen.runs.windows(2).map(|pair| problem.link(pair[0].device, pair[1].device));
    let routes = links().map(|link| link.routes.clone());
    let edges = PlanEdge::between(routes.zip(chosen.evaluation.transfers.iter().map(predicted)));
    let of_link = |(edge, link): (PlanEdge, &LinkFacts)| {
        let latency_us = Figure { value: tenths(link.latency_us.value), ..link.latency_us };
        PlanEdge { verified: link.verified, latency_us: Some(latency_us), ..edge }
    };
    edges.into_iter().zip(links()).map(of_link).collect()
}

pub(super) fn tenths(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

fn predicted(times: &Times) -> PredictedTimes {
    PredictedTimes { decode_us: tenths(times.decode_us), prefill_us: tenths(times.full_chunk_us) }
}

fn predicted_run(Choice { evaluation, point, .. }: &Choice) -> PredictedRun {
    PredictedRun {
        decode_tokens_per_s: tenths(evaluation.decode_tokens_per_s),
        prefill_tokens_per_s: tenths(evaluation.prefill_tokens_per_s),
        prefill_rows: point.chunk,
        first_token_us: tenths(evaluation.first_token_us),
        token_us: tenths(evaluation.token_us),
    }
}
