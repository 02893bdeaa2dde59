//! Compares the speed of the default settings with the speed of a few alternatives. Each alternative changes one
//! setting.
//!
//! Usage: `cargo bench --bench defaults -- --device cuda:0 7b:q4_0 > defaults.json`. The model is PRESET:TYPE
//! or a GGUF file. `--help` lists the options. The default and the alternative run alternately, once per
//! round. The ratio of their speeds is the median of the ratios of all rounds, because a busy machine slows
//! both runs of a round. The bench prints all samples as JSON.
#![allow(clippy::print_stdout, clippy::print_stderr)] // prints a report

mod support;

use clap::Parser;
use ragtag::compare::Burst;
use ragtag::{
    AdapterKind, Calibration, CalibrationOptions, DeviceOptions, Devices, Engine, EngineOptions, GemmChoice,
    Model, Plan, Planner, Result, Workload,
};
use serde_json::{Value, json};
use std::fmt;
use support::{burst, median, model};

/// Prompt lengths in the prefill workloads, in tokens.
const PROMPTS: [u32; 3] = [512, 2048, 8192];
/// Numbers of sequences in the decode workloads, and the numbers of prompt tokens and new tokens of each
/// sequence.
const SEQUENCES: [u32; 3] = [1, 8, 64];
const PROMPT_TOKENS: u32 = 16;
const NEW_TOKENS: u32 = 64;
/// Ratio of default to alternative speed below which the pair is measured again with twice as many rounds,
/// because the smallest of several noisy ratios is biased low.
const MEASURED_AGAIN: f64 = 0.98;

#[derive(Clone, Parser)]
struct Arguments {
    /// Devices
    #[arg(long, default_value = "auto")]
    device: String,
    /// Threads of the CPU device
    #[arg(long)]
    threads: Option<u32>,
    /// Rounds per alternative
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Added by cargo
    #[arg(long, hide = true)]
    bench: bool,
    /// PRESET:TYPE, as in 7b:q4_0, or a GGUF file
    model: String,
}

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

/// The default plan of a workload, and its engine.
struct Subject<'a> {
    arguments: &'a Arguments,
    model: &'a Model,
    devices: &'a Devices,
    planner: Planner,
    plan: Plan,
    engine: Engine,
    burst: Burst,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let model = model(&arguments.model, None)?;
    let devices = arguments.devices(None)?;
    let context = model.hyperparameters().context;
    let prompts = PROMPTS.into_iter().filter(|tokens| *tokens < context);
    let prefill = prompts.map(|tokens| Burst::Prompts { tokens, sequences: 1 });
    let (prompt, tokens) = (PROMPT_TOKENS.min(context / 2), NEW_TOKENS.min(context / 2));
    let decode = SEQUENCES.map(|sequences| Burst::Generations { prompt, tokens, sequences });
    let mut cells = Vec::new();
    for burst in prefill.chain(decode) {
        cells.push(Subject::new(&arguments, &model, &devices, burst)?.compare());
    }
    println!("{:#}", json!({ "model": model.name(), "cells": cells }));
    Ok(())
}

impl Arguments {
    /// Probes the devices with the default options except for `change`.
    fn devices(&self, change: Option<&Change>) -> Result<Devices> {
        let mut options = DeviceOptions::selecting(&*self.device);
        options.cpu_threads = self.threads;
        match change {
            Some(Change::Threads(threads)) => options.cpu_threads = Some(*threads),
            Some(Change::Library) => options.gemm = GemmChoice::Library,
            _ => {}
        }
        Devices::probe(&options)
    }
}

/// Returns the prompt tokens and the new tokens of each sequence, and the number of sequences.
fn shape(burst: &Burst) -> (Workload, u32) {
    let (prompt_tokens, generated_tokens, sequences) = match *burst {
        Burst::Prompts { tokens, sequences } => (tokens, 1, sequences),
        Burst::Generations { prompt, tokens, sequences } => (prompt, tokens, sequences),
    };
    (Workload { prompt_tokens, generated_tokens }, sequences)
}

impl<'a> Subject<'a> {
    fn new(arguments: &'a Arguments, model: &'a Model, devices: &'a Devices, burst: Burst) -> Result<Self> {
        let (workload, sequences) = shape(&burst);
        let mut options = CalibrationOptions::default();
        options.sequences = sequences;
        let calibration = Calibration::run(model, devices, &options, &|_, _| ())?;
        let planner = Planner::new(model)
            .devices(devices)
            .calibrated(&calibration)
            .sequences(sequences)
            .context(workload.prompt_tokens + workload.generated_tokens)
            .workload(workload);
        let plan = planner.plan()?;
        let engine = Engine::start_exact(model, devices, &plan, EngineOptions::default())?;
        Ok(Self { arguments, model, devices, planner, plan, engine, burst })
    }

    fn is_prefill(&self) -> bool {
        matches!(self.burst, Burst::Prompts { .. })
    }

    /// Returns the changes to the default settings that are compared with the default.
    fn changes(&self) -> Vec<Change> {
        let selected = self.devices.selected();
        let is = |kind| selected.iter().find(|adapter| adapter.kind == kind);
        let mut changes = if self.is_prefill() {
            let library = is(AdapterKind::Discrete).map(|_| Change::Library);
            [512, 1024, 2048, 4096, 256, 128].map(Change::Chunk).into_iter().chain(library).collect()
        } else {
            let groups = [1, 2, 4].into_iter().filter(|&n| n <= self.plan.sequences).map(Change::Groups);
            groups.chain([1, 3, 5].map(Change::Credits)).collect::<Vec<_>>()
        };
        if selected.len() > 1 {
            changes.extend(selected.iter().map(|adapter| Change::Only(adapter.label())));
        }
        let units = is(AdapterKind::Cpu).map_or(0, |adapter| adapter.caps.parallel_units);
        let mut fewer = vec![units / 2, units * 3 / 4, units.saturating_sub(1)];
        fewer.dedup();
        changes.extend(fewer.into_iter().filter(|&n| n > 0 && n < units).map(Change::Threads));
        changes
    }

    /// Compares the default with each alternative. An alternative that cannot run, or whose plan equals the
    /// default's, is left out with the reason.
    fn compare(&self) -> Value {
        let (mut alternatives, mut left_out) = (Vec::new(), Vec::new());
        for change in self.changes() {
            match self.against(&change) {
                Ok(Some(measured)) => {
                    eprintln!("{:?}: {change}: ratio {}", self.burst, measured["ratio"]);
                    alternatives.push(measured);
                }
                Ok(None) => left_out.push(format!("{change}: the same plan")),
                Err(error) => left_out.push(format!("{change}: {error}")),
            }
        }
        let ratio = alternatives.iter().filter_map(|one| one["ratio"].as_f64()).fold(f64::INFINITY, f64::min);
        json!({ "cell": format!("{:?}", self.burst), "plan": self.plan.split().to_string(), "ratio": ratio,
                "alternatives": alternatives, "left_out": left_out })
    }

    /// Measures the default and one alternative alternately. Returns `None` if both have the same plan.
    fn against(&self, change: &Change) -> Result<Option<Value>> {
        let others = match change {
            Change::Threads(_) | Change::Library => Some(self.arguments.devices(Some(change))?),
            _ => None,
        };
        let devices = others.as_ref().unwrap_or(self.devices);
        let plan = self.changed(devices, change).plan()?;
        if others.is_none() && runs_alike(&self.plan, &plan) {
            return Ok(None);
        }
        let other = Engine::start_exact(self.model, devices, &plan, EngineOptions::default())?;
        let mut samples = self.in_turns(&other, self.arguments.rounds)?;
        if ratio(&samples) < MEASURED_AGAIN {
            samples = self.in_turns(&other, self.arguments.rounds * 2)?;
        }
        let [own, others] = &samples;
        Ok(Some(json!({
            "change": change.to_string(),
            "ratio": ratio(&samples),
            "default_tokens_per_s": median(own),
            "tokens_per_s": median(others),
            "default_samples_tokens_per_s": own,
            "samples_tokens_per_s": others,
        })))
    }

    /// Returns the planner for an alternative. It keeps all settings of the default plan except `change`.
    fn changed(&self, devices: &Devices, change: &Change) -> Planner {
        let plan = &self.plan;
        let planner = self.planner.clone().wire_type(plan.wire_type);
        match change {
            Change::Chunk(rows) => planner.chunk(*rows),
            Change::Groups(groups) => planner.decode_groups(*groups),
            Change::Credits(credits) => planner.credits(*credits),
            Change::Only(device) => {
                let others = self.devices.labels().into_iter().filter(|label| label != device);
                others.fold(planner, |planner, other| planner.exclude(&other))
            }
            // These devices are not calibrated, so the alternative keeps the placement and micro-batches of
            // the default.
            Change::Threads(_) | Change::Library => Planner::new(self.model)
                .devices(devices)
                .context(plan.context)
                .sequences(plan.sequences)
                .wire_type(plan.wire_type)
                .chunk(plan.chunk)
                .chunks(plan.chunks())
                .decode_groups(plan.decode_groups)
                .credits(plan.credits)
                .slots(plan.slots)
                .workload(plan.workload)
                .split(plan.split()),
        }
    }

    /// Returns the tokens per second of the default and of `other` in each round, after a warm-up.
    fn in_turns(&self, other: &Engine, rounds: u32) -> Result<[Vec<f64>; 2]> {
        let mut samples = [Vec::new(), Vec::new()];
        for round in 0..=rounds {
            for (engine, rates) in [&self.engine, other].into_iter().zip(&mut samples) {
                // The other engine's weights have displaced those of this engine from the caches of a CPU.
                if self.is_prefill() {
                    burst(engine, &self.burst)?;
                }
                let rate = self.rate(engine)?;
                if round > 0 {
                    rates.push(rate);
                }
            }
        }
        Ok(samples)
    }

    fn rate(&self, engine: &Engine) -> Result<f64> {
        let times = burst(engine, &self.burst)?;
        Ok(match self.burst {
            Burst::Prompts { tokens, .. } => f64::from(tokens) / times.seconds,
            Burst::Generations { tokens, sequences, .. } => {
                times.together_tokens_per_s().unwrap_or(f64::from(tokens * sequences) / times.seconds)
            }
        })
    }
}

/// Returns whether two plans for the same devices run in the same way.
fn runs_alike(a: &Plan, b: &Plan) -> bool {
    let settings =
        |plan: &Plan| (plan.chunks(), plan.decode_groups, plan.credits, plan.slots, plan.wire_type);
    a.split().to_string() == b.split().to_string() && settings(a) == settings(b)
}

/// Returns the median over all rounds of the ratio of default to alternative speed.
fn ratio([own, others]: &[Vec<f64>; 2]) -> f64 {
    median(&own.iter().zip(others).map(|(own, other)| own / other).collect::<Vec<_>>())
}
