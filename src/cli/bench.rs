//! Implements `ragtag bench`, which measures the speed of prompt processing (pp) and generation (tg) in
//! tokens per second, like llama-bench.

use super::args::{BenchArgs, BenchCommand, BenchSampling};
use super::compare;
use super::error::{Error, Result};
use super::files;
use super::output::{inform, out_width, print_json, set_quiet, show, table};
use super::plan_table::summary;
use super::progress;
use super::start::model::open;
use super::start::placed::placed;
use super::start::wanted::{Needs, workload};
use super::stream::block_on;
use crate::{Meter, Model, Sampling, Session};
use ragtag_scheduler::compare::Burst;
use serde::Serialize;
use serde_json::json;

/// Kind of a test, with the number of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Test {
    Prompt(u32),
    Generate(u32),
}

#[derive(Debug, Default, Serialize)]
pub(super) struct Measurement {
    pub(super) test: String,
    pub(super) parallel: u32,
    pub(super) tokens: u64,
    pub(super) mean_tokens_per_s: f64,
    pub(super) deviation_tokens_per_s: f64,
    pub(super) median_tokens_per_s: f64,
    pub(super) samples_tokens_per_s: Vec<f64>,
}

pub(super) fn run(args: &BenchArgs) -> Result<()> {
    if let Some(BenchCommand::Links(args)) = &args.command {
        return super::links::bench(args);
    }
    set_quiet(args.quiet);
    let outputs = args.records.files().chain(&args.comparison.html);
    files::check(outputs, args.model.path().into_iter().chain(&args.placement.plan))?;
    let model = open(&args.model, &args.placement)?;
    let tests = tests(args);
    if tests.is_empty() {
        return Err(Error::Usage("nothing to measure: -p and -n are both 0".into()));
    }
    let longest = |lengths: &[u32]| lengths.iter().copied().max().unwrap_or(0);
    let needs = Needs {
        asked: args.parallel,
        context: tests.iter().map(|test| test.tokens()).max(),
        request: args.request,
        workload: workload(longest(&args.pp) as usize, longest(&args.tg)),
        verified: args.transfers.verify_transfers,
        ..Needs::of(1)
    };
    let mut placed = placed(&model, &args.devices, &args.placement, needs)?;
    inform(&summary(&placed.plan));
    let parallel = placed.plan.sequences;
    let is_traced = args.records.trace.is_some() || args.comparison.html.is_some();
    let options = || args.transfers.options(is_traced);
    let (mut engine, mut replanned) = (placed.start(&model, options())?, None);
    if args.comparison.replan {
        for test in &tests {
            once(&engine.session(), &test.burst(parallel), args.sampling)?;
        }
        (engine, replanned) = compare::replan(&mut placed, &model, engine, options())?;
    }
    if args.canary {
        placed.check_blocks(&model, &engine)?;
    }
    let bar = progress::steps("measuring", tests.len() as u64 * u64::from(args.repetitions + 1));
    // The first runs compile kernels and record commands, so they do not count.
    for test in &tests {
        once(&engine.session(), &test.burst(parallel), args.sampling)?;
        bar.inc(1);
    }
    let (warm, meter) = (engine.stats(), Meter::start());
    let mut measurements = Vec::new();
    for test in &tests {
        measurements.push(measure(&engine.session(), *test, parallel, args, &bar)?);
    }
    bar.finish_and_clear();
    let bursts: Vec<_> = tests
        .iter()
        .zip(&measurements)
        .map(|(test, m)| (test.burst(parallel), m.median_tokens_per_s))
        .collect();
    let comparison = placed.planner.compare_since(&engine, &warm, &bursts)?;
    compare::mend_profiles(&placed, &engine.plan(), &comparison, &meter);
    let printed = if args.json {
        print_json(&json!({
            "model": model.name(),
            "file_bytes": model.file_bytes(),
            "parameters": model.graph().parameters(),
            "plan": *engine.plan(),
            "sampling": args.sampling,
            "measurements": measurements,
            "comparison": comparison,
            "replanned": replanned,
            "verified_transfers": engine.verified_transfers(),
            "stages": super::records::stage_reports(&engine),
        }))
    } else {
        super::records::inform_verified(&engine);
        let split = engine.plan().split().to_string();
        let table = as_table(&model, &split, &measurements, out_width());
        show(&format!("{table}\n{}", compare::as_table(&comparison, out_width())))
    };
    // A failed write does not affect the other outputs.
    let drawn = compare::write_page(&args.comparison, &engine, &comparison);
    printed.and(drawn).and(args.records.write(&model, &placed.devices, engine))
}

fn tests(args: &BenchArgs) -> Vec<Test> {
    let prompts = args.pp.iter().filter(|&&n| n > 0).map(|&n| Test::Prompt(n));
    let generations = args.tg.iter().filter(|&&n| n > 0).map(|&n| Test::Generate(n));
    prompts.chain(generations).collect()
}

impl Test {
    fn name(self) -> String {
        match self {
            Test::Prompt(n) => format!("pp{n}"),
            Test::Generate(n) => format!("tg{n}"),
        }
    }

    /// Returns the burst that runs the test with `sequences` sequences.
    fn burst(self, sequences: u32) -> Burst {
        match self {
            Test::Prompt(tokens) => Burst::Prompts { tokens, sequences },
            Test::Generate(tokens) => Burst::Generations { prompt: 1, tokens, sequences },
        }
    }

    /// Returns the number of tokens that the rate of a sequence counts. It is also the number of KV positions
    /// that the sequence needs: a prompt is followed by one new token, a generation follows a prompt of one
    /// token, and the last new token is never an input.
    fn tokens(self) -> u32 {
        match self {
            Test::Prompt(n) | Test::Generate(n) => n,
        }
    }
}

fn measure(
    session: &Session,
    test: Test,
    parallel: u32,
    args: &BenchArgs,
    bar: &indicatif::ProgressBar,
) -> Result<Measurement> {
    let tokens = u64::from(test.tokens()) * u64::from(parallel);
    let mut samples = Vec::new();
    for _ in 0..args.repetitions {
        samples.push(tokens as f64 / once(session, &test.burst(parallel), args.sampling)?);
        bar.inc(1);
    }
    let mean = samples.iter().sum::<f64>() / samples.len() as f64;
    let squares: f64 = samples.iter().map(|s| (s - mean).powi(2)).sum();
    Ok(Measurement {
        test: test.name(),
        parallel,
        tokens,
        mean_tokens_per_s: mean,
        deviation_tokens_per_s: (squares / (samples.len() as f64 - 1.0).max(1.0)).sqrt(),
        median_tokens_per_s: median(&samples),
        samples_tokens_per_s: samples,
    })
}

/// Runs a burst and returns the time until its last sequence ends, in seconds.
fn once(session: &Session, burst: &Burst, sampling: BenchSampling) -> Result<f64> {
    let sampling = match sampling {
        BenchSampling::Default => Sampling::default(),
        BenchSampling::Greedy => Sampling::greedy(),
    };
    Ok(block_on(session.burst_with(burst, sampling))?.seconds)
}

pub(super) fn as_table(
    model: &Model,
    split: &str,
    measurements: &[Measurement],
    width: Option<u16>,
) -> String {
    let columns = ["model", "+>size", "+>params", "placement", ">parallel", "test", ">tokens/s", "+>median"];
    let mut table = table(&columns, width);
    for m in measurements {
        table.add_row([
            model.name().to_string(),
            super::output::bytes(model.file_bytes()),
            super::output::count(model.graph().parameters()),
            split.to_owned(),
            m.parallel.to_string(),
            m.test.clone(),
            format!("{:.2} ± {:.2}", m.mean_tokens_per_s, m.deviation_tokens_per_s),
            format!("{:.2}", m.median_tokens_per_s),
        ]);
    }
    format!("{table}\n")
}

fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let (low, high) = (sorted.len().saturating_sub(1) / 2, sorted.len() / 2);
    let at = |index: usize| sorted.get(index).copied().unwrap_or(0.0);
    (at(low) + at(high)) / 2.0
}
