//! Measures how requests share the KV cache.
//!
//! `shared` submits requests whose prompts begin alike, with and without the prefix cache, and compares their
//! throughput. `pressure` gives sequences a pool that is several times smaller than they need together, and
//! compares their tokens with those of sequences that reserve all their blocks.
//!
//! Usage: `cargo bench --bench requests -- --device cuda:0 shared 7b:q4_0`, `… --activations f32 pressure
//! model.gguf`. A model is PRESET:TYPE, as in `cargo xtask synth-model`, or a GGUF file. `--help` lists the options.
#![allow(clippy::print_stdout)] // prints a report

#[allow(dead_code)] // this benchmark runs no bursts
mod support;

use clap::{Parser, ValueEnum};
use ragtag::{
    DeviceOptions, Devices, Engine, EngineOptions, Error, Event, Generation, Model, Planner, Prompt, Summary,
};
use ragtag_graph::execution::{Eviction, KvUse, Reserve};
use ragtag_kernels::Activations;
use std::time::Instant;
use support::{median, model};

/// Logit margin of the best two tokens up to which another token may be selected, because other kernels round
/// differently.
const TIE: f32 = 0.005;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Test {
    /// Prompts that begin alike, with and without the prefix cache
    Shared,
    /// A pool that is too small for all sequences at once
    Pressure,
}

#[derive(Parser)]
struct Arguments {
    /// Device, or devices to split the model over
    #[arg(long, default_value = "cpu:0")]
    device: String,
    /// Requests
    #[arg(long, default_value_t = 64)]
    sequences: u32,
    /// Tokens of each prompt
    #[arg(long, default_value_t = 1024)]
    prompt: u32,
    /// Tokens with which all prompts begin
    #[arg(long, default_value_t = 768)]
    shared: u32,
    /// New tokens of each request
    #[arg(long, default_value_t = 16)]
    tokens: u32,
    /// Number of pools of the given size that all sequences would fill together (`pressure`)
    #[arg(long, default_value_t = 4)]
    times: u32,
    /// Samples per figure; the median is reported
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// f32 or int8
    #[arg(long, default_value = "int8", value_parser = activations)]
    activations: Activations,
    /// Added by cargo
    #[arg(long, hide = true)]
    bench: bool,
    test: Test,
    /// PRESET:TYPE, as in 7b:q4_0, or a GGUF file
    model: String,
}

fn activations(name: &str) -> Result<Activations, String> {
    let all = [("f32", Activations::F32), ("int8", Activations::Int8)];
    all.into_iter().find(|(other, _)| *other == name).map(|(_, it)| it).ok_or_else(|| "f32 or int8".into())
}

/// Tokens and times of the requests.
struct Outcome {
    seconds: f64,
    tokens: Vec<Vec<u32>>,
    summaries: Vec<Summary>,
}

fn main() -> ragtag::Result<()> {
    let arguments = Arguments::parse();
    let model = model(&arguments.model, None)?;
    let devices = Devices::probe(&DeviceOptions::selecting(&arguments.device))?;
    match arguments.test {
        Test::Shared => shared(&arguments, &model, &devices),
        Test::Pressure => pressure(&arguments, &model, &devices),
    }
}

impl Arguments {
    fn planner(&self, model: &Model, devices: &Devices, kv_use: KvUse) -> Planner {
        let planner = Planner::new(model).devices(devices).activations(self.activations).kv_use(kv_use);
        planner.sequences(self.sequences).context(self.prompt + self.tokens)
    }

    /// Returns prompts that begin with the same tokens. Other seeds have other prompts.
    fn prompts(&self, model: &Model, seed: u32) -> Vec<Vec<u32>> {
        let vocabulary = model.hyperparameters().vocabulary;
        let token = |of: u32, at: u32| {
            let mixed = (u64::from(seed) << 48 | u64::from(of) << 24 | u64::from(at))
                .wrapping_mul(0x9e37_79b9_7f4a_7c15);
            ((mixed ^ mixed >> 31) % u64::from(vocabulary)) as u32
        };
        let of = |sequence: u32| {
            let tokens =
                (0..self.prompt).map(|at| token(if at < self.shared { 0 } else { sequence + 1 }, at));
            tokens.collect()
        };
        (0..self.sequences).map(of).collect()
    }

    /// Runs all requests at once.
    fn run(&self, engine: &Engine, prompts: &[Vec<u32>]) -> ragtag::Result<Outcome> {
        let generation = Generation { max_tokens: self.tokens, ignore_end: true, ..Generation::greedy() };
        let start = Instant::now();
        let session = engine.session();
        let streams = prompts.iter().map(|ids| session.generate(Prompt::Tokens(ids), &generation));
        let streams = streams.collect::<ragtag::Result<Vec<_>>>()?;
        let mut outcome = Outcome { seconds: 0.0, tokens: Vec::new(), summaries: Vec::new() };
        block_on(async {
            for mut stream in streams {
                let mut tokens = Vec::new();
                loop {
                    match stream.next_event().await? {
                        Event::Token { id, .. } => tokens.extend(id),
                        Event::Finished(summary) => break outcome.summaries.push(summary),
                    }
                }
                outcome.tokens.push(tokens);
            }
            Ok(())
        })?;
        outcome.seconds = start.elapsed().as_secs_f64();
        Ok(outcome)
    }
}

fn block_on<T>(future: impl Future<Output = ragtag::Result<T>>) -> ragtag::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let runtime = runtime.map_err(|e| Error::Usage(format!("cannot start the async runtime: {e}")))?;
    runtime.block_on(future)
}

fn shared(arguments: &Arguments, model: &Model, devices: &Devices) -> ragtag::Result<()> {
    let mut medians = Vec::new();
    for prefixes in [None, Some(Eviction::Lru)] {
        let planner = arguments.planner(model, devices, KvUse { reserve: Reserve::Grow, prefixes });
        let engine = Engine::start(model, devices, &planner, EngineOptions::default())?;
        let mut rates = Vec::new();
        for round in 0..=arguments.rounds {
            let outcome = arguments.run(&engine, &arguments.prompts(model, round))?;
            let tokens = f64::from(arguments.sequences * (arguments.prompt + arguments.tokens));
            let cached: u32 = outcome.summaries.iter().map(|summary| summary.cached_tokens).sum();
            println!("{prefixes:?}: {:.0} tokens/s, {cached} from the cache", tokens / outcome.seconds);
            // The first round compiles kernels and records programs.
            rates.extend((round > 0).then_some(tokens / outcome.seconds));
        }
        medians.push(median(&rates));
    }
    let [without, with] = medians[..] else { return Ok(()) };
    println!("without {without:.0} tokens/s, with {with:.0} tokens/s: {:.2} times", with / without);
    Ok(())
}

fn pressure(arguments: &Arguments, model: &Model, devices: &Devices) -> ragtag::Result<()> {
    let prompts = arguments.prompts(model, 1);
    let full = KvUse { reserve: Reserve::Full, prefixes: None };
    let planner = arguments.planner(model, devices, full).all_logits();
    let mut options = EngineOptions::default();
    options.all_logits = true;
    let engine = Engine::start(model, devices, &planner, options)?;
    let reference = arguments.run(&engine, &prompts)?;
    let blocks = engine.plan().kv_blocks;
    let mut failed = false;
    for prefixes in [None, Some(Eviction::Lru)] {
        let grow = KvUse { reserve: Reserve::Grow, prefixes };
        let planner = arguments.planner(model, devices, grow).kv_blocks(blocks.div_ceil(arguments.times));
        let small = Engine::start(model, devices, &planner, EngineOptions::default())?;
        let outcome = arguments.run(&small, &prompts)?;
        let (mut equal, mut ties, mut wrong) = (0, 0, 0);
        for ((got, wanted), prompt) in outcome.tokens.iter().zip(&reference.tokens).zip(&prompts) {
            let Some(at) = (0..wanted.len()).find(|&at| got.get(at) != wanted.get(at)) else {
                equal += 1;
                continue;
            };
            let before = [&prompt[..], &wanted[..at]].concat();
            match margin(&engine, model, &before)? {
                small if small <= TIE => ties += 1,
                _ => wrong += 1,
            }
        }
        let preempted: u32 = outcome.summaries.iter().map(|summary| summary.preemptions).sum();
        let cached: u32 = outcome.summaries.iter().map(|summary| summary.cached_tokens).sum();
        println!(
            "{prefixes:?}: {} of {blocks} blocks, {preempted} preemptions, {cached} cached tokens, {:.2} s (full: {:.2} s): \
             {equal} equal, {ties} differ at a tie, {wrong} wrong",
            small.plan().kv_blocks,
            outcome.seconds,
            reference.seconds
        );
        failed |= wrong > 0 || ties * 10 > equal + ties || outcome.tokens.len() != prompts.len();
    }
    if failed { Err(Error::Usage("the tokens differ".into())) } else { Ok(()) }
}

/// Returns the difference between the two largest logits after `ids`.
fn margin(engine: &Engine, model: &Model, ids: &[u32]) -> ragtag::Result<f32> {
    let logits = block_on(engine.session().logits(ids))?;
    let last = &logits[logits.len() - model.hyperparameters().vocabulary as usize..];
    let (mut best, mut second) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
    for &logit in last {
        second = second.max(logit.min(best));
        best = best.max(logit);
    }
    Ok(best - second)
}
