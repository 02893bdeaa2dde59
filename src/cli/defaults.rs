//! Implements `ragtag bench --defaults`, which compares the speed of the default settings with the speed of a
//! few alternatives.
//!
//! Each alternative changes one setting. The KV cache type and the wire type stay the same. The default and
//! the alternative run alternately, once per round. The reported ratio of their speeds is the median of the
//! ratios of all rounds, because a busy machine slows both runs of a round.

use super::args::BenchArgs;
use super::output::{inform, note, print_json, show, table};
use super::plan::{Placed, placed, summary};
use super::wanted::Needs;
use super::{block_on, device_options, progress};
use crate::devices::Devices;
use crate::engine::{Engine, EngineOptions};
use crate::error::{Error, Result};
use crate::model::Model;
use crate::planner::Planner;
use ragtag_hal::{AdapterKind, GemmChoice};
use ragtag_planner::{Plan, Workload};
use ragtag_scheduler::compare::Burst;
use serde::Serialize;
use serde_json::json;
use std::fmt;

/// Prompt lengths in the prefill workloads, in tokens.
const PROMPTS: [u32; 3] = [512, 2048, 8192];
/// Numbers of sequences in the decode workloads, and the numbers of prompt tokens and new tokens of each
/// sequence.
const SEQUENCES: [u32; 3] = [1, 8, 64];
const PROMPT_TOKENS: u32 = 16;
const NEW_TOKENS: u32 = 64;
/// Maximum number of alternatives per workload.
const MAX_ALTERNATIVES: usize = 12;
/// Ratio of default to alternative speed below which Ragtag measures the pair again, because the smallest of
/// several noisy ratios is biased low.
const MEASURED_AGAIN: f64 = 0.98;
/// Ratio of default to alternative speed. If all workloads exceed this ratio in the first round, the later
/// rounds are skipped.
const HOPELESS: f64 = 1.2;
/// Time in seconds above which a burst runs only in the first round, unless the pair is measured again.
const LONG_S: f64 = 2.0;

/// The setting of an alternative that differs from the default.
#[derive(Clone, Debug, PartialEq)]
enum Change {
    Chunk(u32),
    Groups(u32),
    Credits(u32),
    Threads(u32),
    Library,
    Only(String),
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::Chunk(rows) => write!(f, "--chunk {rows}"),
            Change::Groups(groups) => write!(f, "{groups} decode groups"),
            Change::Credits(credits) => write!(f, "{credits} credits"),
            Change::Threads(threads) => write!(f, "--threads {threads}"),
            Change::Library => f.write_str("--gemm library"),
            Change::Only(device) => write!(f, "--device {device}"),
        }
    }
}

/// A measured workload.
#[derive(Clone, Debug)]
struct Cell {
    name: String,
    burst: Burst,
    tokens: u32,
}

/// Workloads that run on the same engine.
struct Group {
    sequences: u32,
    workload: Workload,
    cells: Vec<Cell>,
}

/// Measured speeds of the default and of an alternative with one workload.
#[derive(Clone, Debug, Serialize)]
struct Measured {
    change: String,
    plan: String,
    default_tokens_per_s: f64,
    tokens_per_s: f64,
    /// Speed of the default divided by the speed of the alternative. It is at least 1 if the default is not
    /// slower.
    ratio: f64,
    default_samples_tokens_per_s: Vec<f64>,
    samples_tokens_per_s: Vec<f64>,
}

impl Measured {
    fn in_words(&self) -> String {
        let Self { change, default_tokens_per_s, tokens_per_s, ratio, .. } = self;
        format!(
            "{default_tokens_per_s:.1} tokens/s, with {change} {tokens_per_s:.1} tokens/s, ratio {ratio:.2}"
        )
    }
}

#[derive(Debug, Default, Serialize)]
struct CellReport {
    cell: String,
    plan: String,
    /// Minimum ratio of default to alternative speed over all alternatives.
    ratio: f64,
    alternatives: Vec<Measured>,
    /// Alternatives that were not measured, each with the reason.
    left_out: Vec<String>,
}

/// One side of a comparison: a plan with its devices, either the default or an alternative.
struct Contender<'a> {
    devices: &'a Devices,
    plan: Plan,
}

/// Runner for the measurements of one group of workloads.
struct Runner<'a> {
    model: &'a Model,
    group: &'a Group,
    default: Contender<'a>,
    /// Engine of the default plan, while it is loaded.
    loaded: Option<Engine>,
}

pub(super) fn run(args: &BenchArgs) -> Result<()> {
    let model = super::scaled(super::open_model(args.model.as_deref())?, &args.placement)?;
    let mut reports = Vec::new();
    let mut skipped = Vec::new();
    for group in groups(model.hyperparameters().context, &mut skipped) {
        reports.extend(measure(args, &model, &group)?);
    }
    skipped.iter().for_each(|what| note(what));
    if args.json {
        return print_json(&json!({ "model": model.name(), "cells": reports, "skipped": skipped }));
    }
    show(&as_table(&reports))
}

/// Groups the workloads that can share an engine. Skips workloads that exceed `context`, and adds a line for
/// each skipped workload to `skipped`.
fn groups(context: u32, skipped: &mut Vec<String>) -> Vec<Group> {
    let (fitting, longer): (Vec<u32>, Vec<u32>) = PROMPTS.into_iter().partition(|tokens| *tokens <= context);
    skipped.extend(longer.iter().map(|n| format!("skipped pp{n}: the model's context is {context}")));
    let prompts = fitting.iter().map(|&tokens| Cell {
        name: format!("pp{tokens}"),
        burst: Burst::Prompts { tokens, sequences: 1 },
        tokens,
    });
    let longest = fitting.last().copied().unwrap_or(0);
    let prefill = Group {
        sequences: 1,
        workload: Workload { prompt_tokens: longest, generated_tokens: 1 },
        cells: prompts.collect(),
    };
    let (prompt, tokens) = (PROMPT_TOKENS.min(context / 2).max(1), NEW_TOKENS.min(context / 2).max(2));
    let decode = SEQUENCES.map(|sequences| Group {
        sequences,
        workload: Workload { prompt_tokens: prompt, generated_tokens: tokens },
        cells: vec![Cell {
            name: format!("tg{tokens} × {sequences}"),
            burst: Burst::Generations { prompt, tokens, sequences },
            tokens: tokens * sequences,
        }],
    });
    std::iter::once(prefill).chain(decode).filter(|group| !group.cells.is_empty()).collect()
}

impl Group {
    fn context(&self) -> u32 {
        self.workload.prompt_tokens + self.workload.generated_tokens
    }

    fn is_prefill(&self) -> bool {
        matches!(self.cells[0].burst, Burst::Prompts { .. })
    }

    /// Returns the changes to the default settings that this group compares with the default.
    fn changes(&self, placed: &Placed) -> Vec<Change> {
        let selected = placed.devices.selected();
        let mut changes: Vec<Change> = Vec::new();
        if self.is_prefill() {
            changes.extend([512, 1024, 2048, 4096, 256, 128].map(Change::Chunk));
            if selected.iter().any(|adapter| adapter.kind == AdapterKind::Discrete) {
                changes.push(Change::Library);
            }
        } else {
            changes.extend([1, 2, 4].into_iter().filter(|&n| n <= self.sequences).map(Change::Groups));
            changes.extend([1, 3, 5].map(Change::Credits));
        }
        if selected.len() > 1 {
            changes.extend(selected.iter().take(3).map(|adapter| Change::Only(adapter.label())));
        }
        let processor = selected.iter().find(|adapter| adapter.kind == AdapterKind::Cpu);
        if let Some(units) = processor.map(|adapter| adapter.caps.parallel_units) {
            let fewer = [units - 1, units * 3 / 4, units / 2];
            changes.extend(fewer.into_iter().filter(|&n| n > 0 && n < units).map(Change::Threads));
        }
        let mut different: Vec<Change> = Vec::new();
        for change in changes {
            if !different.contains(&change) {
                different.push(change);
            }
        }
        different.truncate(MAX_ALTERNATIVES);
        different
    }
}

/// Compares the default with each alternative, on all workloads of a group.
fn measure(args: &BenchArgs, model: &Model, group: &Group) -> Result<Vec<CellReport>> {
    let needs = Needs {
        asked: Some(group.sequences),
        context: Some(group.context()),
        workload: group.workload,
        ..Needs::of(group.sequences)
    };
    let placed = placed(model, &args.devices, &args.placement, needs)?;
    inform(&summary(&placed.plan));
    let default = Contender { devices: &placed.devices, plan: placed.plan.clone() };
    let mut runner = Runner { model, group, default, loaded: None };
    let mut reports: Vec<CellReport> = group
        .cells
        .iter()
        .map(|cell| CellReport { cell: cell.name.clone(), plan: summary(&placed.plan), ..Default::default() })
        .collect();
    let changes = group.changes(&placed);
    let bar = progress::steps("measuring", changes.len() as u64);
    for change in &changes {
        bar.inc(1);
        let outcome = runner.against(args, &placed, change);
        for (at, report) in reports.iter_mut().enumerate() {
            match &outcome {
                Ok(Some(measured)) => {
                    let measured = measured[at].clone();
                    // Prints each figure at once, so that an interrupted command does not lose the earlier
                    // figures.
                    inform(&format!("{}: {}", report.cell, measured.in_words()));
                    report.alternatives.push(measured);
                }
                Ok(None) => report.left_out.push(format!("{change}: the same plan")),
                Err(error) => report.left_out.push(format!("{change}: {error}")),
            }
        }
    }
    bar.finish_and_clear();
    for report in &mut reports {
        report.alternatives.sort_by(|a, b| a.ratio.total_cmp(&b.ratio));
        report.ratio = report.alternatives.first().map_or(1.0, |best| best.ratio);
    }
    Ok(reports)
}

/// Probes the devices with the default options except for `change`.
fn changed_devices(args: &BenchArgs, change: &Change) -> Result<Devices> {
    let mut devices = args.devices.clone();
    match change {
        Change::Threads(threads) => devices.threads = Some(*threads),
        Change::Library => devices.gemm = GemmChoice::Library,
        _ => {}
    }
    let devices = Devices::probe(&device_options(&devices))?;
    if *change == Change::Library && devices.selected().iter().all(|adapter| adapter.caps.gemm.is_none()) {
        return Err(Error::Usage("no matrix library (cuBLASLt, rocBLAS) was found".into()));
    }
    Ok(devices)
}

/// Returns the planner for an alternative. It keeps all settings of the default plan except `change`.
fn changed(placed: &Placed, devices: &Devices, model: &Model, change: &Change) -> Result<Planner> {
    let plan = &placed.plan;
    let planner = placed.planner.clone().wire_type(plan.wire_type);
    Ok(match change {
        Change::Chunk(rows) => planner.chunk(*rows),
        Change::Groups(groups) => planner.decode_groups(*groups),
        Change::Credits(credits) => planner.credits(*credits),
        Change::Only(device) => {
            let others = placed.devices.labels().into_iter().filter(|label| label != device);
            others.fold(planner, |planner, other| planner.exclude(&other))
        }
        // These devices are not calibrated, so the alternative keeps the placement and micro-batches of the
        // default.
        Change::Threads(_) | Change::Library => Planner::new(model)
            .devices(devices)
            .context(plan.context)
            .sequences(plan.sequences)
            .kv(plan.kv)
            .activations(plan.activations)
            .granularity(plan.model.granularity)
            .wire_type(plan.wire_type)
            .chunk(plan.chunk)
            .chunks(plan.chunks())
            .decode_groups(plan.decode_groups)
            .credits(plan.credits)
            .slots(plan.slots)
            .workload(plan.workload)
            .split(plan.split()),
    })
}

/// Returns whether two plans for the same devices run in the same way.
fn runs_alike(a: &Plan, b: &Plan) -> bool {
    let of = |plan: &Plan| {
        (
            plan.split().to_string(),
            plan.chunks(),
            plan.decode_groups,
            plan.credits,
            plan.slots,
            plan.wire_type,
        )
    };
    of(a) == of(b)
}

impl<'a> Runner<'a> {
    fn start(&self, contender: &Contender<'_>) -> Result<Engine> {
        Engine::start_exact(self.model, contender.devices, &contender.plan, EngineOptions::default())
    }

    /// Measures the default and an alternative alternately. Returns the samples of both for each workload, in
    /// tokens per second. Keeps both engines loaded if they fit into memory together. Otherwise reloads an
    /// engine for each turn.
    fn in_turns(
        &mut self,
        other: &Contender<'_>,
        repetitions: u32,
        long_s: f64,
    ) -> Result<Vec<[Vec<f64>; 2]>> {
        let mut turns = vec![[Vec::new(), Vec::new()]; self.group.cells.len()];
        let own = match self.loaded.take() {
            Some(engine) => engine,
            None => self.start(&self.default)?,
        };
        match self.start(other) {
            Ok(other) => {
                for round in 0..=repetitions {
                    self.take_turn(&own, 0, round, long_s, &mut turns)?;
                    self.take_turn(&other, 1, round, long_s, &mut turns)?;
                    if round == 1 && turns.iter().all(|[own, others]| own[0] > HOPELESS * others[0]) {
                        break;
                    }
                }
                self.loaded = Some(own);
            }
            Err(Error::Run(cause)) if cause.refused_memory().is_some() => {
                own.shutdown();
                for round in 1..=repetitions {
                    for (which, contender) in [&self.default, other].into_iter().enumerate() {
                        let engine = self.start(contender)?;
                        self.take_turn(&engine, which, 0, long_s, &mut turns)?;
                        self.take_turn(&engine, which, round, long_s, &mut turns)?;
                        engine.shutdown();
                    }
                }
            }
            Err(error) => {
                self.loaded = Some(own);
                return Err(error);
            }
        }
        Ok(turns)
    }

    /// Runs each workload once on `engine` and adds the speeds to `turns`. Round 0 is a warm-up and adds
    /// nothing. Bursts longer than `long_s` seconds run only in rounds 0 and 1. A turn of prompts begins with
    /// an unmeasured one, because the other engine's weights have displaced those of `engine` from the caches
    /// of a CPU.
    fn take_turn(
        &self,
        engine: &Engine,
        which: usize,
        round: u32,
        long_s: f64,
        turns: &mut [[Vec<f64>; 2]],
    ) -> Result<()> {
        if let Some(first) = self.group.cells.first().filter(|_| round > 0 && self.group.is_prefill()) {
            block_on(engine.session().burst(&first.burst))?;
        }
        for (cell, turn) in self.group.cells.iter().zip(turns) {
            let long = |rate: &f64| f64::from(cell.tokens) / rate > long_s;
            if round > 1 && turn[which].first().is_some_and(long) {
                continue;
            }
            let times = block_on(engine.session().burst(&cell.burst))?;
            let whole = f64::from(cell.tokens) / times.seconds;
            let rate =
                if self.group.is_prefill() { whole } else { times.together_tokens_per_s().unwrap_or(whole) };
            if round > 0 {
                turn[which].push(rate);
            }
        }
        Ok(())
    }

    /// Plans and starts one alternative. Measures the alternative and the default alternately. Returns `None`
    /// if both have the same plan.
    fn against(
        &mut self,
        args: &BenchArgs,
        placed: &Placed,
        change: &Change,
    ) -> Result<Option<Vec<Measured>>> {
        let others = match change {
            Change::Threads(_) | Change::Library => Some(changed_devices(args, change)?),
            _ => None,
        };
        let devices = others.as_ref().unwrap_or(self.default.devices);
        let other = Contender { devices, plan: changed(placed, devices, self.model, change)?.plan()? };
        if others.is_none() && runs_alike(&self.default.plan, &other.plan) {
            return Ok(None);
        }
        let mut turns = self.in_turns(&other, args.repetitions, LONG_S)?;
        if turns.iter().any(|[own, others]| ratio(own, others) < MEASURED_AGAIN) {
            turns = self.in_turns(&other, args.repetitions * 2, f64::INFINITY)?;
        }
        let measured = |[own, others]: [Vec<f64>; 2]| Measured {
            change: change.to_string(),
            plan: summary(&other.plan),
            default_tokens_per_s: median(&own),
            tokens_per_s: median(&others),
            ratio: ratio(&own, &others),
            default_samples_tokens_per_s: own,
            samples_tokens_per_s: others,
        };
        Ok(Some(turns.into_iter().map(measured).collect()))
    }
}

/// Returns the median over all rounds of the ratio of default to alternative speed. `own` and `others` are
/// the speeds of the default and of the alternative, one per round.
fn ratio(own: &[f64], others: &[f64]) -> f64 {
    median(&own.iter().zip(others).map(|(own, other)| own / other).collect::<Vec<_>>())
}

pub(super) fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let (low, high) = (sorted.len().saturating_sub(1) / 2, sorted.len() / 2);
    let at = |index: usize| sorted.get(index).copied().unwrap_or(0.0);
    (at(low) + at(high)) / 2.0
}

fn as_table(reports: &[CellReport]) -> String {
    let mut table = table(&["cell", ">default", "best alternative", ">alternative", ">ratio"]);
    for report in reports {
        let best = report.alternatives.first();
        let rate = |rate: Option<f64>| rate.map_or("-".into(), |rate| format!("{rate:.1}"));
        table.add_row([
            report.cell.clone(),
            rate(best.map(|best| best.default_tokens_per_s)),
            best.map_or("-".into(), |best| best.change.clone()),
            rate(best.map(|best| best.tokens_per_s)),
            format!("{:.2}", report.ratio),
        ]);
    }
    let left_out: Vec<String> = reports
        .iter()
        .flat_map(|report| report.left_out.iter().map(|what| format!("- {}: {what}\n", report.cell)))
        .collect();
    format!(
        "{table}\ntokens per second, medians; ratio: default over the best alternative\n{}",
        left_out.concat()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_beyond_the_context_are_skipped_and_named() {
        let cells = |context: u32| {
            let mut skipped = Vec::new();
            let groups = groups(context, &mut skipped);
            let names: Vec<_> = groups.iter().flat_map(|g| g.cells.iter().map(|c| c.name.clone())).collect();
            assert!(groups.iter().all(|group| group.context() <= context + 1), "{names:?}");
            (names, skipped.len())
        };
        assert_eq!(cells(8192).0, ["pp512", "pp2048", "pp8192", "tg64 × 1", "tg64 × 8", "tg64 × 64"]);
        assert_eq!(
            cells(2048),
            (
                vec![
                    "pp512".into(),
                    "pp2048".into(),
                    "tg64 × 1".into(),
                    "tg64 × 8".into(),
                    "tg64 × 64".into()
                ],
                1
            )
        );
        assert_eq!(cells(64).1, 3);
    }

    #[test]
    fn a_round_that_the_machine_slows_down_does_not_change_the_ratio() {
        // The machine is busy in rounds 2 and 3.
        assert_eq!(ratio(&[10.0, 5.0, 4.0, 10.0], &[10.0, 5.0, 4.0, 10.0]), 1.0);
        assert_eq!(ratio(&[8.0, 4.0, 8.0], &[10.0, 5.0, 10.0]), 0.8);
        // The medians of all rounds would give 0.5.
        assert_eq!(ratio(&[10.0, 5.0, 5.0], &[10.0, 10.0, 5.0]), 1.0);
    }

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&[]), 0.0);
    }
}
