//! Compares the predictions for many plans with measurements. The placements come from a seeded random
//! generator, from the planner, and from simple rules. The bench predicts the speed of each plan and then
//! runs the plan on this machine's devices.
//!
//! ```sh
//! cargo bench --bench plans -- --device cuda:0,cuda:1,cpu --plans 20 --json plans.json 7b:f16 --layers 8
//! cargo bench --bench plans -- --device cpu --cpu-devices 2 --threads 1 --throttle cpu:1=duty:50% 300m:q8_0
//! ```
//!
//! The bench first calibrates the devices and ignores cached profiles. For a drawn plan, the generator
//! chooses the number of devices, the devices and their order, the cuts, the chunk and the number of decode
//! groups. If a plan does not fit in memory, or is predicted to take longer than `--longest`, the generator
//! draws another one. The bench compares four figures per plan, all in tokens per second:
//!
//! | figure | measured | predicted |
//! | --- | --- | --- |
//! | decode | all sequences at once, while all of them generate | by the planner |
//! | prefill | the prompts of all sequences, from the first to the last | by the simulator |
//! | load | all sequences, prompts and answers | by the simulator |
//! | alone | one sequence, prompt and answer | by the simulator |
#![allow(clippy::print_stdout, clippy::print_stderr)] // prints a report

mod support;

use clap::Parser;
use ragtag::compare::{Burst, ComparedPart};
use ragtag::simulation::{Arrivals, DrawnLoad, Lengths};
use ragtag::{
    Activations, Baseline, Calibration, CalibrationOptions, DeviceOptions, Devices, Engine, EngineOptions,
    KvType, MAX_CHUNK, Model, Objective, Plan, Planner, ThrottleSpec, Workload,
};
use ragtag_planner::PlanError;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use serde::Serialize;
use std::path::PathBuf;
use std::time::Instant;
use support::{burst, median, model};

/// Chunk sizes in tokens. The generator draws one of them per plan.
const CHUNKS: [u32; 5] = [32, 64, 128, 256, 512];
/// Maximum number of random plans that the generator draws before it gives up.
const DRAWS: usize = 100;
/// Relative-error bounds. For each bound, the summary counts the predictions within it.
const NEAR: [f64; 2] = [0.1, 0.2];

/// Name of the planner's plan for throughput.
const THROUGHPUT: &str = "chosen for throughput";
const LATENCY: &str = "chosen for latency";

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

#[derive(Parser)]
struct Arguments {
    /// Devices
    #[arg(long, default_value = "cpu")]
    device: String,
    /// Number of devices to present the CPU as
    #[arg(long, default_value_t = 1)]
    cpu_devices: u32,
    /// Threads of each CPU device
    #[arg(long)]
    threads: Option<u32>,
    /// Device or link to throttle; may be repeated
    #[arg(long)]
    throttle: Vec<ThrottleSpec>,
    /// Number of drawn plans
    #[arg(long, default_value_t = 20)]
    plans: usize,
    /// Seed of the generator that draws plans
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Concurrent sequences
    #[arg(long, default_value_t = 8)]
    sequences: u32,
    /// Tokens of each prompt
    #[arg(long, default_value_t = 256)]
    prompt: u32,
    /// Tokens that each sequence generates
    #[arg(long, default_value_t = 64)]
    tokens: u32,
    /// Activations: f32 or int8
    #[arg(long, default_value = "int8")]
    activations: String,
    /// Seconds to time each device
    #[arg(long, default_value_t = 2.0)]
    calibration: f64,
    /// Measurements per figure; the median is reported
    #[arg(long, default_value_t = 1)]
    rounds: usize,
    /// Maximum predicted duration of a plan in seconds; a random plan over the limit is redrawn, and a
    /// rule-based plan over it is skipped
    #[arg(long, default_value_t = 20.0)]
    longest: f64,
    /// Layers of a model made in memory
    #[arg(long)]
    layers: Option<u32>,
    /// File for all results as JSON
    #[arg(long)]
    json: Option<PathBuf>,
    /// Added by cargo
    #[arg(long, hide = true)]
    bench: bool,
    /// PRESET:TYPE, as in 7b:f16, or a GGUF file
    model: String,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let bench = Bench::new(&arguments)?;
    let candidates = bench.candidates()?;
    println!("{:<28} {:>26} {:>26} {:>26} {:>26}  plan", "", "decode", "prefill", "load", "alone, tokens/s");
    let mut rows = Vec::new();
    for (at, candidate) in candidates.iter().enumerate() {
        let split = candidate.plan.split();
        eprintln!("[{}/{}] {}: {split}", at + 1, candidates.len(), candidate.name);
        let row = bench.row(candidate);
        println!("{row}");
        rows.push(row);
        // Write the results after every row, so that an interrupted run keeps them.
        bench.write(&rows)?;
    }
    println!("\n{}", summary(&rows).join("\n"));
    Ok(())
}

/// State for predicting and measuring all plans.
struct Bench<'a> {
    arguments: &'a Arguments,
    model: Model,
    devices: Devices,
    calibration: Calibration,
    planner: Planner,
}

/// A plan to predict and to run.
struct Candidate {
    name: String,
    plan: Plan,
    predicted: Rates,
    /// Predicted duration of all measurements of the plan, in seconds.
    seconds: f64,
}

/// Rates in tokens per second.
#[derive(Clone, Copy, Debug, Serialize)]
struct Rates {
    decode: f64,
    prefill: f64,
    load: f64,
    alone: f64,
}

impl Rates {
    fn all(&self) -> [(&'static str, f64); 4] {
        [("decode", self.decode), ("prefill", self.prefill), ("load", self.load), ("alone", self.alone)]
    }
}

impl<'a> Bench<'a> {
    fn new(arguments: &'a Arguments) -> Result<Self> {
        let model = model(&arguments.model, arguments.layers)?;
        let mut options = DeviceOptions::selecting(&*arguments.device);
        options.throttles = arguments.throttle.clone();
        (options.cpu_devices, options.cpu_threads) = (arguments.cpu_devices, arguments.threads);
        let devices = Devices::probe(&options)?;
        println!("{}", devices.start_line());
        let (activations, kv) = match arguments.activations.as_str() {
            "f32" => (Activations::F32, KvType::F32),
            _ => (Activations::Int8, KvType::F16),
        };
        let context = arguments.prompt + arguments.tokens;
        let start = Instant::now();
        let mut options = CalibrationOptions::default();
        (options.activations, options.kv) = (activations, kv);
        // The largest chunk covers all chunks that the planner may choose.
        options.chunk = MAX_CHUNK.min(context);
        (options.sequences, options.seconds) = (arguments.sequences, arguments.calibration);
        (options.limit, options.force) = (None, true);
        let progress = |done: u64, total: u64| {
            if done == total {
                eprintln!("calibrated: {total} steps in {:.1} s", start.elapsed().as_secs_f64());
            }
        };
        let calibration = Calibration::run(&model, &devices, &options, &progress)?;
        calibration.warnings.iter().for_each(|warning| println!("note: {warning}"));
        let planner = Planner::new(&model).devices(&devices).calibrated(&calibration).context(context);
        let planner = planner
            .sequences(arguments.sequences)
            .kv(kv)
            .activations(activations)
            .workload(Workload { prompt_tokens: arguments.prompt, generated_tokens: arguments.tokens });
        Ok(Self { arguments, model, devices, calibration, planner })
    }

    /// Returns the plans to compare: the planner's plans, the plans with rule-based placements, and the
    /// random plans.
    fn candidates(&self) -> Result<Vec<Candidate>> {
        let latency = self.planner.clone().objective(Objective::Latency).plan()?;
        let chosen = self.planner.plan()?;
        let segments = chosen.model.segments;
        let mut named = vec![(THROUGHPUT.to_string(), chosen), (LATENCY.to_string(), latency)];
        for rule in Baseline::ALL {
            match self.planner.baseline(rule)? {
                Some(plan) => named.push((rule.to_string(), plan)),
                None => println!("{rule}: does not fit"),
            }
        }
        let mut candidates: Vec<Candidate> = Vec::new();
        for (name, plan) in named {
            let planner = self.planner.clone().split(plan.split()).wire_type(plan.wire_type);
            let credits = plan.credits;
            let mut plan = planner.chunk(plan.chunk).decode_groups(plan.decode_groups).plan()?;
            plan.credits = credits;
            let candidate = self.candidate(name, plan)?;
            match candidates.iter_mut().find(|other| other.is_the_same(&candidate)) {
                Some(other) => other.name = format!("{}, {}", other.name, candidate.name),
                None => candidates.push(candidate),
            }
        }
        let mut rng = SmallRng::seed_from_u64(self.arguments.seed);
        for number in 1..=self.arguments.plans {
            match self.drawn(&mut rng, number, segments)? {
                Some(candidate) => candidates.push(candidate),
                None => println!(
                    "drawn {number}: no plan in {DRAWS} draws fits and is fast enough; see --longest"
                ),
            }
        }
        Ok(candidates)
    }

    fn candidate(&self, name: String, plan: Plan) -> Result<Candidate> {
        let Arguments { sequences, tokens, rounds, .. } = *self.arguments;
        let prefill_s = self.simulated_s(&plan, sequences, 1)?;
        let load_s = self.simulated_s(&plan, sequences, tokens)?;
        let alone_s = self.simulated_s(&plan, 1, tokens)?;
        let predicted = self.rates(plan.predicted.decode_tokens_per_s, [prefill_s, load_s, alone_s]);
        // Both loads also run once as a warm-up.
        let seconds = load_s + alone_s + rounds as f64 * (prefill_s + load_s + alone_s);
        Ok(Candidate { name, plan, predicted, seconds })
    }

    /// Simulates `sequences` concurrent sequences with `new_tokens` new tokens each. Returns the duration in
    /// seconds.
    fn simulated_s(&self, plan: &Plan, sequences: u32, new_tokens: u32) -> Result<f64> {
        let load = DrawnLoad {
            requests: sequences,
            arrivals: Arrivals::Together,
            prompt_tokens: Lengths::Fixed(self.arguments.prompt),
            new_tokens: Lengths::Fixed(new_tokens),
            seed: 1,
        };
        let (devices, links) = self.planner.facts();
        Ok(ragtag::simulate(&self.model, plan, devices, links, &load.draw()?)?.duration_us / 1e6)
    }

    /// Returns the rates, given the decode rate and the durations in seconds of all prompts, of the whole
    /// load and of a single sequence.
    fn rates(&self, decode: f64, [prefill_s, load_s, alone_s]: [f64; 3]) -> Rates {
        let (sequences, tokens) = (f64::from(self.arguments.sequences), f64::from(self.arguments.tokens));
        Rates {
            decode,
            prefill: sequences * f64::from(self.arguments.prompt) / prefill_s,
            load: sequences * tokens / load_s,
            alone: tokens / alone_s,
        }
    }

    /// Draws plans until one fits in memory and is fast enough. Returns `None` after [`DRAWS`] unsuccessful
    /// draws.
    fn drawn(&self, rng: &mut SmallRng, number: usize, segments: u32) -> Result<Option<Candidate>> {
        let labels = self.planner.labels();
        let context = self.arguments.prompt + self.arguments.tokens;
        let chunks = CHUNKS.map(|chunk| chunk.min(context));
        for _ in 0..DRAWS {
            let stages = rng.random_range(1..=labels.len().min(segments as usize));
            let mut order = labels.clone();
            order.shuffle(rng);
            let mut cuts: Vec<u32> = (1..segments).collect();
            cuts.shuffle(rng);
            cuts.truncate(stages - 1);
            cuts.sort_unstable();
            let starts: Vec<u32> = std::iter::once(0).chain(cuts).chain([segments]).collect();
            let parts = starts.windows(2).zip(&order);
            let parts: Vec<_> =
                parts.map(|(ends, device)| format!("{}-{}={device}", ends[0], ends[1] - 1)).collect();
            let chunk = chunks[rng.random_range(0..chunks.len())];
            let groups = rng.random_range(1..=self.arguments.sequences.min(stages as u32));
            let planner = self.planner.clone().split(parts.join(",").parse()?).chunk(chunk);
            match planner.decode_groups(groups).plan() {
                Err(ragtag::Error::Planner(PlanError::DoesNotFit(_))) => {}
                Err(error) => return Err(error.into()),
                Ok(plan) => {
                    let candidate = self.candidate(format!("drawn {number}"), plan)?;
                    if candidate.seconds <= self.arguments.longest {
                        return Ok(Some(candidate));
                    }
                }
            }
        }
        Ok(None)
    }

    /// Measures a candidate and compares the measured rates with the predicted ones.
    fn row(&self, candidate: &Candidate) -> Row {
        let outcome = match candidate.seconds > self.arguments.longest {
            true => Err(format!("not run: predicted to take {:.0} s", candidate.seconds)),
            false => self.measured(candidate).map_err(|error| error.to_string()),
        };
        let (measured, parts, error) = match outcome {
            Ok((rates, parts)) => (Some(rates), parts, None),
            Err(error) => (None, Vec::new(), Some(error)),
        };
        let Candidate { name, plan, predicted, .. } = candidate;
        Row { name: name.clone(), plan: plan.clone(), predicted: *predicted, measured, parts, error }
    }

    fn measured(&self, candidate: &Candidate) -> Result<(Rates, Vec<ComparedPart>)> {
        let Arguments { sequences, prompt, tokens, rounds, .. } = *self.arguments;
        let engine =
            Engine::start_exact(&self.model, &self.devices, &candidate.plan, EngineOptions::default())?;
        let prompts = Burst::Prompts { tokens: prompt, sequences };
        let load = |sequences| Burst::Generations { prompt, tokens, sequences };
        // Warm up with the measured loads. Programs are recorded on first use, clocks rise, and the system
        // places the threads.
        burst(&engine, &load(sequences))?;
        burst(&engine, &load(1))?;
        let mut rates: Vec<Rates> = Vec::new();
        for _ in 0..rounds.max(1) {
            let prefill_s = burst(&engine, &prompts)?.seconds;
            let together = burst(&engine, &load(sequences))?;
            let alone_s = burst(&engine, &load(1))?.seconds;
            let decode = together.together_tokens_per_s().unwrap_or(f64::NAN);
            rates.push(self.rates(decode, [prefill_s, together.seconds, alone_s]));
        }
        let parts = self.planner.compare(&engine, &[])?.parts;
        let middle = |of: fn(&Rates) -> f64| median(&rates.iter().map(of).collect::<Vec<_>>());
        let rates = Rates {
            decode: middle(|r| r.decode),
            prefill: middle(|r| r.prefill),
            load: middle(|r| r.load),
            alone: middle(|r| r.alone),
        };
        Ok((rates, parts))
    }

    /// Writes the results so far to the file that `--json` names, if any.
    fn write(&self, rows: &[Row]) -> Result<()> {
        let Some(path) = &self.arguments.json else { return Ok(()) };
        let a = self.arguments;
        let report = serde_json::json!({
            "model": a.model, "layers": a.layers, "seed": a.seed, "sequences": a.sequences,
            "prompt": a.prompt, "tokens": a.tokens, "rounds": a.rounds, "activations": a.activations,
            "devices": self.devices.selected(),
            "throttles": self.devices.throttles(),
            "profiles": self.calibration.profiles.iter().map(|(_, profile)| profile.as_ref()).collect::<Vec<_>>(),
            "links": self.calibration.links,
            "warnings": self.calibration.warnings,
            "plans": rows,
            "summary": summary(rows),
        });
        Ok(std::fs::write(path, serde_json::to_vec_pretty(&report)?)?)
    }
}

impl Candidate {
    fn is_the_same(&self, other: &Self) -> bool {
        let of = |plan: &Plan| (plan.split().to_string(), plan.chunk, plan.decode_groups);
        of(&self.plan) == of(&other.plan)
    }
}

/// Results for one plan.
#[derive(Serialize)]
struct Row {
    name: String,
    plan: Plan,
    predicted: Rates,
    measured: Option<Rates>,
    parts: Vec<ComparedPart>,
    error: Option<String>,
}

impl Row {
    fn is(&self, name: &str) -> bool {
        self.name.split(", ").any(|own| own == name)
    }
}

impl std::fmt::Display for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:<28}", self.name)?;
        for (at, (_, predicted)) in self.predicted.all().into_iter().enumerate() {
            match &self.measured {
                Some(measured) => {
                    let measured = measured.all()[at].1;
                    let text =
                        format!("{predicted:.1} {measured:.1} {:+.0} %", error(predicted, measured) * 100.0);
                    write!(f, " {text:>26}")?;
                }
                None => write!(f, " {:>26}", format!("{predicted:.1} - -"))?,
            }
        }
        let plan = &self.plan;
        write!(f, "  {} chunk {} groups {}", plan.split(), plan.chunk, plan.decode_groups)?;
        let worst = self.parts.iter().max_by(|a, b| a.deviation.abs().total_cmp(&b.deviation.abs()));
        if let Some(part) = worst {
            write!(
                f,
                "; worst part: {:?} {} in {:?} {:+.0} %",
                part.place,
                part.index,
                part.phase,
                part.deviation * 100.0
            )?;
        }
        self.error.as_ref().map_or(Ok(()), |error| write!(f, "; {error}"))
    }
}

/// Returns the relative error of a prediction. It is positive if the prediction is too high.
fn error(predicted: f64, measured: f64) -> f64 {
    predicted / measured - 1.0
}

/// Returns the summary: the prediction errors per figure, and comparisons of the planner's plans with the
/// rules.
fn summary(rows: &[Row]) -> Vec<String> {
    let mut lines = Vec::new();
    let run: Vec<_> = rows.iter().filter_map(|row| Some((row, row.measured?))).collect();
    for (at, figure) in ["decode", "prefill", "load", "alone"].into_iter().enumerate() {
        let off =
            run.iter().map(|(row, measured)| error(row.predicted.all()[at].1, measured.all()[at].1).abs());
        let off: Vec<f64> = off.filter(|off| off.is_finite()).collect();
        let within = NEAR.map(|share| {
            let near = off.iter().filter(|off| **off <= share).count();
            format!("{near} of {} within {:.0} %", run.len(), share * 100.0)
        });
        let worst = off.iter().copied().fold(0.0, f64::max);
        let median = median(&off);
        lines.push(format!(
            "{figure}: {}; median {:.1} %, worst {:.1} %",
            within.join(", "),
            median * 100.0,
            worst * 100.0
        ));
    }
    lines.extend(against_rules(&run, THROUGHPUT, "load", |rates| rates.load));
    lines.extend(against_rules(&run, LATENCY, "alone", |rates| rates.alone));
    lines
}

/// Compares the measured rates of the planner's plan named `chosen` with those of the rules' plans. `of`
/// selects the rate to compare, and `figure` names it in the output.
fn against_rules(run: &[(&Row, Rates)], chosen: &str, figure: &str, of: fn(&Rates) -> f64) -> Option<String> {
    let own = of(&run.iter().find(|(row, _)| row.is(chosen))?.1);
    let rules = Baseline::ALL.iter().filter_map(|rule| {
        let name = rule.to_string();
        let (row, rates) = run.iter().find(|(row, _)| row.is(&name))?;
        Some((row, format!("{name} {:.2}", own / of(rates)), own / of(rates)))
    });
    let rules: Vec<_> = rules.collect();
    // A rule with the same plan is neither better nor worse.
    let beaten = rules.iter().all(|(row, _, ratio)| row.is(chosen) || *ratio > 1.0);
    let ratios: Vec<_> = rules.into_iter().map(|(_, text, _)| text).collect();
    let verdict = if beaten { "faster than every other rule" } else { "NOT faster than every rule" };
    Some(format!("{chosen}, {figure}: {verdict}; times as fast as {}", ratios.join(", ")))
}
