//! Measures how much two stages overlap in time, from the trace of a run.
//!
//! Demonstrates how to trace an engine and how to read the trace. A single decoding sequence keeps only one
//! stage busy at a time. Sixteen sequences keep both stages busy, and so do the chunks of one long prompt.
//! For each run, the program prints a bar for each stage, and a bar labelled "both" for the time in which
//! both stages compute. The full width of a bar stands for the time from the start of the first computation
//! to the end of the last computation. The bar "both" is empty only for the first run. It is long only if the
//! machine has two idle cores, because the threads of the stages otherwise compete for cores.
//!
//! ```sh
//! cargo run --release --example 05-overlap
//! cargo run --release --example 05-overlap -- trace.json    # the last trace, for https://ui.perfetto.dev
//! ```

#![allow(clippy::print_stdout)] // examples print

use ragtag::{DeviceOptions, Devices, Engine, EngineOptions, Generation, Model, Planner, Prompt};
use ragtag::{Trace, overlap};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = Model::bundled()?;
    let mut options = DeviceOptions::selecting("cpu");
    (options.cpu_devices, options.cpu_threads) = (2, Some(1));
    let devices = Devices::probe(&options)?;
    show("one sequence decodes", &traced(&model, &devices, 1, 8, 150)?);
    show("sixteen sequences decode", &traced(&model, &devices, 16, 8, 150)?);
    let chunks = traced(&model, &devices, 1, 500, 1)?;
    show("one prompt of 500 tokens, in chunks of 50", &chunks);
    if let Some(path) = std::env::args().nth(1) {
        std::fs::write(&path, chunks.to_chrome_json())?;
        println!("{path}: {} spans", chunks.spans().len());
    }
    Ok(())
}

fn traced(model: &Model, devices: &Devices, sequences: u32, prompt: u32, new: u32) -> ragtag::Result<Trace> {
    // All runs use the same cut.
    let last = model.graph().segment_count() - 1;
    let split = format!("0-7=cpu:0,8-{last}=cpu:1").parse()?;
    let planner = Planner::new(model).devices(devices).sequences(sequences).chunk(50).split(split);
    let mut options = EngineOptions::default();
    options.trace = true;
    let engine = Engine::start(model, devices, &planner, options)?;

    let generation = Generation { max_tokens: new, ignore_end: true, ..Generation::greedy() };
    let ids: Vec<u32> = (0..prompt).map(|i| 300 + i).collect();
    // Submit all sequences before waiting for the first.
    let streams = (0..sequences).map(|_| engine.session().generate(Prompt::Tokens(&ids), &generation));
    let streams = streams.collect::<ragtag::Result<Vec<_>>>()?;
    for stream in streams {
        stream.blocking_text()?;
    }
    Ok(engine.shutdown().trace)
}

fn show(title: &str, trace: &Trace) {
    let overlap = overlap(trace);
    println!("{title}: {:.1} ms", overlap.wall_ns as f64 / 1e6);
    let bar = |name: &str, ns: u64| {
        let share = ns as f64 / overlap.wall_ns.max(1) as f64;
        let full = ((share * 40.0).round() as usize).min(40);
        println!("  {name:8} {}{} {:3.0} %", "█".repeat(full), "·".repeat(40 - full), share * 100.0);
    };
    overlap.busy_ns.iter().enumerate().for_each(|(stage, ns)| bar(&format!("stage {stage}"), *ns));
    bar("both", overlap.together_ns);
}
