//! Compares the decode rate of a CPU with an upper bound that the same run measures. The upper bound is the
//! machine's read bandwidth divided by the bytes of weights that the computation of a token reads.
//!
//! Usage: `cargo bench --bench decode -- THREADS ROUNDS MODEL.gguf …`. `cargo xtask synth-model --preset
//! 1.1b` makes such a model. The bench alternates between measuring the bandwidth and the models, so that
//! noise affects all measurements alike. It prints the raw samples as JSON.
#![allow(clippy::print_stdout)] // prints a report

use ragtag::{DeviceOptions, Devices, Engine, EngineOptions, Event, Generation, Model, Planner, Prompt};
use ragtag_kernels::{Activations, KvType};
use std::hint::black_box;
use std::time::Instant;

/// Number of bytes to read per bandwidth measurement. It far exceeds the size of any cache.
const READ_BYTES: usize = 2 << 30;
/// Number of streams that each thread reads at the same time. A single stream does not keep enough cache
/// lines in flight.
const STREAMS: usize = 8;
/// Number of new tokens per sample.
const TOKENS: u32 = 12;

struct Subject {
    name: String,
    read_bytes: u64,
    engine: Engine,
    tokens_per_s: Vec<f64>,
}

fn main() -> ragtag::Result<()> {
    // Cargo adds the argument `--bench`.
    let mut arguments = std::env::args().skip(1).filter(|a| !a.starts_with("--"));
    let threads: u32 = arguments.next().and_then(|a| a.parse().ok()).unwrap_or(2);
    let rounds: usize = arguments.next().and_then(|a| a.parse().ok()).unwrap_or(7);
    let mut subjects = arguments.map(|path| subject(&path, threads)).collect::<ragtag::Result<Vec<_>>>()?;
    let memory = huge_memory(READ_BYTES)?;
    let mut bandwidths = Vec::new();
    for _ in 0..rounds {
        bandwidths.push(read_bandwidth(&memory, threads as usize));
        for subject in &mut subjects {
            let sample = decode(&subject.engine)?;
            subject.tokens_per_s.push(sample);
        }
    }
    let bandwidth = median(&bandwidths);
    println!("read bandwidth, {threads} threads: {:.2} GB/s", bandwidth / 1e9);
    for s in &subjects {
        let tokens_per_s = median(&s.tokens_per_s);
        let share = tokens_per_s * s.read_bytes as f64 / bandwidth;
        println!(
            "{}: {tokens_per_s:.2} tokens/s × {:.1} MB = {:.0} % of the bandwidth",
            s.name,
            s.read_bytes as f64 / 1e6,
            share * 100.0
        );
    }
    let samples: serde_json::Map<_, _> =
        subjects.iter().map(|s| (s.name.clone(), s.tokens_per_s.clone().into())).collect();
    println!("{}", serde_json::json!({ "bandwidth_bytes_per_s": bandwidths, "tokens_per_s": samples }));
    Ok(())
}

fn subject(path: &str, threads: u32) -> ragtag::Result<Subject> {
    let model = Model::open(path)?;
    let mut options = DeviceOptions::selecting("cpu");
    options.cpu_threads = Some(threads);
    let devices = Devices::probe(&options)?;
    let planner = Planner::new(&model).devices(&devices).context(64).kv(KvType::F16);
    let plan = planner.activations(Activations::Int8).plan()?;
    let engine = Engine::start_exact(&model, &devices, &plan, EngineOptions::default())?;
    let lowering = ragtag_graph::Lowering {
        activations: plan.activations,
        kv: plan.kv,
        context: plan.context,
        sequences: 1,
        kv_blocks: Some(plan.kv_blocks),
        chunk: plan.chunk,
        logit_rows: 1,
        wire_type: plan.wire_type,
    };
    let segments = model
        .graph()
        .segments(&lowering)
        .map_err(|cause| ragtag::Error::Model { name: path.into(), cause })?;
    let read_bytes = segments.iter().map(|s| s.read_bytes).sum();
    Ok(Subject { name: model.name().into(), read_bytes, engine, tokens_per_s: Vec::new() })
}

/// Returns the decode rate of one sequence, in tokens per second. Excludes the first new token, because
/// prefill produces it.
fn decode(engine: &Engine) -> ragtag::Result<f64> {
    let generation = Generation { max_tokens: TOKENS, ignore_end: true, ..Generation::greedy() };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .map_err(|e| ragtag::Error::Usage(format!("cannot start the async runtime: {e}")))?;
    runtime.block_on(async {
        let mut stream = engine.session().generate(Prompt::Tokens(&[1]), &generation)?;
        loop {
            if let Event::Finished(summary) = stream.next_event().await? {
                return Ok(summary.decode_tokens_per_s());
            }
        }
    })
}

/// Allocates memory on huge pages if they are available, as the CPU backend does. On normal pages, the
/// measured bandwidth would be lower than the backend's bandwidth for weights.
fn huge_memory(bytes: usize) -> ragtag::Result<memmap2::MmapMut> {
    let mapped = memmap2::MmapMut::map_anon(bytes)
        .map_err(|e| ragtag::Error::Usage(format!("cannot map {bytes} bytes to measure the bandwidth: {e}")));
    let mut memory = mapped?;
    #[cfg(target_os = "linux")]
    if let Err(error) = memory.advise(memmap2::Advice::HugePage) {
        println!("no huge pages: {error}");
    }
    memory.fill(1);
    Ok(memory)
}

/// Returns the rate at which all threads together read `memory`, in bytes per second. Each thread reads its
/// part of the memory in [`STREAMS`] interleaved streams.
fn read_bandwidth(memory: &[u8], threads: usize) -> f64 {
    let start = Instant::now();
    std::thread::scope(|scope| {
        for part in memory.chunks(memory.len() / threads) {
            scope.spawn(move || black_box(sum(part)));
        }
    });
    memory.len() as f64 / start.elapsed().as_secs_f64()
}

fn sum(part: &[u8]) -> u64 {
    let lines = part.as_chunks::<64>().0;
    let length = lines.len() / STREAMS;
    let streams: [&[[u8; 64]]; STREAMS] = std::array::from_fn(|s| &lines[s * length..(s + 1) * length]);
    let mut sums = [[0u64; 8]; STREAMS];
    for line in 0..length {
        for (stream, sums) in streams.iter().zip(&mut sums) {
            for (sum, word) in sums.iter_mut().zip(stream[line].as_chunks::<8>().0) {
                *sum = sum.wrapping_add(u64::from_le_bytes(*word));
            }
        }
    }
    sums.iter().flatten().fold(0, |a, b| a.wrapping_add(*b))
}

fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}
