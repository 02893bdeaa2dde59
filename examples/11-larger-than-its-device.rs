//! Runs a model that is larger than the memory of its device.
//!
//! Demonstrates memory caps and streamed weights. The program first runs the model with all weights in the
//! device's memory. Then it caps this memory, so that some weights no longer fit. They stay in host memory or in
//! the model's file, and each step copies them through a small part of the device's memory. The text is the same.
//! For both runs, the program prints the memory, the streamed segments and the speed.
//!
//! ```sh
//! cargo run --release --example 11-larger-than-its-device
//! cargo run --release --example 11-larger-than-its-device -- model.gguf cuda:0
//! ```
//!
//! The second argument is a device. By default, the program uses the first GPU, or the CPU without a GPU.

#![allow(clippy::print_stdout)] // examples print

use ragtag::{DeviceOptions, Devices, Engine, EngineOptions, Generation, Isolation, Model, Plan, Planner};
use std::time::Instant;

const MIB: f64 = 1_048_576.0;
/// A short context, so that weights take most of the memory.
const CONTEXT: u32 = 128;

fn main() -> ragtag::Result<()> {
    let isolation = Isolation::start();
    let mut arguments = std::env::args().skip(1);
    let model = match arguments.next() {
        Some(path) => Model::open(path)?,
        None => Model::bundled()?,
    };
    let requested = arguments.next().unwrap_or("auto".into());
    let devices = Devices::probe(&DeviceOptions::selecting(requested).isolated(&isolation))?;
    let label = devices.labels().remove(0);
    println!("{} on {label} ({})", model.name(), devices.selected()[0].name);

    let whole = plan(&model, &DeviceOptions::selecting(&label).isolated(&isolation))?;
    let text = run(&model, &whole)?;

    // Leave room for half of the blocks' weights.
    let memory = &whole.1.stages[0].memory_bytes;
    let cap_bytes = memory.total - memory.weights / 4;
    let options = DeviceOptions::selecting(&label).isolated(&isolation);
    let capped = plan(&model, &options.capping_memory(format!("{label}={cap_bytes}")))?;
    let same = run(&model, &capped)? == text;
    println!("\n{text}\n\nthe text with streamed weights: {}", if same { "the same" } else { "another one" });
    for reason in capped.1.reasons.iter().filter(|reason| reason.starts_with("streamed")) {
        println!("- {reason}");
    }
    Ok(())
}

/// Plans the model on one device.
fn plan(model: &Model, options: &DeviceOptions) -> ragtag::Result<(Devices, Plan)> {
    let devices = Devices::probe(options)?;
    let plan = Planner::new(model).devices(&devices).context(CONTEXT).plan()?;
    Ok((devices, plan))
}

/// Runs the plan, prints its memory and its speed, and returns the text.
fn run(model: &Model, (devices, plan): &(Devices, Plan)) -> ragtag::Result<String> {
    let engine = Engine::start_exact(model, devices, plan, EngineOptions::default())?;
    let prompt = "Once upon a time";
    let generation = Generation { max_tokens: 48, ignore_end: true, ..Generation::greedy() };
    engine.session().generate(prompt, &generation)?.blocking_text()?; // warm-up: touches pages, wakes threads
    let start = Instant::now();
    let text = engine.session().generate(prompt, &generation)?.blocking_text()?;
    let speed = f64::from(generation.max_tokens) / start.elapsed().as_secs_f64();

    let stage = &plan.stages[0];
    let [used, available] =
        [stage.memory_bytes.total, stage.memory_bytes.available].map(|of| of as f64 / MIB);
    let streamed = match stage.streamed.len() {
        0 => "all weights stay".into(),
        count => format!("weights of {count} of {} segments are streamed", plan.model.segments),
    };
    println!("{used:.1} MiB of {available:.1} MiB, {streamed}: {speed:.1} tokens/s");
    Ok(format!("{prompt}{text}"))
}
