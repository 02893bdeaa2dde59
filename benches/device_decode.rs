//! Compares the decode rate of a device with an upper bound that the same run measures, and measures the
//! prefill rate. The upper bound on the decode rate is the device's copy rate (bytes read plus bytes written
//! per second) divided by the bytes of weights that the computation of a token reads. For prefill, the bench
//! also reports TFLOP/s, at two operations per block weight and token.
//!
//! Usage: `cargo bench --bench device_decode -- --device cuda:0 7b:f16 7b:q4_0`. Each model is PRESET:TYPE or
//! a GGUF file. PRESET is a preset of `cargo xtask synth-model`. The bench makes such a model in memory with
//! random weights. `--help` lists the options. The bench alternates between measuring copies and models, and
//! prints the raw samples as JSON.
#![allow(clippy::print_stdout, clippy::print_stderr)] // prints a report

mod support;

use clap::Parser;
use ragtag::compare::Burst;
use ragtag::{BurstTimes, DeviceOptions, Devices, Engine, EngineOptions, GemmChoice, Model, Planner};
use ragtag_devices::{Backends, Config};
use ragtag_hal::{BufferId, BufferRange, Command, Device, DeviceId, Limits, QueueKind, Submission, Work};
use ragtag_kernels::{Activations, KvType};
use std::time::Instant;
use support::{burst, median, model};

/// Size of a copy in bytes. It far exceeds the size of any cache.
const COPY_BYTES: u64 = 1 << 30;
/// Number of copies per sample.
const COPIES: usize = 16;

#[derive(Parser)]
struct Arguments {
    /// Device, or devices to split the model over
    #[arg(long, default_value = "cpu:0")]
    device: String,
    /// Samples per figure; the median is reported
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Tokens in the cache during decode
    #[arg(long, value_delimiter = ',', default_value = "1")]
    contexts: Vec<u32>,
    /// Concurrent sequences in decode
    #[arg(long, value_delimiter = ',', default_value = "1")]
    sequences: Vec<u32>,
    /// Tokens per sequence in one decode sample
    #[arg(long, default_value_t = 64)]
    tokens: u32,
    /// Prompt tokens for prefill; 0 skips prefill
    #[arg(long, default_value_t = 512)]
    prompt: u32,
    /// Maximum tokens per micro-batch
    #[arg(long, default_value_t = 512)]
    chunk: u32,
    /// f32 or int8
    #[arg(long, default_value = "int8")]
    activations: String,
    /// Kernels for matrix products of many rows: auto, own or library
    #[arg(long, default_value = "auto")]
    gemm: GemmChoice,
    /// Added by cargo
    #[arg(long, hide = true)]
    bench: bool,
    /// PRESET:TYPE, as in 7b:q4_0, or a GGUF file
    #[arg(required = true)]
    models: Vec<String>,
}

fn main() -> ragtag::Result<()> {
    let arguments = Arguments::parse();
    let mut copies = Copies::measure(&arguments)?;
    let mut samples = serde_json::Map::new();
    for name in &arguments.models {
        let model = model(name, None)?;
        let mut figures = Vec::new();
        if arguments.prompt > 0 {
            figures.push(prefill(&arguments, name, &model, &mut copies)?);
        }
        for &context in &arguments.contexts {
            for &sequences in &arguments.sequences {
                figures.push(
                    decode(&arguments, name, &model, (context, sequences), &mut copies).unwrap_or_else(
                        |error| {
                            // The device may be out of memory, for example.
                            println!("{name}: {sequences} × {context}: {error}");
                            serde_json::json!({ "context": context, "sequences": sequences, "error": error.to_string() })
                        },
                    ),
                );
            }
        }
        samples.insert(name.clone(), figures.into());
    }
    let report = serde_json::json!({
        "device": arguments.device,
        "copies_by": copies.copier.label,
        "activations": arguments.activations,
        "gemm": arguments.gemm,
        "copy_bytes_per_s": copies.samples,
        "models": samples,
    });
    println!("{report}");
    Ok(())
}

/// Starts an engine for sequences of up to `context` tokens. Also returns the number of bytes of weights that
/// the computation of a token reads.
fn engine(
    arguments: &Arguments,
    name: &str,
    model: &Model,
    context: u32,
    sequences: u32,
) -> ragtag::Result<(Engine, u64)> {
    let start = Instant::now();
    let activations = match arguments.activations.as_str() {
        "f32" => Activations::F32,
        _ => Activations::Int8,
    };
    let mut options = DeviceOptions::selecting(&*arguments.device);
    options.gemm = arguments.gemm;
    let devices = Devices::probe(&options)?;
    let planner = Planner::new(model).devices(&devices).context(context).sequences(sequences);
    let plan = planner.chunk(arguments.chunk).kv(KvType::F16).activations(activations).plan()?;
    let engine = Engine::start_exact(model, &devices, &plan, EngineOptions::default())?;
    eprintln!("{name}: loaded in {:.1} s", start.elapsed().as_secs_f64());
    let lowering = ragtag_graph::Lowering {
        activations: plan.activations,
        kv: plan.kv,
        context: plan.context,
        sequences,
        kv_blocks: Some(plan.kv_blocks),
        chunk: plan.chunk,
        logit_rows: 1,
        wire_type: plan.wire_type,
    };
    let segments = model.graph().segments(&lowering);
    let segments = segments.map_err(|cause| ragtag::Error::Model { name: name.into(), cause })?;
    Ok((engine, segments.iter().map(|s| s.read_bytes).sum()))
}

/// Measures the prefill rate with one prompt at a time.
fn prefill(
    arguments: &Arguments,
    name: &str,
    model: &Model,
    copies: &mut Copies,
) -> ragtag::Result<serde_json::Value> {
    let (engine, _) = engine(arguments, name, model, arguments.prompt + 2, 1)?;
    let mut rates = Vec::new();
    // The first round is a warm-up.
    for round in 0..=arguments.rounds {
        copies.again()?;
        let times = generate(&engine, 1, arguments.prompt, 1)?;
        if round > 0 {
            rates.push(f64::from(arguments.prompt) / times.tokens_s[0][0]);
        }
    }
    let rate = median(&rates);
    let operations = 2.0 * weights(model) as f64 * rate;
    println!("{name}: prefill of {}: {rate:.0} tokens/s, {:.1} TFLOP/s", arguments.prompt, operations / 1e12);
    Ok(serde_json::json!({ "prompt": arguments.prompt, "chunk": arguments.chunk, "tokens_per_s": rates }))
}

/// Returns the number of weights in all blocks. Processing one prompt token multiplies by each of these
/// weights once.
fn weights(model: &Model) -> u64 {
    let blocks = model.graph().weights().tensors().iter().filter(|tensor| tensor.name.starts_with("blk."));
    blocks.map(|tensor| tensor.shape.iter().product::<u64>()).sum()
}

/// Measures the decode rate of `sequences` concurrent sequences with `context` tokens each in the KV cache.
fn decode(
    arguments: &Arguments,
    name: &str,
    model: &Model,
    (context, sequences): (u32, u32),
    copies: &mut Copies,
) -> ragtag::Result<serde_json::Value> {
    // Sequences with a finished prompt decode while other prompts are still being processed.
    let steps = sequences * context.div_ceil(arguments.chunk);
    let tokens = arguments.tokens + if sequences > 1 { 2 * steps } else { 0 };
    let (engine, read_bytes) = engine(arguments, name, model, context + tokens, sequences)?;
    let mut rates = Vec::new();
    for round in 0..=arguments.rounds {
        copies.again()?;
        let times = generate(&engine, sequences, context, tokens)?;
        if round > 0 {
            rates.push(times.together_tokens_per_s().unwrap_or(f64::NAN));
        }
    }
    let (rate, copied) = (median(&rates), median(&copies.samples));
    let read = rate / f64::from(sequences) * read_bytes as f64;
    println!(
        "{name}: decode of {sequences} at {context}: {rate:.1} tokens/s; × {:.0} MB of weights / {sequences} = {:.0} GB/s = {:.1} % of the copy rate {:.0} GB/s",
        read_bytes as f64 / 1e6,
        read / 1e9,
        read / copied * 100.0,
        copied / 1e9,
    );
    Ok(serde_json::json!({
        "context": context, "sequences": sequences, "read_bytes": read_bytes, "tokens_per_s": rates,
    }))
}

/// Runs `sequences` concurrent sequences, each with `prompt` prompt tokens and `tokens` new tokens.
fn generate(engine: &Engine, sequences: u32, prompt: u32, tokens: u32) -> ragtag::Result<BurstTimes> {
    burst(engine, &Burst::Generations { prompt, tokens, sequences })
}

/// Measured copy rates within the memory of the first device.
struct Copies {
    copier: Copier,
    samples: Vec<f64>,
}

impl Copies {
    fn measure(arguments: &Arguments) -> ragtag::Result<Self> {
        let label = arguments.device.split(',').next().unwrap_or_default();
        let report = Backends::new(&Config::default()).probe();
        let own = report.device(label).map(|device| device.adapters.clone()).unwrap_or_default();
        // The hardware limit is the fastest copy over all APIs that expose the device, because some drivers
        // copy with slower engines.
        let mut best: Option<Self> = None;
        for label in own {
            let mut copies = Self { copier: Copier::open(&label)?, samples: Vec::new() };
            (0..arguments.rounds).try_for_each(|_| copies.again())?;
            let rate = median(&copies.samples);
            println!("{label}: copies at {:.0} GB/s, read plus written", rate / 1e9);
            if best.as_ref().is_none_or(|best| rate > median(&best.samples)) {
                best = Some(copies);
            }
        }
        best.ok_or_else(|| ragtag::Error::Usage(format!("no device {label}")))
    }

    /// Measures the copy rate once more and adds the sample.
    fn again(&mut self) -> ragtag::Result<()> {
        self.samples.push(self.copier.bytes_per_s()?);
        Ok(())
    }
}

/// Copies between two buffers of a device.
struct Copier {
    label: String,
    device: ragtag_hal::Checked,
    signalled: u64,
}

impl Copier {
    fn open(label: &str) -> ragtag::Result<Self> {
        let backends = Backends::new(&Config::default());
        let adapter = backends.probe().adapter(label).cloned();
        let adapter = adapter.ok_or_else(|| ragtag::Error::Usage(format!("no device {label}")))?;
        let failed = |cause| ragtag::Error::Device { device: label.into(), cause };
        // No engine uses this device number, so the timelines are distinct.
        let id = DeviceId(u16::MAX);
        let mut device = backends.open(&[(adapter, id)], &Limits::default()).map_err(failed)?.swap_remove(0);
        (0..2).try_for_each(|id| device.create_buffer(BufferId(id), COPY_BYTES)).map_err(failed)?;
        Ok(Self { label: label.into(), device, signalled: 0 })
    }

    /// Measures one sample of the copy rate. Returns the bytes read plus the bytes written per second.
    fn bytes_per_s(&mut self) -> ragtag::Result<f64> {
        self.copy(1)?;
        let start = Instant::now();
        self.copy(COPIES)?;
        Ok((2 * COPY_BYTES * COPIES as u64) as f64 / start.elapsed().as_secs_f64())
    }

    fn copy(&mut self, times: usize) -> ragtag::Result<()> {
        let failed = |cause| ragtag::Error::Usage(format!("{}: {cause}", self.label));
        let range = |id| BufferRange { buffer: BufferId(id), offset: 0, bytes: COPY_BYTES };
        let commands = vec![Command::Copy { from: range(0), to: range(1) }; times];
        self.signalled += 1;
        let timeline = self.device.timeline(QueueKind::Compute);
        let submission = Submission {
            queue: QueueKind::Compute,
            work: Work::Commands(commands),
            waits: Vec::new(),
            signal: timeline.id().at(self.signalled),
            is_timed: true,
        };
        self.device.submit(submission).map_err(&failed)?;
        timeline.wait(self.signalled, None).map_err(&failed).map(|_| ())
    }
}
