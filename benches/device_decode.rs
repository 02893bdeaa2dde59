//! Decode on a device against its floor: bytes of weights per token over the rate at which the device copies its own
//! memory (bytes read plus bytes written), in one run.
//!
//! `cargo bench --bench device_decode -- DEVICE ROUNDS MODEL.gguf …`, for instance `opencl:0 5 7b-f16.gguf`, with models
//! of `cargo xtask synth-model`. Copies and models take turns. Raw samples are printed as JSON.
#![allow(clippy::print_stdout)] // a report is what it is for

use ragtag::{
    DeviceOptions, Devices, Engine, EngineOptions, Event, Generation, Model, Planner, Prompt, Summary,
};
use ragtag_devices::{Backends, Config};
use ragtag_hal::{BufferId, BufferRange, Command, Device, DeviceId, Limits, QueueKind, Submission, Work};
use ragtag_kernels::{Activations, KvType};
use std::time::Instant;

/// Bytes that one copy moves, far beyond any cache.
const COPY_BYTES: u64 = 1 << 30;
/// Copies of one sample.
const COPIES: usize = 16;
/// Tokens of one sample.
const TOKENS: u32 = 48;
/// Rows of the prompt whose prefill is timed.
const PROMPT: u32 = 512;

struct Subject {
    name: String,
    read_bytes: u64,
    engine: Engine,
    decode_tokens_per_s: Vec<f64>,
    prefill_tokens_per_s: Vec<f64>,
}

fn main() -> ragtag::Result<()> {
    // Cargo itself adds `--bench`.
    let mut arguments = std::env::args().skip(1).filter(|a| !a.starts_with("--"));
    let usage = || ragtag::Error::Usage("arguments: DEVICE ROUNDS MODEL.gguf …".into());
    let device = arguments.next().ok_or_else(usage)?;
    let rounds: usize = arguments.next().and_then(|a| a.parse().ok()).ok_or_else(usage)?;
    let models: Vec<String> = arguments.collect();
    let mut copy = Copier::open(&device)?;
    let mut copy_rates: Vec<f64> = (0..rounds).map(|_| copy.bytes_per_s()).collect::<ragtag::Result<_>>()?;
    println!("{device}: copies {:.0} GB/s, read and written", median(&copy_rates) / 1e9);
    let mut samples = serde_json::Map::new();
    // One at a time: together they might not fit.
    for path in &models {
        let mut subject = subject(path, &device)?;
        for _ in 0..rounds {
            copy_rates.push(copy.bytes_per_s()?);
            let (decode, prefill) =
                (generate(&subject.engine, 1, TOKENS)?, generate(&subject.engine, PROMPT, 2)?);
            subject.decode_tokens_per_s.push(decode.decode_tokens_per_s());
            subject.prefill_tokens_per_s.push(prefill.prefill_tokens_per_s());
        }
        let (rate, tokens_per_s) = (median(&copy_rates), median(&subject.decode_tokens_per_s));
        println!(
            "{}: prefill {:.0} tokens/s; decode {tokens_per_s:.1} tokens/s × {:.1} MB = {:.0} GB/s = {:.0} % of the copy rate {:.0} GB/s",
            subject.name,
            median(&subject.prefill_tokens_per_s),
            subject.read_bytes as f64 / 1e6,
            tokens_per_s * subject.read_bytes as f64 / 1e9,
            tokens_per_s * subject.read_bytes as f64 / rate * 100.0,
            rate / 1e9,
        );
        samples.insert(
            subject.name.clone(),
            serde_json::json!({
                "read_bytes": subject.read_bytes,
                "decode_tokens_per_s": subject.decode_tokens_per_s,
                "prefill_tokens_per_s": subject.prefill_tokens_per_s,
            }),
        );
    }
    println!(
        "{}",
        serde_json::json!({ "device": device, "copy_bytes_per_s": copy_rates, "models": samples })
    );
    Ok(())
}

fn subject(path: &str, device: &str) -> ragtag::Result<Subject> {
    let start = Instant::now();
    let model = Model::open(path)?;
    let devices = Devices::probe(&DeviceOptions { requested: Some(device.into()), ..Default::default() })?;
    let planner = Planner::new(&model).devices(&devices).context(1024).chunk(PROMPT).kv(KvType::F16);
    let plan = planner.activations(Activations::Int8).plan()?;
    let engine = Engine::start(&model, &devices, &plan, EngineOptions::default())?;
    println!("{}: loaded in {:.1} s", model.name(), start.elapsed().as_secs_f64());
    let lowering = ragtag_graph::Lowering {
        activations: plan.activations,
        kv: plan.kv,
        context: plan.context,
        sequences: 1,
        chunk: plan.chunk,
        logit_rows: 1,
    };
    let segments = model
        .graph()
        .segments(&lowering)
        .map_err(|cause| ragtag::Error::Model { name: path.into(), cause })?;
    let read_bytes = segments.iter().map(|s| s.read_bytes).sum();
    let (decode_tokens_per_s, prefill_tokens_per_s) = (Vec::new(), Vec::new());
    Ok(Subject { name: model.name().into(), read_bytes, engine, decode_tokens_per_s, prefill_tokens_per_s })
}

/// One sequence: its prompt of so many tokens, then so many more.
fn generate(engine: &Engine, prompt: u32, tokens: u32) -> ragtag::Result<Summary> {
    let generation = Generation { max_tokens: tokens, ignore_end: true, ..Generation::greedy() };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .map_err(|e| ragtag::Error::Usage(format!("the async runtime does not start: {e}")))?;
    let prompt: Vec<u32> = (1..=prompt).collect();
    runtime.block_on(async {
        let mut stream = engine.session().generate(Prompt::Tokens(&prompt), &generation)?;
        loop {
            if let Event::Finished(summary) = stream.next_event().await? {
                return Ok(summary);
            }
        }
    })
}

/// Copies from one buffer of the device to another.
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
        // Its number tells its timelines from those of engines.
        let id = DeviceId(u16::MAX);
        let mut device = backends.open(&[(adapter, id)], &Limits::default()).map_err(failed)?.swap_remove(0);
        if let Some(mut waiter) = device.waiter() {
            std::thread::spawn(move || while waiter.wait() == Ok(true) {});
        }
        (0..2).try_for_each(|id| device.create_buffer(BufferId(id), COPY_BYTES)).map_err(failed)?;
        Ok(Self { label: label.into(), device, signalled: 0 })
    }

    /// Bytes read plus bytes written in a second.
    fn bytes_per_s(&mut self) -> ragtag::Result<f64> {
        self.copy(1)?;
        let start = Instant::now();
        self.copy(COPIES)?;
        Ok((2 * COPY_BYTES * COPIES as u64) as f64 / start.elapsed().as_secs_f64())
    }

    fn copy(&mut self, times: usize) -> ragtag::Result<()> {
        let failed = |cause| ragtag::Error::Device { device: self.label.clone(), cause };
        let range = |id| BufferRange { buffer: BufferId(id), offset: 0, bytes: COPY_BYTES };
        let commands = vec![Command::Copy { from: range(0), to: range(1) }; times];
        self.signalled += 1;
        let timeline = self.device.timeline(QueueKind::Compute);
        let submission = Submission {
            queue: QueueKind::Compute,
            work: Work::Commands(commands),
            waits: Vec::new(),
            signal: timeline.id().at(self.signalled),
        };
        self.device.submit(submission).map_err(&failed)?;
        timeline.wait(self.signalled, None).map_err(&failed).map(|_| ())
    }
}

fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}
